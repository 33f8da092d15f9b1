"""Terms, their unification, and the layouts that are read off them."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from contextlib import suppress
from fractions import Fraction
from random import Random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autotp.axes.layout import (
    PADDING,
    Cut,
    Factor,
    Layout,
    Leaf,
    ProductLayout,
    SumLayout,
    factors_of,
    is_padded,
    layout_of,
    leaves,
    local_factors,
    local_indices,
    ordered,
    parts_of,
)
from autotp.axes.layout_text import parse_layout
from autotp.axes.term import ONE, Axis, Pin, Product, Sum, Term, axes_of, axis, pin, resolve
from autotp.axes.unify import CannotUnify, unify
from autotp.errors import PlanError
from autotp.runtime.collectives.slices import join, take

quick = settings(deadline=None, derandomize=True, max_examples=150)
WHY = Pin("softmax", "aten.softmax", "it is normalised along this dimension")


def sizes(term: Term) -> object:
    """A term as nested lists of sizes: tuples are products, lists are sums."""
    term = resolve(term)
    if isinstance(term, Axis):
        return term.size
    parts = map(sizes, term.parts)
    return tuple(parts) if isinstance(term, Product) else list(parts)


def product(*parts: int) -> Product:
    return Product(tuple(map(axis, parts)))


def total(*parts: int) -> Sum:
    return Sum(tuple(map(axis, parts)))


# -- terms ---------------------------------------------------------------------------------------------------------


def test_a_size_of_one_needs_no_unknown() -> None:
    assert axis(1) is ONE
    assert ONE.size == 1
    assert sizes(product(1, 4, 1)) == 4


def test_nested_products_and_sums_are_flat() -> None:
    a, b, c = axis(2), axis(3), axis(4)
    assert list(axes_of(Product((a, Product((b, c)))))) == [a, b, c]
    assert sizes(Product((a, Product((b, c))))) == (2, 3, 4)
    assert sizes(Sum((a, Sum((b, c))))) == [2, 3, 4]
    assert sizes(Sum((Product((a, b)), c))) == [(2, 3), 4]
    assert Product((a, Sum((b, c)))).size == 14


def test_a_term_is_read_through_its_bindings() -> None:
    a = axis(12)
    outer = Product((axis(2), a))
    assert sizes(outer) == (2, 12)
    unify(a, product(3, 4))
    assert sizes(outer) == (2, 3, 4)
    unify(outer.parts[0], axis(2))
    (inner,) = (each for each in axes_of(outer) if each.size == 4)
    unify(inner, product(2, 2))
    assert sizes(outer) == (2, 3, 2, 2)
    assert sizes(resolve(outer)) == (2, 3, 2, 2)


# -- unification ---------------------------------------------------------------------------------------------------


def test_an_axis_becomes_what_it_is_equal_to() -> None:
    a, parts = axis(12), product(3, 4)
    unify(a, parts)
    assert resolve(a) is resolve(parts) or list(axes_of(a)) == list(axes_of(parts))


def test_products_are_refined_from_the_minor_side() -> None:
    left, right = product(4, 6), product(2, 12)
    unify(left, right)
    assert sizes(left) == sizes(right) == (2, 2, 6)
    assert list(axes_of(left)) == list(axes_of(right))


def test_sums_are_refined_from_the_start() -> None:
    left, right = total(3, 5), total(2, 6)
    unify(left, right)
    assert sizes(left) == sizes(right) == [2, (), 5]
    assert list(axes_of(left)) == list(axes_of(right))


def test_segments_of_equal_size_become_equal() -> None:
    left, right = total(3, 5), total(3, 5)
    unify(left, right)
    assert list(axes_of(left)) == list(axes_of(right))


def test_a_product_is_distributed_over_a_sum() -> None:
    left, right = product(5, 4), total(8, 12)
    unify(left, right)
    assert sizes(left) == ([2, 3], 4)
    assert sizes(right) == [(2, 4), (3, 4)]
    assert set(axes_of(left)) == set(axes_of(right))


def test_a_sum_inside_a_product_is_found_from_both_sides() -> None:
    heads, dim = axis(4), axis(6)
    fused = axis(24)
    unify(fused, Product((heads, dim)))
    unify(dim, total(2, 2, 2))
    assert sizes(fused) == (4, [2, 2, 2])


@pytest.mark.parametrize(
    ("left", "right", "reason"),
    [
        (product(2, 3), product(7), "sizes 6 and 7 differ"),
        (product(4, 3), product(3, 4), "3 does not divide 4"),
        (product(2, 5), total(3, 7), "no common minor factor"),
        (product(2, 12), total(6, 18), "no common minor factor"),
        (product(4, 0), product(0, 2), "0 does not divide 2"),
        (product(4, 0), total(0, 0), "no common minor factor"),
    ],
    ids=str,
)
def test_terms_that_cannot_be_refined_are_refused(left: Term, right: Term, reason: str) -> None:
    with pytest.raises(CannotUnify, match=reason):
        unify(left, right)


def test_a_term_may_not_contain_itself() -> None:
    a = axis(6)
    with pytest.raises(CannotUnify, match="contain itself"):
        unify(a, Sum((a, Axis(0))))


def test_a_term_is_equal_to_itself() -> None:
    a = Axis(6)
    unify(a, Product((ONE, a)))
    assert a.bound is None


def test_a_sum_shifted_against_itself_leaves_nothing_to_cut() -> None:
    """x[1:] + x[:-1] says that every element is like its neighbour."""
    a = axis(5)
    unify(Sum((ONE, a)), Sum((a, ONE)))
    assert list(axes_of(a)) == []


def test_a_long_sum_shifted_against_itself_is_refused() -> None:
    a = axis(1_000_003)
    with pytest.raises(CannotUnify, match="shifted against each other"):
        unify(Sum((ONE, a)), Sum((a, ONE)))


def test_many_segments_of_equal_sizes_are_not_shifted() -> None:
    left, right = total(*[3] * 200), total(*[3] * 200)
    unify(left, right)
    assert list(axes_of(left)) == list(axes_of(right))


def factorings(size: int) -> st.SearchStrategy[list[int]]:
    """Ways to write a size as a product."""
    divisors = [d for d in range(2, size + 1) if size % d == 0]
    if not divisors:
        return st.just([])
    return st.sampled_from(divisors).flatmap(lambda d: factorings(size // d).map(lambda rest: [d, *rest]))


@quick
@given(st.sampled_from([8, 12, 24, 36, 60]).flatmap(lambda n: st.tuples(factorings(n), factorings(n))))
def test_unified_products_have_the_same_axes(parts: tuple[list[int], list[int]]) -> None:
    left, right = (product(*own) for own in parts)
    try:
        unify(left, right)
    except CannotUnify:
        assume(False)
    assert list(axes_of(left)) == list(axes_of(right))
    assert math.prod(a.size for a in axes_of(left)) == left.size


@quick
@given(st.integers(2, 40), st.sets(st.integers(1, 39)), st.sets(st.integers(1, 39)))
def test_unified_sums_have_a_boundary_where_either_had_one(size: int, first: set[int], second: set[int]) -> None:
    def cut_at(places: set[int]) -> Sum:
        edges = [0, *sorted(p for p in places if p < size), size]
        return total(*(b - a for a, b in itertools.pairwise(edges)))

    left, right = cut_at(first), cut_at(second)
    unify(left, right)
    resolved = [resolve(term) for term in (left, right)]
    ends = [set(itertools.accumulate(p.size for p in (t.parts if isinstance(t, Sum) else [t]))) for t in resolved]
    assert ends[0] == ends[1] == {p for p in first | second if p < size} | {size}
    assert list(axes_of(left)) == list(axes_of(right))


@quick
@given(st.randoms(use_true_random=False))
def test_random_equations_are_refined_or_refused(random: Random) -> None:
    """Views, slices, joins and equalities in any order: sizes stay, and every term can be read."""
    pool: list[Term] = [axis(random.choice([6, 8, 12])) for _ in range(3)]
    for _ in range(8):
        term, other = random.choice(pool), random.choice(pool)
        place = random.randint(1, term.size - 1)
        divisor = random.choice([d for d in range(1, term.size + 1) if term.size % d == 0])
        made: list[Term] = [total(place, term.size - place), product(divisor, term.size // divisor), other]
        choice = random.choice([part for part in made if part.size == term.size])
        with suppress(CannotUnify):
            unify(term, choice)
        joined = Sum((term, other)) if random.random() < 0.5 else Product((term, other))
        parts = choice.parts if isinstance(choice, Product | Sum) else ()
        pool += [part for part in (*parts, joined) if 1 < part.size < 600]
    assert all(resolve(term).size == term.size for term in pool)


# -- pins ----------------------------------------------------------------------------------------------------------


def test_a_pin_reaches_the_axes_of_a_term() -> None:
    whole = product(2, 3)
    pin(whole, WHY)
    assert [a.pins for a in axes_of(whole)] == [[WHY], [WHY]]
    assert str(WHY) == "softmax (aten.softmax): it is normalised along this dimension"


def test_a_pin_outlives_what_the_axis_is_bound_to() -> None:
    a, parts = axis(12), product(3, 4)
    pin(a, WHY)
    unify(a, parts)
    assert [part.pins for part in axes_of(parts)] == [[WHY], [WHY]]


@pytest.mark.parametrize("first", [True, False])
def test_a_pin_is_shared_by_equal_axes(first: bool) -> None:
    a, b = axis(5), axis(5)
    pin(a if first else b, WHY)
    unify(a, b)
    assert [part.pins for part in axes_of(a)] == [[WHY]]


def test_a_pin_set_after_binding_holds_for_both_sides() -> None:
    a, parts = axis(12), product(3, 4)
    unify(a, parts)
    pin(a, WHY)
    assert [part.pins for part in axes_of(parts)] == [[WHY], [WHY]]


def test_a_split_axis_passes_its_pin_to_both_factors() -> None:
    a = axis(12)
    pin(a, WHY)
    unify(product(4, 3), Product((a,)))
    assert all(part.pins for part in axes_of(a))


# -- layouts -------------------------------------------------------------------------------------------------------

MESH = (Factor(2, 1), Factor(3, 2))
RANKS = math.prod(factor.size for factor in MESH)


def axis_layouts(over: tuple[Factor, ...]) -> st.SearchStrategy[Leaf]:
    if not over:
        return st.integers(1, 4).map(Leaf)
    parts = parts_of(over)
    return st.integers(1, parts + 2).map(lambda size: Leaf(size, Cut(over, -(-size // parts) * parts)))


@st.composite
def layouts(draw: st.DrawFn, factors: tuple[Factor, ...] = MESH, depth: int = 2) -> Layout:
    """Random layouts in which a mesh factor cuts no element twice."""
    kind = draw(st.sampled_from(["leaf", "product", "sum"] if depth else ["leaf"]))
    if kind == "leaf":
        return draw(axis_layouts(tuple(draw(st.permutations([f for f in factors if draw(st.booleans())])))))
    if kind == "sum":
        return SumLayout(tuple(draw(layouts(factors, depth - 1)) for _ in range(draw(st.integers(2, 3)))))
    count = draw(st.integers(2, 3))
    owner = [draw(st.integers(0, count - 1)) for _ in factors]
    own = [tuple(f for f, number in zip(factors, owner, strict=True) if number == i) for i in range(count)]
    return ProductLayout(tuple(draw(layouts(part, depth - 1)) for part in own))


@quick
@given(layouts())
def test_a_layout_is_read_back_from_its_text(layout: Layout) -> None:
    assert parse_layout(str(layout)) == layout


@quick
@given(layouts())
def test_local_sizes_agree(layout: Layout) -> None:
    for rank in range(RANKS):
        assert len(local_indices(layout, rank)) == len(local_factors(layout)) == layout.local_size
    assert layout.padded_size >= layout.size
    assert is_padded(layout) or layout.padded_size == layout.size


@quick
@given(layouts())
def test_the_ranks_hold_every_index_equally_often(layout: Layout) -> None:
    """With the share of a position being one part in as many as its data are cut into, all shares add up to one."""
    shares: dict[int, Fraction] = defaultdict(Fraction)
    for rank in range(RANKS):
        for index, over in zip(local_indices(layout, rank), local_factors(layout), strict=True):
            shares[index] += Fraction(parts_of(tuple(over)), RANKS)
    shares.pop(PADDING, None)
    assert shares == dict.fromkeys(range(layout.size), 1)


@quick
@given(layouts())
def test_ranks_that_differ_hold_a_permutation(layout: Layout) -> None:
    over = factors_of(layout)
    if all(set(own) == over for own in local_factors(layout)):
        group = [rank for rank in range(RANKS) if all(f in over or f.coordinate(rank) == 0 for f in MESH)]
        held = [i for rank in group for i in local_indices(layout, rank) if i != PADDING]
        assert sorted(held) == list(range(layout.size))


@quick
@given(layouts())
def test_a_slice_holds_what_the_indices_say_and_zero_as_padding(layout: Layout) -> None:
    value = torch.arange(1, layout.size + 1)
    for rank in range(RANKS):
        held = take(value, [layout], rank).tolist()
        assert held == [0 if i == PADDING else i + 1 for i in local_indices(layout, rank)]


@quick
@given(layouts())
def test_slices_are_put_together_again(layout: Layout) -> None:
    assume(all(leaf.cut is None or leaf.cut.over == ordered(frozenset(leaf.cut.over)) for leaf in leaves(layout)))
    value, over = torch.arange(1, layout.size + 1), tuple(f for f in MESH[::-1] if f in factors_of(layout))
    group = [rank for rank in range(RANKS) if all(f in over or f.coordinate(rank) == 0 for f in MESH)]
    group.sort(key=lambda rank: [f.coordinate(rank) for f in over])
    parts = [take(value, [layout], rank) for rank in group]
    assert torch.equal(join(parts, 0, layout, over, 0), value)


def test_a_layout_is_read_off_a_term() -> None:
    groups, repeats = axis(2), axis(7)
    assert isinstance(groups, Axis)
    assert isinstance(repeats, Axis)
    term = Sum((Product((groups, repeats, axis(4), axis(8))), Product((groups, axis(4), axis(8)))))
    cuts = {groups: Cut((Factor(2, 4),), 2), repeats: Cut((Factor(4, 1),), 8)}
    assert str(layout_of(term, cuts)) == "[(2/2@4 · 7>8/4@1 · 32) + (2/2@4 · 32)]"
    assert str(layout_of(term, {})) == str(term.size)
    assert str(layout_of(ONE, cuts)) == "1"


def test_a_layout_is_written_in_two_ways() -> None:
    assert parse_layout("(2/2@4*64)") == parse_layout(" ( 2/2@4 · 64 ) ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot read"),
        ("(2 · 3", "cannot read"),
        ("(2 + 3)", "cannot read"),
        ("[2 · 3]", "cannot read"),
        ("[2 + ]", "cannot read"),
        ("2 3", "cannot read"),
        ("a", "cannot read"),
        ("4/2", "cannot read"),
        ("4>6", "pads an axis that is not cut"),
        ("6/4@1", "does not divide"),
        ("6>4/2@1", "does not divide"),
        ("4/0@1", "no ranks"),
    ],
)
def test_a_layout_that_cannot_be_read_is_named(text: str, reason: str) -> None:
    with pytest.raises(PlanError, match=reason) as raised:
        parse_layout(text)
    assert repr(text) in str(raised.value)
