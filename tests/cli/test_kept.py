"""What a command says of a type of model is kept, and asked anew where anything that decides about it is another."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autotp.cli import main, shipped
from autotp.cli.work import advise, plan
from autotp.outside.kept import sources_digest
from tests.cli.test_light import run

RULES = Path(__file__).parents[2] / "rules"


class Asked:
    """How often a model was looked at, and what was printed."""

    def __init__(self) -> None:
        self.studies = 0

    def __call__(self, *arguments: object) -> str:
        return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False).output


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    asked = Asked()
    monkeypatch.setenv("AUTOTP_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(shipped, "FILE", tmp_path / "none")
    for work in (plan, advise):

        def study(*args: Any, study: Callable[..., Any] = work.Study, **kwargs: Any) -> Any:
            asked.studies += 1
            return study(*args, **kwargs)

        monkeypatch.setattr(work, "Study", study)
    return asked


QUESTIONS = [
    ("plan", "gpt2", "--tp", 2),
    ("plan", "gpt2", "--tp", 2, "--json"),
    ("plan", "gpt2", "--compare", "2,4"),
    ("plan", "gpt2", "--tp", 2, "--why", "transformer.h.0.mlp.c_fc.weight"),
    ("advise", "gpt2", "--batch", 4, "--tokens", 4096),
]


@pytest.mark.parametrize(
    "question",
    [pytest.param(question, marks=pytest.mark.sweep if "--why" in question else ()) for question in QUESTIONS],
    ids=lambda question: " ".join(map(str, question[2:])),
)
def test_the_same_question_has_the_same_answer_without_work(question: tuple[object, ...], ask: Asked) -> None:
    first = ask(*question)
    assert ask.studies == 1
    assert len(first) > 200
    assert ask(*question) == first
    assert ask.studies == 1


def test_another_question_is_asked_anew(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [ask("plan", "gpt2", "--tp", 2)]
    for other in (("--tokens", 1024), ("--objective", "memory"), ("--set", "transformer.h.*.mlp=replicate")):
        answers.append(ask("plan", "gpt2", "--tp", 2, *other))
    monkeypatch.setenv("COLUMNS", "80")
    answers.append(ask("plan", "gpt2", "--tp", 2))
    assert ask.studies == len(set(answers)) == 5


def test_rules_that_change_are_asked_anew(ask: Asked, tmp_path: Path) -> None:
    own = tmp_path / "rules" / "hardware"
    own.mkdir(parents=True)
    text = (RULES / "hardware" / "presets.toml").read_text().replace("[h100-nvlink-8]", "[mine]")
    (own / "mine.toml").write_text(text)
    question = ("plan", "gpt2", "--tp", 2, "--rules", tmp_path / "rules", "--hardware", "mine")
    ask(*question)
    ask(*question)
    assert ask.studies == 1
    (own / "mine.toml").write_text(text + "\n")
    sources_digest.cache_clear()  # a process reads its rules once
    ask(*question)
    assert ask.studies == 2


def test_versions_and_classes_that_change_are_asked_anew(
    ask: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = ("plan", "gpt2", "--tp", 2)
    ask(*question)
    (file,) = (tmp_path / "kept" / "answers").iterdir()
    known = json.loads(file.read_text())
    names = {Path(name).name for name in known["files"]}
    assert {"modeling_gpt2.py", "configuration_gpt2.py"} <= names
    other = tmp_path / "modeling_gpt2.py"
    other.write_text("class Other: pass\n")
    file.write_text(json.dumps(known | {"files": [str(other), *known["files"][1:]]}))
    ask(*question)
    assert ask.studies == 2
    for broken in ("no JSON", "[]", json.dumps({"text": "of another program"})):
        file.write_text(broken)
        ask(*question)
    assert ask.studies == 5
    ask(*question)
    assert ask.studies == 5
    true = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "torch" else true(name))
    ask(*question)
    assert ask.studies == 6


def test_a_folder_and_an_edited_plan_are_always_asked(ask: Asked, tmp_path: Path) -> None:
    from transformers import GPT2Config

    GPT2Config(n_embd=64, n_layer=2, n_head=8, vocab_size=256, n_positions=128).save_pretrained(tmp_path / "model")
    file = tmp_path / "plan.json"
    questions = [
        ("plan", tmp_path / "model", "--tp", 2),
        ("plan", "gpt2", "--tp", 2, "--out", file),
        ("plan", "gpt2", "--plan", file),
    ]
    for question in questions * 2:
        ask(*question)
    assert ask.studies == 6


def test_what_is_kept_may_be_asked_again(ask: Asked) -> None:
    question = ("plan", "gpt2", "--tp", 2)
    first = ask(*question)
    assert ask(*question, "--again") == first
    assert ask.studies == 2
    assert ask(*question) == first
    assert ask.studies == 2
    other = ask("plan", "gpt2", "--tp", 4, "--again")
    assert ask("plan", "gpt2", "--tp", 4) == other
    assert ask.studies == 3


def test_a_folder_that_cannot_be_written_costs_time_alone(ask: Asked, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file in its place")
    assert ask("plan", "gpt2", "--tp", 2) == ask("plan", "gpt2", "--tp", 2)
    assert ask.studies == 2


def test_an_answer_that_is_known_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    first, again = (run("plan", "gpt2", "--tp", "3", AUTOTP_CACHE=str(tmp_path)) for _ in range(2))
    assert "torch" in first.stderr.splitlines()[-1]
    assert not {"torch", "transformers", "sympy"} & set(again.stderr.split())
    assert again.stdout == first.stdout


def test_colours_are_those_of_the_first_time(tmp_path: Path) -> None:
    """In a pipe there is none, unless it is forced; what is kept for one is not shown to the other."""
    question = ("plan", "gpt2", "--tp", "3")
    outputs = [
        run(*question, AUTOTP_CACHE=str(tmp_path), **{name: "1"}).stdout for name in ("FORCE_COLOR", "NO_COLOR") * 2
    ]
    assert [("\x1b[" in output) for output in outputs] == [True, False] * 2
    assert outputs[:2] == outputs[2:]
