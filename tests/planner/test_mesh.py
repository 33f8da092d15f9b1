"""Mesh factors: the tensor-parallel size as a product over axes, common factors of several chains, padding."""

from __future__ import annotations

import math

import pytest

import autotp
from autotp.axes.layout import Cut, Factor, peers
from autotp.axes.term import Axis
from autotp.planner.mesh import Spread, refine, spreads
from autotp.planner.plan import ParameterPlan
from tests.families import FAMILIES, Family


def written(spread: Spread) -> str:
    """A spread as the sizes of its axes and their parts, in rank order."""
    return " ".join(f"{axis.size}/{parts}" for axis, parts in zip(spread.axes, spread.parts, strict=True))


def test_one_axis_takes_all_ranks() -> None:
    assert [written(spread) for spread in spreads([Axis(12)], 6)] == ["12/6"]


def test_two_axes_take_every_factorisation_in_either_order() -> None:
    found = {written(spread) for spread in spreads([Axis(2), Axis(4)], 6)}
    assert {"2/2 4/3", "4/3 2/2", "2/3 4/2", "4/2 2/3"} <= found
    alone = {frozenset(part for part in text.split() if not part.endswith("/1")) for text in found}
    assert alone == {
        frozenset({"2/6"}), frozenset({"4/6"}), frozenset({"2/2", "4/3"}), frozenset({"2/3", "4/2"}),
    }  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_parts_of_a_spread_make_up_the_ranks(ranks: int, count: int) -> None:
    axes = [Axis(5) for _ in range(count)]
    found = list(spreads(axes, ranks))
    assert found
    for spread in found:
        assert set(spread.axes) == set(axes)
        assert math.prod(spread.parts) == ranks
        own = [factor for cut in spread.cuts().values() for factor in cut.over]
        # Every rank has its own place: along all the factors together, everyone is everyone's peer.
        assert sorted(peers(0, tuple(own))) == list(range(ranks))


def test_a_cut_has_the_stride_of_the_parts_after_it() -> None:
    major, minor = Axis(2), Axis(4)
    cuts = Spread((major, minor), (2, 4)).cuts()
    assert cuts == {major: Cut((Factor(2, 4),), 2), minor: Cut((Factor(4, 1),), 4)}


def test_an_axis_of_one_part_is_not_cut() -> None:
    major, minor = Axis(2), Axis(4)
    assert Spread((major, minor), (1, 4)).cuts() == {minor: Cut((Factor(4, 1),), 4)}


@pytest.mark.parametrize(
    ("size", "parts", "padded"), [(8, 8, 8), (7, 2, 8), (2, 3, 3), (250, 4, 252), (2, 8, 8), (1, 4, 4), (160, 3, 162)]
)
def test_an_axis_is_padded_to_the_next_multiple(size: int, parts: int, padded: int) -> None:
    (cut,) = Spread((Axis(size),), (parts,)).cuts().values()
    assert (cut.padded, cut.local) == (padded, padded // parts)


def test_the_factors_of_another_chain_split_those_of_the_first() -> None:
    hidden, groups, repeats = Axis(160), Axis(2), Axis(4)
    cuts = refine(
        [
            {hidden: Cut((Factor(8, 1),), 160)},
            {groups: Cut((Factor(2, 4),), 2), repeats: Cut((Factor(4, 1),), 4)},
        ],
        8,
    )
    assert cuts == {
        hidden: Cut((Factor(2, 4), Factor(4, 1)), 160),
        groups: Cut((Factor(2, 4),), 2),
        repeats: Cut((Factor(4, 1),), 4),
    }


def test_splitting_a_factor_moves_no_data() -> None:
    whole, split = Cut((Factor(8, 1),), 160), Cut((Factor(2, 4), Factor(4, 1)), 160)
    assert peers(0, whole.over) == peers(0, split.over)


def test_a_factor_is_split_at_every_bound_inside_it() -> None:
    a, b, c = Axis(48), Axis(48), Axis(48)
    cuts = refine([{a: Cut((Factor(12, 1),), 48)}, {b: Cut((Factor(2, 6),), 48)}, {c: Cut((Factor(2, 1),), 48)}], 12)
    assert cuts is not None
    assert [str(factor) for factor in cuts[a].over] == ["2@6", "3@2", "2@1"]
    assert [str(factor) for factor in cuts[b].over] == ["2@6"]


def test_two_times_three_and_three_times_two_do_not_nest() -> None:
    a, b, c, d = (Axis(6) for _ in range(4))
    first = Spread((a, b), (2, 3)).cuts()
    second = Spread((c, d), (3, 2)).cuts()
    assert refine([first, second], 6) is None
    assert refine([first, Spread((d, c), (2, 3)).cuts()], 6) is not None


def layouts(family: Family, tp: int, **settings: int) -> dict[str, ParameterPlan]:
    """The parameters of the first block's plan by their last names."""
    config = type(family)(family.kind, {**family.settings, **settings}).config()
    plan = autotp.plan(config, tp)
    unit = next(unit for unit in plan.units if unit.instances[0].endswith(".0"))
    return {parameter.name.split(".", 1)[1]: parameter for parameter in unit.parameters if "." in parameter.name}


def test_28_heads_of_4_groups_on_8_ranks_pad_the_repeats() -> None:
    plan = layouts(FAMILIES["qwen2"], 8, num_attention_heads=28, num_key_value_heads=4, hidden_size=224)
    assert plan["q_proj.weight"].layouts == ("(4/4@2 · 7>8/2@1 · 8)", "224")
    assert plan["k_proj.weight"].layouts == ("(4/4@2 · 8)", "224")
    assert plan["o_proj.weight"].layouts == ("224", "(4/4@2 · 7>8/2@1 · 8)")
    assert plan["q_proj.weight"].local_shape == (4 * 8, 224)
    assert plan["q_proj.weight"].reason.startswith("cut in 8 ")
    assert plan["k_proj.weight"].reason.startswith("cut in 4 ")
    assert "padded" in plan["q_proj.weight"].reason
    assert "padded" not in plan["k_proj.weight"].reason


def test_2_groups_on_8_ranks_spread_over_groups_and_repeats() -> None:
    plan = layouts(FAMILIES["llama"], 8)
    assert plan["q_proj.weight"].layouts[0] == "(2/2@4 · 4/4@1 · 8)"
    assert plan["k_proj.weight"].layouts[0] == "(2/2@4 · 8)"
    assert plan["gate_proj.weight"].layouts[0] == "160/2@4,4@1"


def test_2_groups_on_3_ranks_pad_the_groups() -> None:
    plan = layouts(FAMILIES["llama"], 3)
    assert plan["q_proj.weight"].layouts[0] == "(2>3/3@1 · 32)"
    assert plan["k_proj.weight"].layouts[0] == "(2>3/3@1 · 8)"
    assert plan["gate_proj.weight"].layouts[0] == "160>162/3@1"


def test_6_ranks_prefer_what_wastes_least() -> None:
    """2 groups of 4 repeats, one of them padded to 3 parts: 2 of 8 query heads and 1 of 2 key heads; all else is more."""
    plan = layouts(FAMILIES["llama"], 6)
    assert plan["q_proj.weight"].layouts[0] in {"(2/2@3 · 4>6/3@1 · 8)", "(2>3/3@2 · 4/2@1 · 8)"}
    assert plan["q_proj.weight"].local_shape == (2 * 8, 64)
    assert plan["k_proj.weight"].local_shape == (8, 64)
