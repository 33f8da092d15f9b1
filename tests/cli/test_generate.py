"""`autotp generate` on real processes: its text, its numbers, and that nothing survives it however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from autotp.cli import main
from autotp.cli.work import generate
from autotp.runtime.groups.launch import RankTraceback
from examples.train_tiny_lm import Learned, Recipe, train

SHORT = Recipe(steps=200, batch=8, length=64, vocabulary=400, width=64, layers=2, rate=1e-2)
PROMPT = "The statement"
HEADS, KEY_HEADS, WIDTH = 8, 2, 64
LONG = 1_000_000  # tokens: a command that is written off never ends by itself


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Learned]:
    folder = tmp_path_factory.mktemp("tiny_lm")
    return folder, train(folder, SHORT, verbose=False)


def command(folder: Path, *arguments: object) -> list[str]:
    return ["-m", "autotp.cli", "generate", str(folder), "--prompt", PROMPT, *map(str, arguments)]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


def dense(folder: Path, tokens: int) -> tuple[list[int], str]:
    """New tokens and new text of the whole model."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    written = LlamaForCausalLM.from_pretrained(folder).generate(ids, max_new_tokens=tokens, do_sample=False)
    new = written[0, ids.shape[1] :].tolist()
    return new, tokenizer.decode(new, skip_special_tokens=True)


def test_the_example_learns_its_text(checkpoint: tuple[Path, Learned]) -> None:
    _, learned = checkpoint
    assert sum(learned.losses[-10:]) / 10 < learned.unigram - 0.6 < learned.losses[0]


def test_ranks_of_its_own_write_the_whole_model_s_text(checkpoint: tuple[Path, Learned]) -> None:
    folder, _ = checkpoint
    tokens, text = dense(folder, 24)
    done = run(*command(folder, "--tp", 2, "--max-new-tokens", 24))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{PROMPT}{text}\n"
    assert f"{len(tokens)} tokens on 2 ranks, the first after " in done.stderr
    assert "tokens/s" in done.stderr


@pytest.mark.sweep
def test_ranks_of_torchrun_write_it_too_and_say_what_they_hold(checkpoint: tuple[Path, Learned]) -> None:
    folder, _ = checkpoint
    tokens, text = dense(folder, 24)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run(*launcher, *command(folder, "--max-new-tokens", 24, "--json"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["tp"], found["tokens"], found["text"], found["seed"]) == (2, tokens, text, None)
    cached = found["prompt_tokens"] + len(tokens) - 1
    whole = sum(p.numel() * p.element_size() for p in LlamaForCausalLM.from_pretrained(folder).parameters())
    for number, rank in enumerate(found["ranks"]):
        assert rank["rank"] == number
        assert rank["cache_bytes"] == 2 * SHORT.layers * cached * WIDTH // HEADS * KEY_HEADS // 2 * 4
        assert rank["parameter_bytes"] < 0.52 * whole
        assert rank["resident_bytes"] > 100e6


@pytest.mark.sweep
def test_a_killed_rank_is_named_and_nothing_survives(checkpoint: tuple[Path, Learned]) -> None:
    with writing(checkpoint[0]) as (process, ranks):
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert errors == "autotp: error: rank 1 was ended by signal 9 (SIGKILL)\n"


@pytest.mark.sweep
def test_ctrl_c_ends_everything_quietly(checkpoint: tuple[Path, Learned]) -> None:
    with writing(checkpoint[0]) as (process, _):
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (130, "\nautotp: interrupted\n")


@pytest.mark.sweep
def test_ranks_end_with_a_launcher_that_is_killed(checkpoint: tuple[Path, Learned]) -> None:
    with writing(checkpoint[0]) as (process, _):
        process.kill()
        process.wait(timeout=120)


@contextmanager
def writing(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A command that has begun to write on two ranks, with the ranks' processes; all are gone afterwards."""
    arguments = command(folder, "--tp", 2, "--max-new-tokens", LONG)
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # As in a terminal, whatever these tests were started by: a shell's background jobs ignore Ctrl-C, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(len(PROMPT) + 20).startswith(PROMPT)
        children = children_of(process.pid)
        (server,) = (child for child in children if "forkserver" in command_line(child))
        ranks = children_of(server)
        assert len(ranks) == 2
        yield process, ranks
        wait_until(lambda: not any(map(is_python_running, [*children, *ranks])))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def children_of(pid: int) -> list[int]:
    """In the order in which they were started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(status.parent.name))
    return sorted(found)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def is_python_running(pid: int) -> bool:
    """False for a process that is gone, and for one that has ended and only was not asked how."""
    return bool(command_line(pid))


def wait_until(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert holds()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-new-tokens", 0), "--max-new-tokens must be at least 1, not 0"),
        (("--top-k", 5), "--top-k changes nothing without --do-sample; add it"),
        (("--seed", 5), "--seed changes nothing without --do-sample; add it"),
        ((), "say on how many ranks of this machine with --tp N, or start them with torchrun"),
        (("--tp", 0), "tp must be a whole number of at least 1, not 0"),
        (("--tp", 1000), "--tp 1000 would start 1000 processes here; use at most 64, or torchrun"),
    ],
)
def test_a_wrong_argument_is_one_line(
    checkpoint: tuple[Path, Learned], arguments: tuple[object, ...], message: str
) -> None:
    refused(command(checkpoint[0], *arguments)[2:], message)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("llama", "'llama' is a type without weights; give a folder with a checkpoint, or a model id"),
        ("nowhere", "'nowhere' is no folder, no config.json and no model type"),
    ],
)
def test_a_model_without_weights_is_one_line(model: str, message: str) -> None:
    refused(["generate", model, "--tp", "2", "--prompt", "x"], message)


def test_another_number_of_ranks_than_torchrun_started_is_one_line(
    checkpoint: tuple[Path, Learned], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    refused(command(checkpoint[0], "--tp", 2)[2:], "torchrun started 4 ranks, and --tp is 2; leave it out, or start")


def test_what_a_rank_refuses_is_one_line(checkpoint: tuple[Path, Learned]) -> None:
    refused(["generate", str(checkpoint[0]), "--tp", "1", "--prompt", ""], "the prompt has no tokens")


def test_a_bug_on_a_rank_is_its_traceback_and_one_line(
    checkpoint: tuple[Path, Learned], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by\nzero") from RankTraceback(1, "Traceback: where it was")

    monkeypatch.setattr(generate, "run_ranks", broken)
    result = CliRunner().invoke(main, command(checkpoint[0], "--tp", 2)[2:], catch_exceptions=False)
    assert result.exit_code == 1
    assert result.stderr == "Traceback: where it was\nautotp: error: rank 1: ZeroDivisionError: by zero\n"


def refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"autotp: error: {message}")
    assert result.stderr.count("\n") == 1
