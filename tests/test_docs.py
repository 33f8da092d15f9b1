"""The documentation runs: Python blocks, TOML blocks, links, and every command line as far as its options."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import autotp
from autotp.cli import main

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
# A block that needs ranks, or a checkpoint, is marked `no-run`: it must compile.
BLOCK = re.compile(r"^```(python|toml)( no-run)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ {4}(?:\$ )?autotp (\w+)(.*)$|`autotp (\w+)([^`]*)`", re.MULTILINE)


def blocks(kind: str) -> list[tuple[str, str, bool]]:
    found = [(page, match) for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [(page.name, match[3], bool(match[2])) for page, match in found if match[1] == kind]


@pytest.mark.sweep
def test_python_blocks_run(tmp_path: Path) -> None:
    source = "\n".join(code for _, code, unrun in blocks("python") if not unrun)
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("page", "code", "unrun"), blocks("python"))
def test_python_blocks_compile(page: str, code: str, unrun: bool) -> None:
    compile(code, page, "exec")


@pytest.mark.parametrize(("page", "code", "unrun"), blocks("toml"))
def test_toml_blocks_are_toml(page: str, code: str, unrun: bool) -> None:
    assert tomllib.loads(code)


def commands() -> list[tuple[str, str, str]]:
    found = []
    for page in PAGES:
        for match in COMMAND.finditer(page.read_text(encoding="utf-8")):
            name, rest = match[1] or match[3], match[2] if match[1] else match[4]
            words = re.split(r"\s{2,}| > | \| ", " ".join(rest.split("\n")).strip() if not match[1] else rest.strip())[
                0
            ]
            if name in main.commands and words:
                found.append((page.name, name, words))
    return found


@pytest.mark.parametrize(("page", "name", "words"), commands())
def test_commands_take_these_options(page: str, name: str, words: str) -> None:
    numbers = re.sub(r"\bN\b", "2", words).replace("FILE", "file")
    main.commands[name].make_context(name, shlex.split(numbers))


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    """To files that there are, and to headings that they have."""
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-") for words in headings}
            assert heading in anchors, f"{target}#{heading}"


def test_pages_are_short() -> None:
    """But for the table that `make zoo` writes."""
    long = {page.name: page.stat().st_size for page in (ROOT / "docs").rglob("*.md") if page.stat().st_size > 12 * 1024}
    assert long.keys() == {"COVERAGE.md", "against.md"}
    assert (ROOT / "README.md").stat().st_size < 6000


def test_the_map_of_the_passes_names_every_file_there_is() -> None:
    rows = re.findall(
        r"^\|.*\| `([a-z_/]+\.py)` \|$", (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) == len(set(rows)) > 15
    assert [row for row in rows if not (ROOT / "autotp" / row).is_file()] == []


def test_the_files_that_contributing_names_exist() -> None:
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:autotp|rules|tests|docs)/[\w./]*)`", text)) | {"CHANGELOG.md"}
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    folders = {f"autotp/{path.name}/" for path in (ROOT / "autotp").iterdir() if (path / "__init__.py").is_file()}
    assert folders - named == {"autotp/outside/"}  # reads files of others for all of them
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)", text)) <= targets


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "_site" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_everything_that_is_exported() -> None:
    home, pages = hooks().home, hooks().pages()
    text = "\n".join(pages.values())
    for name in autotp.__all__:
        assert f"::: {home(name)}\n" in text
        module, _, attribute = home(name).rpartition(".")
        assert getattr(importlib.import_module(module), attribute) is getattr(autotp, name)


def test_the_site_shows_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    shown = set(re.findall(r"- ([\w/-]+\.md)$", nav, re.MULTILINE))
    written = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert shown == written | set(hooks().pages())
