"""Families that differ in how they attend, join or are called: a sample of `make zoo` on simulated ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autotp.verify import Verifier
from tests.contract.parts import HIDDEN, Mlp, twins, values
from tests.zoo.coverage import is_cut
from tests.zoo.kinds import BASE, CAUSAL, Kind
from tests.zoo.measure import RIGHT, Record, measure, whole_calls

# Family -> ranks. Each has something the others have not: sinks, cross attention, experts, scans, parts of heads in a cache,
# a forward that looks at values, numbers and shapes as arguments, layers that are chosen by name.
SAMPLE = {
    "big_bird": 4,
    "bitnet": 3,
    "blt": 2,
    "ctrl": 4,
    "doge": 4,
    "falcon_mamba": 2,
    "gpt_bigcode": 4,
    "gpt_oss": 2,
    "minimax_m2": 4,
    "mixtral": 4,
    "mllama": 2,
    "moshi": 4,
    "nanochat": 4,
    "olmoe": 2,
    "openai-gpt": 4,
    "persimmon": 4,
    "roformer": 2,
    "trocr": 2,
    "whisper": 4,
    "xlm": 4,
    "xlm-roberta-xl": 4,
    "xmod": 2,
}
# `make test` has the most different ones.
FIRST = {"big_bird", "bitnet", "gpt_oss", "minimax_m2", "mllama", "whisper", "xlm"}
# Two towers whose results meet, convolutions whose kernels are made from the sequence, and stages of blocks that grow wider.
BASES = {"clip": 2, "convbert": 4, "hiera": 2}


@pytest.mark.sample(1, sweep=2, others="long")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST else pytest.mark.long) for name in SAMPLE]
)
def test_a_family_is_right_and_cut(name: str) -> None:
    (record,) = measure(Kind(name, CAUSAL), (SAMPLE[name],))
    assert is_cut(record), record
    assert record.tokens == "equal" or "dense model does not write" in record.tokens


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*computes some calls with whole weights")  # of which none are gathered, see below
@pytest.mark.parametrize("name", ["deepseek_v4", "xlstm"])
def test_what_keeps_parts_of_its_state_in_objects_is_cut_in_every_kind_of_call(name: str) -> None:
    """Compressed keys, and states of recurrences: a call with a cache, one without, training and generation gather no weights."""
    (record,) = measure(Kind(name, CAUSAL), (2,))
    assert is_cut(record), record
    assert not record.whole


@pytest.mark.parametrize("name", BASES)
def test_a_base_model_is_right_and_cut(name: str) -> None:
    (record,) = measure(Kind(name, BASE), (BASES[name],))
    assert is_cut(record), record


class CountsInTraining(Mlp):
    def middle(self, y: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls = getattr(self, "calls", 0) + 1
            y = y * self.up.weight.softmax(1)[:, 0]
        return y.relu()


def test_a_call_that_runs_whole_is_counted_and_a_family_of_such_is_not_cut() -> None:
    """A block that writes state, and reads a weight itself, in training gathers that weight there, whatever the plan says."""
    verifier = Verifier(twins(lambda index: CountsInTraining()), example=(values(2, 5, HIDDEN),))
    whole = whole_calls(verifier, verifier.plan(2), generation=False)
    assert list(whole) == ["training"]
    assert "computes some calls with whole weights" in whole["training"]
    record = Record("made up", CAUSAL, 2, RIGHT, fraction=0.5)
    assert is_cut(record)
    assert not is_cut(replace(record, whole=whole))


def test_a_model_that_computes_with_its_parts_in_every_call_counts_none() -> None:
    verifier = Verifier(twins(Mlp), example=(values(2, 5, HIDDEN),))
    assert whole_calls(verifier, verifier.plan(2), generation=False) == {}
