"""A narrow terminal, more ranks than cores, a model that is parallel already."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner
from torch import nn

import autotp
from autotp.cli import main
from autotp.errors import AutotpError
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from tests.families import FAMILIES

COMMANDS = (
    ("plan", "llama", "--tp", "2"),
    ("plan", "llama", "--compare", "2,4"),
    ("diff", "llama", "--tp", "2"),
    ("verify", "gpt2", "--tp", "2"),
    ("advise", "llama"),
    ("plan", "--help"),
)


@pytest.mark.long
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_terminal_of_forty_columns_loses_no_line(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.strip()


def more_than_cores() -> int:
    model = autotp.parallelize(build_model(FAMILIES["gpt2"].config(), meta=False))
    return sum(parameter.numel() for parameter in model.parameters())


def test_there_may_be_more_ranks_than_cores() -> None:
    size = min(2 * (os.cpu_count() or 1), 8)
    assert len(set(run_ranks(more_than_cores, size))) == 1


def twice() -> tuple[str, bool]:
    model: nn.Module = autotp.parallelize(build_model(FAMILIES["gpt2"].config(), meta=False))
    state, held = model.__dict__["_autotp"], {name: p.shape for name, p in model.named_parameters()}
    try:
        autotp.parallelize(model)
    except AutotpError as error:
        same = model.__dict__["_autotp"] is state and held == {name: p.shape for name, p in model.named_parameters()}
        return str(error), same
    return "", False


def test_a_model_is_made_parallel_once() -> None:
    for message, same in run_ranks(twice, 2):
        assert "is parallel already" in message
        assert "\n" not in message
        assert same
