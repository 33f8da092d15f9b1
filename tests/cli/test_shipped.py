"""Plans that come with autotp are those that it makes, and are shown as long as nothing that decides about them is another."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autotp.cli import main, shipped
from autotp.huggingface.names import names_in_files
from tests.cli.test_light import run

FAMOUS = ["gpt2", "llama", "mixtral", "bert", "t5", "qwen3"]


def types() -> list[str]:
    with lzma.open(shipped.FILE, "rt", encoding="utf-8") as lines:
        next(lines)
        return [json.loads(line)[0] for line in lines]


def ask(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The models that were planned, in place of planning them."""
    from autotp.cli.work import plan

    models: list[str] = []
    monkeypatch.setattr(plan, "print_plan", lambda model, *args, **kwargs: models.append(model))
    return models


@pytest.mark.matrix
@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_what_comes_with_autotp_is_what_it_plans(model: str) -> None:
    """With other versions of the libraries as well, wherever the model's classes are the same."""
    check_planned(model)


@pytest.mark.sample(0, sweep=10, others="long")
@pytest.mark.parametrize("model", types())
def test_all_that_comes_with_autotp_is_what_it_plans(model: str) -> None:
    check_planned(model)


def check_planned(model: str) -> None:
    with lzma.open(shipped.FILE, "rt", encoding="utf-8") as lines:
        made_here = tuple(json.loads(next(lines))["versions"]) == shipped.versions()
        (line,) = (line for line in lines if json.loads(line)[0] == model)
    _, classes, files, made = json.loads(line)
    if model not in names_in_files() or not all((shipped.transformers_folder() / file).exists() for file in files):
        assert not made_here
        return
    if classes != shipped.classes_digest(files):
        assert not made_here
        return
    for size in made:
        for form in ((), ("--json",)):
            assert ask(model, "--tp", size, *form).stdout == ask(model, "--tp", size, *form, "--again").stdout
    sizes = ",".join(made)
    assert ask(model, "--compare", sizes).stdout == ask(model, "--compare", sizes, "--again").stdout


def test_famous_types_come_with_autotp_in_all_sizes() -> None:
    found = set(types())
    assert found >= set(FAMOUS)
    assert len(found) > 300
    assert found <= names_in_files()


def test_what_comes_with_autotp_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    result = run("plan", "llama", "--tp", "4", AUTOTP_CACHE=str(tmp_path))
    assert result.stderr.splitlines()[-1] == "imported"
    assert "LlamaForCausalLM" in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "other",
    [
        ("--tokens", 4096),
        ("--batch", 2),
        ("--again",),
        ("--objective", "memory"),
        ("--sequence-parallel",),
        ("--why", "model.norm.weight"),
        ("--set", "model.layers.*.mlp=replicate"),
        ("--hardware", "a100-nvlink-8"),
    ],
    ids=lambda other: other[0],
)
def test_another_question_is_planned(other: tuple[object, ...], asked: list[str]) -> None:
    assert ask("llama", "--tp", 4).stdout
    assert asked == []
    ask("llama", "--tp", 4, *other)
    assert asked == ["llama"]


def test_another_size_is_planned(asked: list[str]) -> None:
    ask("llama", "--tp", 3)
    ask("llama", "--compare", "2,3")
    assert asked == ["llama", "llama"]
    ask("llama", "--compare", "8,2")
    assert asked == ["llama", "llama"]


def test_a_folder_of_that_name_is_planned(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llama").mkdir()
    ask("llama", "--tp", 4)
    assert asked == ["llama"]


def test_rules_of_ones_own_are_planned(asked: list[str], tmp_path: Path) -> None:
    (tmp_path / "chains").mkdir()
    ask("llama", "--tp", 4, "--rules", tmp_path)
    assert asked == ["llama"]


def test_classes_that_changed_are_planned(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = shipped.transformers_folder()
    for name in ("modeling_llama.py", "configuration_llama.py"):
        folder = tmp_path / name
        with lzma.open(shipped.FILE, "rt", encoding="utf-8") as lines:
            (line,) = (json.loads(line) for line in lines if line.startswith('["llama", '))
        for file in line[2]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes((installed / file).read_bytes())
        monkeypatch.setattr(shipped, "transformers_folder", lambda folder=folder: folder)
        asked.clear()
        ask("llama", "--tp", 4)
        assert asked == []
        (file,) = folder.rglob(name)
        file.write_text(file.read_text() + "\n")
        ask("llama", "--tp", 4)
        assert asked == ["llama"]
        file.unlink()
        ask("llama", "--tp", 4)
        assert asked == ["llama", "llama"]


def test_rules_that_changed_are_planned(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in shipped.RULES.rglob("*.toml"):
        copy = tmp_path / file.relative_to(shipped.RULES)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    monkeypatch.setattr(shipped, "RULES", tmp_path)
    ask("llama", "--tp", 4)
    assert asked == []
    copy.write_text(copy.read_text() + "\n")
    ask("llama", "--tp", 4)
    assert asked == ["llama"]


def test_other_versions_are_said(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with lzma.open(shipped.FILE, "rt", encoding="utf-8") as lines:
        made = json.loads(next(lines))["versions"]
    monkeypatch.setattr(shipped, "versions", lambda: tuple(made))
    assert ask("llama", "--tp", 4).stderr == ""
    monkeypatch.setattr(shipped, "versions", lambda: ("torch 9.9", made[1]))
    result = ask("llama", "--tp", 4)
    assert (
        result.stderr
        == f"planned with {made[0]} and {made[1]} when this autotp was made; --again plans it with what is installed\n"
    )
    assert "LlamaForCausalLM" in result.stdout
    assert asked == []


@pytest.mark.parametrize("broken", ["gone", "empty", "nothing inside", "no archive", "cut", "not JSON", "another form"])
def test_a_broken_file_costs_time_alone(
    broken: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, true = tmp_path / "shipped.jsonl.xz", shipped.FILE.read_bytes()
    head = lzma.decompress(true).decode().splitlines()[0]
    texts = {
        "empty": b"",
        "nothing inside": lzma.compress(b""),
        "no archive": b"no archive",
        "cut": true[: len(true) // 2],
        "not JSON": lzma.compress(f'{head}\n["llama", no\n'.encode()),
        "another form": lzma.compress(f'{head}\n["llama", {{}}, 3]\n'.encode()),
    }
    if broken != "gone":
        file.write_bytes(texts[broken])
    monkeypatch.setattr(shipped, "FILE", file)
    ask("zamba2" if broken == "cut" else "llama", "--tp", 4)
    assert len(asked) == 1
