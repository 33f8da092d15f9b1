"""The bytes a plan predicts are the bytes that are sent, counted at every collective of a training step."""

from __future__ import annotations

import copy
from collections import Counter

import pytest

from autotp.dispatch.apply import apply_plan
from autotp.planner.cost import wire_bytes
from autotp.planner.formula import evaluate, sizes
from autotp.planner.plan import Plan
from autotp.runtime.groups.log import CollectiveCall
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Verifier, run
from tests.families import FAMILIES

# Each with something of its own: groups, fused projections, parallel branches, multi-query, biases, low-rank projections,
# statistics over cut heads, an encoder.
SENT = (
    *("llama", "qwen3", "phi3", "gpt2", "gptj", "gpt_neox"),
    *("falcon_multi_query", "bloom", "cohere", "deepseek_v2", "olmo2", "bert"),
)
BATCH, SEQUENCE = 3, 13  # of the example that a Verifier runs


def predicted(plan: Plan, element_bytes: int) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for unit in plan.units:
        for c in unit.collectives:
            size = evaluate(c.elements, sizes(BATCH, SEQUENCE)) * element_bytes
            found[c.kind, c.phase, c.of] += len(unit.instances) * wire_bytes(c.kind, size, c.ranks)  # type: ignore[assignment]
    return found


def counted(calls: list[CollectiveCall]) -> Counter[tuple[str, str, str]]:
    """What each call sends in a ring; a gather is noted with the part that a rank brings."""
    found: Counter[tuple[str, str, str]] = Counter()
    for call in calls:
        whole = call.elements * call.element_bytes * (call.ranks if call.kind == "all_gather" else 1)
        found[call.kind, call.phase, call.of] += wire_bytes(call.kind, whole, call.ranks)  # type: ignore[assignment]
    return found


@pytest.mark.sample(4)
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SENT)
def test_predicted_bytes_are_sent(name: str) -> None:
    verifier = Verifier(FAMILIES[name].config())
    for tp in (2, 4) if name == "phi3" else (2,):
        plan = verifier.plan(tp)
        compilers = verifier.session.compilers(plan)

        def step(ranks: Ranks, plan: Plan = plan, compilers=compilers) -> list[CollectiveCall]:  # type: ignore[no-untyped-def]
            parallel = apply_plan(copy.deepcopy(verifier.dense), plan, ranks, compilers)
            with ranks.logging() as log:
                run(parallel, verifier.call, 0, verifier.paths)
            return log.calls

        for calls in simulate(tp, step):
            assert counted(calls) == pytest.approx(predicted(plan, element_bytes=8))
