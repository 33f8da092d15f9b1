"""Every error that autotp raises on purpose stands in docs/troubleshooting/ with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import FOLDER, pages, remedies, sections_of
from .texts import PACKAGE, all_texts, texts

SECTIONS = [section for page in remedies().values() for section in page["sections"]]


def test_the_pages_are_those_that_the_source_gives() -> None:
    """If not: say in remedies.toml what to do about a new error, and run `python -m tests.troubleshooting`."""
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")} == pages()


def test_every_file_that_raises_has_one_section() -> None:
    assert {file: found for file in all_texts() if len(found := sections_of(file)) != 1} == {}
    named = [place for section in SECTIONS for place in section["files"]]
    assert len(named) == len(set(named))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section["heading"])
def test_every_section_is_about_something(section: dict[str, str]) -> None:
    assert len(section["remedy"]) > 40
    assert section["heading"] in {heading for file in all_texts() for heading in sections_of(file)}
    assert [place for place in section["files"] if not (PACKAGE / place).exists()] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise UsageError(f"tp is {tp}; give 2")', ["tp is …; give 2"]),
        ('MSG_X = "{a} is wrong"\nraise PlanError(MSG_X.format(a=1))', ["… is wrong", "… is wrong"]),
        ('raise error(f"{what}: no JSON")', ["…: no JSON"]),
        ('raise RuleError(f"{path}: {error}")', []),
        ('raise ValueError("not ours")', []),
        ('raise CheckpointError("one " f"{x} " "three")', ["one … three"]),
    ],
)
def test_texts_are_read_from_source(tmp_path: Path, source: str, found: list[str]) -> None:
    (tmp_path / "a.py").write_text(source, encoding="utf-8")
    assert list(texts(tmp_path / "a.py")) == found
