"""What a terminal wants of every command: completion, help with examples, no colour on request, and pipes."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result
from rich.text import Text

from autotp.cli import main
from autotp.report import make_console
from tests.families import FAMILIES


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    FAMILIES["llama"].config().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str) -> None:
    script = run("completion", shell).stdout
    assert "autotp" in script
    assert "_AUTOTP_COMPLETE" in script


def completed(*words: str) -> list[str]:
    items = BashComplete(main, {}, "autotp", "_AUTOTP_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in items]


def test_commands_options_models_and_nodes_are_completed() -> None:
    assert {"plan", "advise", "export"} <= set(completed(""))
    assert completed("plan", "llama", "--comp") == ["--compare"]
    assert {"gpt_neo", "gpt_neox"} <= set(completed("plan", "gpt_ne"))
    assert completed("plan", "llama", "--hardware", "l4") == ["l4-pcie-4"]
    assert completed("export", "llama", "--to", "tp") == ["tp_plan"]


@pytest.mark.parametrize("name", sorted(main.commands))
def test_help_has_an_example_and_every_option_a_text(name: str) -> None:
    command = main.commands[name]
    assert (
        f"autotp {name}" in run(name, "--help").stdout.replace("Usage: main", "").partition("Options:")[0]
        or name == "demo"
    )
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None), parameter.name


def test_no_color_is_plain_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed = []
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        stream = Terminal()
        make_console(stream).print(Text("equal", "bold green"))
        printed.append(stream.getvalue())
    assert printed == ["\x1b[1;32mequal\x1b[0m\n", "equal\n"]


def test_no_color_is_an_option_of_every_command(monkeypatch: pytest.MonkeyPatch, llama: Path) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert run("plan", llama, "--tp", 2, "--no-color").exit_code == 0
    assert all(any(p.name == "no_color" for p in command.params) for command in main.commands.values())


@pytest.mark.sweep
def test_a_pipe_that_closes_is_no_traceback(llama: Path) -> None:
    command = f"{sys.executable} -m autotp.cli plan {llama} --tp 2 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["model", "LlamaForCausalLM"]
    assert "Traceback" not in done.stderr


@pytest.mark.sweep
def test_compare_why_and_advice(llama: Path) -> None:
    compared = run("plan", llama, "--compare", "2,4", "--tokens", 256, "--batch", 4)
    assert compared.exit_code == 0
    assert "tp 2" in compared.stdout
    assert max(map(len, compared.stdout.splitlines())) <= 120
    explained = run("plan", llama, "--tp", 4, "--why", "model.layers.0.self_attn.q_proj.weight")
    assert "2 times 4 times (2 segments of 4), major to minor" in explained.stdout
    advised = run("advise", llama, "--tokens", 256, "--batch", 4, "--serve")
    assert advised.stdout.splitlines()[-1].startswith("use tp ")
    exported = run("export", llama, "--tp", 2, "--to", "tp_plan")
    assert '"model.layers.*.self_attn.q_proj": "colwise"' in exported.stdout


def test_an_edited_plan_is_shown_or_refused(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert run("plan", llama, "--tp", 2, "--set", "model.layers.*.mlp=replicate", "--out", file).exit_code == 0
    shown = run("plan", llama, "--plan", file)
    assert shown.exit_code == 0
    assert "1 all-reduce" in next(line for line in shown.stdout.splitlines() if line.startswith("model.layers.{0..1}"))
    file.write_text(file.read_text().replace('"160"', '"160/2@1"', 1))
    refused = run("plan", llama, "--plan", file)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("autotp: error: ")
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "llama"), "give one of --tp N, --compare N,N and --plan FILE"),
        (("plan", "llama", "--compare", "2,4", "--out", "x"), "--why and --out are about one plan"),
        (("plan", "llama", "--tp", 2, "--set", "mlp"), "'mlp' is no setting; write PATTERN=replicate"),
        (("advise", "llama", "--batch", 3), "4096 tokens cannot be 3 sequences of equal length"),
        (("export", "llama", "--to", "torch"), "give either --tp N or --plan FILE"),
        (("diff", "llama", "--against", "tp_plan"), "--against compares two ways to cut one model"),
    ],
)
def test_arguments_that_do_not_go_together_are_one_line(arguments: tuple[object, ...], message: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"autotp: error: {message}")
    assert result.stderr.count("\n") == 1
