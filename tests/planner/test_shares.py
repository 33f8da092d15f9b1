"""What is computed at least under cuts that no operator here has: no more than what is, and as much where nothing is gathered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotp.errors import UnsoundPlanError
from autotp.planner.formula import sizes
from autotp.planner.plan import Plan, UnitPlan
from autotp.planner.shares import by_segments, least_work
from autotp.planner.work import Work, work_of
from autotp.session.study import Study
from tests.families import FAMILIES, MIXTURES

VALUES = sizes(2, 64)


def flops(work: Work) -> float:
    return Work.number(work.flops, VALUES)


def works(study: Study, plan: Plan) -> list[tuple[Work, Work]]:
    """Of every block what a rank computes, and at least."""
    shapes = {unit.path: unit.shape for unit in study.found.units}
    found = []
    for unit in plan.units:
        traced = study.found.traced[shapes[unit.instances[0]]]
        given = traced, study.machine, study.workload, study.folders
        found.append((work_of(unit, *given, plan.tp), least_work(unit, *given)))
    return found


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "bloom", "gpt_neox", "mixtral", "deepseek_v2"])
def test_it_is_a_bound_of_our_own_plans(name: str) -> None:
    study = Study((FAMILIES | MIXTURES)[name].config())
    for exact, least in works(study, study.plan(1)):
        assert flops(least) == pytest.approx(flops(exact), rel=1e-9)
        assert least.read == exact.read
    for exact, least in works(study, study.plan(2)):
        assert flops(least) <= flops(exact) * (1 + 1e-9)
        if name in ("llama", "gpt2", "gpt_neox"):  # nothing is gathered, and no heads are whole
            assert flops(least) == pytest.approx(flops(exact), rel=1e-9)
        assert least.read == pytest.approx(exact.read)


def test_attention_is_whole_where_only_the_feed_forward_is_cut() -> None:
    """A row-parallel projection after it does not make it a part."""
    study = Study(FAMILIES["llama"].config(), settings={"model.layers.*.self_attn": "replicate"})
    plan = study.plan(2)
    blocks = [pair for pair, unit in zip(works(study, plan), plan.units, strict=True) if len(unit.instances) > 1]
    assert blocks
    for exact, least in blocks:
        assert flops(least) == pytest.approx(flops(exact), rel=1e-9)


def test_cuts_that_no_operator_has_are_priced_by_weight() -> None:
    """Columns of a fused projection, as other systems cut them before they gather."""
    study = Study(FAMILIES["phi3"].config())
    plan = study.plan(2)
    block = next(unit for unit in plan.units if len(unit.instances) > 1)

    def by_columns(unit_plan: Plan) -> Plan:
        unit = next(each for each in unit_plan.units if len(each.instances) > 1)
        parameters = tuple(
            replace(p, layouts=(f"{p.shape[0]}/2@1", str(p.shape[1])), local_shape=(p.shape[0] // 2, p.shape[1]))
            if p.name.endswith("qkv_proj.weight")
            else p
            for p in unit.parameters
        )
        units = tuple(replace(each, parameters=parameters) if each is unit else each for each in unit_plan.units)
        return replace(unit_plan, units=units)

    changed = by_columns(plan)
    shape = next(unit.shape for unit in study.found.units if unit.path == block.instances[0])
    given = study.found.traced[shape], study.machine, study.workload, study.folders
    unit = next(each for each in changed.units if len(each.instances) > 1)
    with pytest.raises(UnsoundPlanError):
        work_of(unit, *given, 2)
    assert 0 < flops(least_work(unit, *given)) <= flops(work_of(block, *given, 2)) * (1 + 1e-9)


def test_segments_cut_in_one_piece_count_as_if_each_were_cut() -> None:
    """Halves of a gate beside its values: on two ranks one has all gates. Right, it computes what a plan of parts does."""
    study = Study(FAMILIES["phi3"].config())
    block = next(unit for unit in study.plan(2).units if len(unit.instances) > 1)
    traced = study.found.traced[next(unit.shape for unit in study.found.units if unit.path == block.instances[0])]
    given = traced, study.machine, study.workload, study.folders

    def in_one_piece(unit: UnitPlan) -> UnitPlan:
        parameters = (
            replace(p, layouts=(f"{p.shape[0]}/2@1", *p.layouts[1:])) if p.name == "mlp.gate_up_proj.weight" else p
            for p in unit.parameters
        )
        return replace(unit, parameters=tuple(parameters))

    wrong = in_one_piece(block)
    with pytest.raises(UnsoundPlanError):
        work_of(wrong, *given, 2)
    assert work_of(by_segments(wrong, traced, study.folders), *given, 2) == work_of(block, *given, 2)
