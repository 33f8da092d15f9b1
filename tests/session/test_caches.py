"""What writing a token reads of a cache is in the least time: such plans come from a survey of calls that keep one."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from autotp.capture.calls import call_opaque
from autotp.huggingface.models import build_model
from autotp.session.study import Study
from autotp.verify import verify
from tests.families import FAMILIES
from tests.zoo.kinds import CAUSAL, Kind
from tests.zoo.models import model_of


def keeps(study: Study) -> bool:
    return any(node.target is call_opaque for p in study.found.problems.values() for node in p.graph.nodes)


@pytest.mark.parametrize(("work", "kept"), [("decode", True), ("mix", True), ("training", False), ("prefill", False)])
def test_a_work_that_writes_tokens_is_planned_from_calls_that_keep_a_cache(work: str, kept: bool) -> None:
    assert keeps(Study(FAMILIES["llama"].config(), objective="time", workload=work)) is kept


def test_the_default_is_planned_from_calls_that_keep_none() -> None:
    assert not keeps(Study(FAMILIES["llama"].config()))


def test_the_state_of_a_state_space_is_read_for_each_token() -> None:
    """A rank that holds a part of the heads reads a part of the states."""
    study = Study(model_of(Kind("mamba2", CAUSAL)), objective="time", workload="decode", memory_gib=1e-5)
    assert keeps(study)
    parts = [study.estimate(study.plan(tp)).memory.cache for tp in (1, 2)]
    assert parts[1] < 0.75 * parts[0]


@pytest.mark.parametrize(("name", "layers"), [("inkling2_text", 6), ("mamba2", 1)])
def test_what_is_cut_without_a_cache_is_cut_with_one(name: str, layers: int) -> None:
    """The sixth block of the first has another kind of convolution."""
    model = build_model(AutoConfig.for_model(name, num_hidden_layers=layers))
    without, kept = (Study(model, objective="time", workload=work) for work in ("training", "decode"))
    assert keeps(kept)
    assert not keeps(without)

    def cut(study: Study) -> set[tuple[str, str]]:
        """Which parameters of which units some rule cuts; a key's own axis, which a cache has whole, is no rule's."""
        shapes = {unit.shape: unit.path for unit in reversed(study.found.units)}
        found = [(shapes[shape], own) for shape, p in study.found.problems.items() for own in p.proposals]
        return {(path, name) for path, own in found if own.rule.name != "axis" for name in own.parameters}

    assert cut(without)
    assert not cut(without) - cut(kept)


@pytest.mark.parametrize("name", ["llama", "mamba2", "inkling2_text"])
def test_such_plans_are_exact_in_calls_of_all_kinds(name: str) -> None:
    config = FAMILIES[name].config() if name in FAMILIES else model_of(Kind(name, CAUSAL))
    wishes = {"objective": "time", "memory_gib": 1e-5}
    assert any(p.placement == "column" for unit in Study(config, **wishes).plan(2).units for p in unit.parameters)  # type: ignore[arg-type]
    verify(config, tp=2, **wishes).raise_for_failure()  # type: ignore[arg-type]
