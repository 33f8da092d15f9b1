"""`autotp diff`: what it prints and writes, and that an error is one line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autotp.cli import main
from tests.families import FAMILIES


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    FAMILIES["gpt2"].config().save_pretrained(folder)
    return folder


def test_text_is_plain_in_a_pipe(model: Path) -> None:
    result = run("diff", model, "--tp", 2, "--unit", "transformer.h.0")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "transformer.h.{0..1} · GPT2Block, 2 equal units" in result.stdout
    assert "Conv1D » RowParallelLinear: attn.c_proj, mlp.c_proj" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_files_are_written_and_nothing_is_printed(model: Path, tmp_path: Path) -> None:
    result = run("diff", model, "--tp", 2, "--compare", "4", "--html", tmp_path / "d.html", "--dot", tmp_path / "d.dot")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.count("wrote ") == 2
    assert (tmp_path / "d.dot").read_text().startswith("digraph autotp {")
    page = (tmp_path / "d.html").read_text()
    assert "Permission is hereby granted" in page  # the libraries' licences are in it
    assert '<script src="' not in page
    assert '<link rel="stylesheet"' not in page


def test_nothing_but_json_is_printed(model: Path) -> None:
    result = run("diff", model, "--tp", 2, "--compare", "4,2", "--json")
    assert [diff["plan"]["tp"] for diff in json.loads(result.stdout)["diffs"]] == [2, 4]


def test_two_plans(model: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    assert run("plan", model, "--tp", 2, "--out", one).exit_code == 0
    assert run("plan", model, "--tp", 4, "--out", two).exit_code == 0
    result = run("diff", one, two)
    assert result.exit_code == 0
    assert "one.json" in result.stdout
    assert "transformer.h.{0..1}.attn.c_attn.weight" in result.stdout
    assert json.loads(run("diff", one, two, "--json").stdout)["tp"] == [2, 4]
    shown = run("diff", model, "--tp", 2, "--plan", one, "--unit", "lm_head")
    assert shown.exit_code == 0
    assert "lm_head · Linear" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt2",), "give the number of ranks, as in --tp 4, or a second plan"),
        (("gpt2", "--tp", 0), "tp must be a whole number of at least 1, not 0"),
        (("gpt2", "--tp", 2, "--context", -1), "--context must be at least 0, not -1"),
        (("a.json", "b.json", "--tp", 2), "two plans are compared as they are"),
        (("a.json", "b.json"), "PLAN_A: cannot read a.json: No such file"),
        (("gpt2", "--tp", 2, "--plan", "no.json"), "--plan: cannot read no.json: No such file"),
        (("gtp2", "--tp", 2), "did you mean 'gpt2'"),
    ],
)
def test_an_error_is_one_line(arguments: tuple[object, ...], message: str) -> None:
    result = run("diff", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("autotp: error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_unknown_unit_and_a_file_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    assert "no unit matches 'transformer.x.0'" in run("diff", model, "--tp", 2, "--unit", "transformer.x.0").stderr
    assert "cannot write --html" in run("diff", model, "--tp", 2, "--html", tmp_path / "no" / "d.html").stderr


def test_sizes_that_are_no_numbers_are_refused() -> None:
    result = run("diff", "gpt2", "--compare", "2,x")
    assert result.exit_code == 2
    assert "write it as 2,4,8" in result.stderr
