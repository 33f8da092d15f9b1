"""The command line: what it prints, what it returns, and that an error is one line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from transformers import GPT2Config, LlamaConfig

from autotp.cli import main
from autotp.cli.work import verify as verify_module
from autotp.planner.plan import Plan
from autotp.verify import CallReport, Difference, Report


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    config = GPT2Config(n_embd=64, n_layer=2, n_head=8, vocab_size=256, n_positions=128, bos_token_id=1, eos_token_id=1)
    config.save_pretrained(tmp_path)
    return tmp_path / "config.json"


def rows(text: str) -> list[list[str]]:
    """The cells of every line, which are at least two blanks apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_plan_shows_what_is_cut_and_what_is_not(gpt2: Path) -> None:
    result = run("plan", gpt2, "--tp", 2)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120
    found = rows(result.stdout)
    assert ["model", "GPT2LMHeadModel"] in found
    assert ["transformer.h.{0..1}, 2 equal units"] in found
    assert ["│", "├─ h.{0..1}"] in found
    assert ["│", "│", "│", "├─ weight", "column", "64 × 256", "64 × 128", "64, 256/2@1", "mlp"] in found
    assert ["│", "│", "├─ weight", "row", "256 × 64", "128 × 64", "256/2@1, 64", "mlp"] in found
    assert ["transformer.h.{0..1}", "2", "2 all-reduce", "2 all-reduce", "-", "2 MiB", "35.9 µs"] in found
    assert any(row[0] == "transformer.ln_f.weight" and "no unit" in row[-1] for row in found if row)


def test_plan_prints_nothing_but_json_and_reads_it_back(gpt2: Path, tmp_path: Path) -> None:
    result = run("plan", gpt2.parent, "--tp", 2, "--json", "--out", tmp_path / "plan.json", "--tokens", 64)
    assert result.exit_code == 0
    plan = Plan.from_json(result.stdout)
    assert plan == Plan.load(tmp_path / "plan.json")
    assert (plan.tp, plan.tokens) == (2, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "gtp2", "--tp", 2), "'gtp2' is no folder, no config.json and no model type; did you mean 'gpt2'"),
        (("plan", "gpt2", "--tp", 0), "tp must be a whole number of at least 1, not 0"),
        (("plan", "gpt2", "--tp", 2, "--tokens", 0), "--tokens must be at least 1, not 0"),
        (("plan", "gpt2", "--tp", 2, "--rules", "/nowhere"), "the rules folder /nowhere does not exist"),
        (("verify", "gpt2", "--tp", 2, "--tiny", "--plan", "p"), "give --tiny or --plan, not both: a plan fits one"),
        (("verify", "gpt2", "--tp", 2, "--plan", "/nowhere"), "--plan: cannot read /nowhere: No such file"),
        (("demo", "--tp", 0), "tp must be a whole number of at least 1, not 0"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: tuple[object, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"autotp: error: {message}")
    assert result.stderr.count("\n") == 1


def test_an_unexpected_error_is_not_swallowed(monkeypatch: pytest.MonkeyPatch, gpt2: Path) -> None:
    def broken(*_: object, **__: object) -> Report:
        raise ZeroDivisionError

    monkeypatch.setattr(verify_module, "verify", broken)
    with pytest.raises(ZeroDivisionError):
        run("verify", gpt2, "--tp", 2)


def test_verify_a_small_checkpoint(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=256,
    )
    config.save_pretrained(tmp_path)
    result = run("verify", tmp_path, "--tp", 2, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert json.loads(result.stdout)["ok"]


def test_verify_a_type_takes_a_small_model_of_it() -> None:
    result = run("verify", "llama", "--tp", 2)
    assert result.exit_code == 0
    assert result.stderr == "llama is a type, not a checkpoint: verifying a small model of it\n"
    assert result.stdout.splitlines()[-1].startswith("equal: all 25 tensors are within 1e-09")


@pytest.mark.sweep
def test_positions_are_cut_where_asked() -> None:
    result = run("verify", "llama", "--tp", 2, "--sequence-parallel")
    assert result.exit_code == 0
    assert "reduce-scatter" in result.stdout
    plan = Plan.from_json(run("plan", "llama", "--tp", 2, "--sequence-parallel", "--json").stdout)
    assert [c.nodes for c in plan.around] == [("model.layers.0",), ("model.layers.31",)]


@pytest.mark.sweep
def test_verify_takes_a_plan_from_a_file(gpt2: Path, tmp_path: Path) -> None:
    assert run("plan", gpt2, "--tp", 2, "--out", tmp_path / "plan.json").exit_code == 0
    assert run("verify", gpt2, "--tp", 2, "--plan", tmp_path / "plan.json").exit_code == 0
    other = run("verify", gpt2, "--tp", 4, "--plan", tmp_path / "plan.json")
    assert other.exit_code == 2
    assert "the plan is for 2 ranks" in other.stderr


def test_verify_refuses_a_large_model_and_says_what_to_do(tmp_path: Path) -> None:
    LlamaConfig().save_pretrained(tmp_path)
    result = run("verify", tmp_path, "--tp", 2)
    assert result.exit_code == 2
    assert "6,738,415,616 parameters, too many to simulate; add --tiny" in result.stderr


@pytest.mark.parametrize(
    ("error", "counted", "verdict"),
    [
        (0.5, 1, "NOT equal: 1 of 2 tensors differ by more than 1e-09"),
        (float("nan"), 1, "NOT equal: 1 of 2 tensors differ by more than 1e-09"),
        (0.0, 2, "NOT equal: other collectives ran than were planned"),
    ],
)
def test_a_failed_verification_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, gpt2: Path, error: float, counted: int, verdict: str
) -> None:
    name = "all_reduce forward activation"
    output, gradient = Difference("output 0", 0.0), Difference("w", error)
    found = Report("Toy", 2, (output,), (gradient,), {name: 1}, {name: counted}, elements=(10, 5))
    monkeypatch.setattr(verify_module, "verify", lambda *_, **__: found)
    result = run("verify", gpt2, "--tp", 2)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == verdict
    assert ["all-reduce forward activation", "1", str(counted)] in rows(result.stdout)


def test_a_failed_verification_names_the_call(monkeypatch: pytest.MonkeyPatch, gpt2: Path) -> None:
    same, other = Difference("w", 0.0, "call 1 (eval)"), Difference("w", 0.5, "call 2 (other inputs, training)")
    calls = tuple(CallReport(found.call, (), (found,), {}, {}) for found in (same, other))
    found = Report("Toy", 2, (), (other,), {}, {}, elements=(10, 5), calls=calls)
    monkeypatch.setattr(verify_module, "verify", lambda *_, **__: found)
    result = run("verify", gpt2, "--tp", 2)
    assert result.exit_code == 1
    assert ["w", "gradient", "call 2 (other inputs, training)", "5.0e-01"] in rows(result.stdout)
    assert result.stdout.splitlines()[-1].endswith("differ by more than 1e-09, in call 2 (other inputs, training)")


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("autotp, version ")
    assert "autotp verify gpt2 --tp 2" in run("--help").stdout
