"""What lets partial sums meet before placement: biases leave their contraction, sums are regrouped, and what would be
reduced part by part is reduced before it is taken apart."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import TypeAlias

import torch

from ..axes.call import is_tensor, named_arguments
from ..axes.facts import Fact
from ..axes.layout import Cuts
from ..axes.term import ONE, Dims, axes_of
from .placed import say
from .sizes import size_of
from .state import Flow
from .typed import TypedGraph, cut_in

aten = torch.ops.aten

# Operators that add their first operand to a product, and the product alone.
_PRODUCTS = {aten.addmm.default: aten.mm.default, aten.baddbmm.default: aten.bmm.default}
# Operators that add what they call `bias`, and do nothing else to the sum: others of that name may have an activation inside.
_WITH_BIAS = frozenset(
    {aten.linear, aten.bilinear, aten.conv1d, aten.conv2d, aten.conv3d}
    | {aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d}
)


def split_biases(typed: TypedGraph, cuts: Cuts) -> None:
    """`linear(x, w, b)` over a cut contraction becomes `linear(x, w) + b`: the bias is added once, not once a rank."""
    for node in [node for node in typed.graph.nodes if node in typed.facts]:
        if not cut_in(typed.contracted(node), cuts):
            continue
        named = named_arguments(node)
        if node.target in _PRODUCTS and named["beta"] == named["alpha"] == 1:
            bias, *factors = node.args
            _split(typed, node, bias, _PRODUCTS[node.target], tuple(factors))
        elif getattr(node.target, "overloadpacket", None) in _WITH_BIAS and is_tensor(named["bias"]):
            without = [None if name == "bias" else value for name, value in named.items()]
            while without[-1] is None:
                without.pop()
            _split(typed, node, named["bias"], node.target, tuple(without))


def _split(
    typed: TypedGraph, node: torch.fx.Node, bias: torch.fx.Node, target: object, arguments: tuple[object, ...]
) -> None:
    fact = typed.facts[node]
    with typed.graph.inserting_after(node):
        total = typed.graph.call_function(aten.add.Tensor, (node, bias))
    total.meta = dict(node.meta)
    say(total, made="the bias is added once, behind the sum, and not once on every rank")
    typed.replace_uses(node, total)
    node.target, node.args, node.kwargs = target, arguments, {}  # type: ignore[assignment]
    product = tuple(operand for operand in fact.operands if operand is not bias)
    each = frozenset([0]), frozenset([1])
    typed.facts[node] = replace(fact, operands=product, linear=each, zeros=each)
    aligned = _aligned(typed, bias, fact.dims, total)
    total.replace_input_with(bias, aligned)
    typed.facts[total] = _addition(fact, (node, aligned))


def _aligned(typed: TypedGraph, bias: torch.fx.Node, dims: Dims, total: torch.fx.Node) -> torch.fx.Node:
    """A bias as a value to be added: behind its own dim as many of size one as the result has (places, in a convolution)."""
    own = typed.facts[bias].dims
    places = [i for i, term in enumerate(reversed(dims)) if own and list(axes_of(term)) == list(axes_of(own[-1]))]
    for _ in range(next(iter(places), 0)):
        with typed.graph.inserting_before(total):
            wider = typed.graph.call_function(aten.unsqueeze.default, (bias, -1))
        wider.meta["val"] = bias.meta["val"].unsqueeze(-1)
        say(wider, made="the bias is added behind the sum")
        typed.facts[wider] = Fact(
            ((*typed.facts[bias].dims, ONE),), (bias,), linear=(frozenset([0]),), zeros=(frozenset([0]),), view=True
        )
        bias = wider
    return bias


def _addition(like: Fact, operands: tuple[torch.fx.Node, ...]) -> Fact:
    together = (frozenset(range(len(operands))),)
    return Fact(like.outputs, operands, linear=together, zeros=together)


def taken_apart(typed: TypedGraph, flow: Flow) -> frozenset[torch.fx.Node]:
    """Operators that take a partial sum apart whose parts are all reduced later: one reduction before them serves all."""
    found = set()
    for node, fact in typed.facts.items():
        parts = [part for part in node.users if part in typed.facts and flow.partial[part]]
        if len(fact.outputs) > 1 and len(fact.operands) == 1 and parts:
            reduced = [_reduced(typed, flow, part) for part in parts]
            values = {value for own in reduced if own is not None for value in own}
            if None not in reduced and len(values) > 1 and sum(map(size_of, values)) >= size_of(fact.operands[0]):
                found.add(node)
    return frozenset(found)


def _reduced(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> set[torch.fx.Node] | None:
    """The values as which a partial sum is reduced in the end, None if it is also read in another way."""
    found = set[torch.fx.Node]()
    for user in node.users:
        if flow.use(user, node).reduce:
            found.add(node)
            continue
        alone = user in typed.facts and typed.facts[user].operands == (node,) and flow.partial[user]
        own = _reduced(typed, flow, user) if alone else None
        if own is None:
            return None
        found |= own
    return found


# An addition, the partial sums in its tree of additions, and what else is added there.
_Tree: TypeAlias = tuple[torch.fx.Node, list[torch.fx.Node], list[torch.fx.Node]]


def may_regroup(typed: TypedGraph, partial: Set[str]) -> bool:
    """Returns if `regroup_sums` would change anything."""
    return any(True for _ in _trees(typed, partial))


def regroup_sums(typed: TypedGraph, partial: Set[str]) -> None:
    """`(x + p) + q` with partial sums p and q, of which there are the names, becomes `(p + q) + x`, so that one reduction serves
    both.

    Legal because addition is associative and commutative; only whole trees of plain additions whose inner results
    nobody else reads are regrouped.
    """
    for tree in _trees(typed, partial):
        _rebuild(typed, *tree)


def _trees(typed: TypedGraph, partial: Set[str]) -> Iterator[_Tree]:
    for root in reversed(list(typed.graph.nodes)):
        if not _is_plain_add(root) or any(_is_plain_add(user) and len(root.users) == 1 for user in root.users):
            continue
        leaves = _leaves(root)
        sums = [leaf for leaf in leaves if leaf.name in partial]
        if len(sums) > 1 and len(leaves) > len(sums):
            yield root, sums, [leaf for leaf in leaves if leaf.name not in partial]


def _is_plain_add(node: torch.fx.Node) -> bool:
    return (
        node.target is aten.add.Tensor
        and not node.kwargs
        and all(map(is_tensor, node.args))
        and all(arg.meta["val"].dtype == node.meta["val"].dtype for arg in node.all_input_nodes)
    )


def _leaves(node: torch.fx.Node) -> list[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    for arg in node.args:
        assert isinstance(arg, torch.fx.Node)
        inner = _is_plain_add(arg) and len(arg.users) == 1 and arg.meta["val"].shape == node.meta["val"].shape
        found.extend(_leaves(arg) if inner else [arg])
    return found


def _rebuild(typed: TypedGraph, root: torch.fx.Node, sums: list[torch.fx.Node], rest: list[torch.fx.Node]) -> None:
    def chain(nodes: list[torch.fx.Node]) -> torch.fx.Node:
        total = nodes[0]
        for node in nodes[1:]:
            with typed.graph.inserting_before(root):
                total, operands = typed.graph.call_function(aten.add.Tensor, (total, node)), (total, node)
            wide = max((n for n in operands), key=lambda n: n.meta["val"].dim())
            is_widest = wide.meta["val"].dim() == root.meta["val"].dim()
            total.meta["val"] = (root if is_widest else wide).meta["val"]
            say(total, made="partial sums are added first, so that one collective serves them all")
            typed.facts[total] = _addition(
                typed.facts[root] if total.meta["val"] is root.meta["val"] else typed.facts[wide], operands
            )
        return total

    final = chain([chain(sums), *rest])
    say(final, stands_for=root.name)
    typed.replace_uses(root, final)
    typed.graph.eliminate_dead_code()
    typed.facts = {node: fact for node, fact in typed.facts.items() if not node._erased}
