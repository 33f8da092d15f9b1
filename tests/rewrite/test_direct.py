"""Bindings take what the overloads take and give what they give."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from autotp.axes.annotation import annotate
from autotp.rewrite.direct import BINDINGS, OWN, directly

aten = torch.ops.aten
A, B, Q = torch.rand(4, 3, 6), torch.rand(4, 3, 6), torch.rand(2, 4, 3, 8)

# Calls of every operator of the table, in the forms that tracing records them in.
CALLS: dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    aten.add.Tensor: [((A, B), {}), ((A, 1e-6), {}), ((A, B), {"alpha": 2})],
    aten.sub.Tensor: [((A, B), {}), ((A, 2), {}), ((A, B), {"alpha": 2})],
    aten.mul.Tensor: [((A, B), {}), ((A, 2), {}), ((A.to(torch.bfloat16), A[0, 0, 0]), {})],
    aten.div.Tensor: [((A, B), {}), ((torch.arange(6), 4), {})],
    aten.neg.default: [((A,), {})],
    aten.pow.Tensor_Scalar: [((A, 2), {}), ((A, 0.5), {})],
    aten.rsqrt.default: [((A,), {})],
    aten.mean.dim: [((A, [-1], True), {}), ((A, [0, 1]), {}), ((A.half(), [-1], True), {"dtype": torch.float32})],
    aten.sum.dim_IntList: [((A, [-1], True), {}), ((A > 0.5, [0]), {})],
    aten.cat.default: [(([A, B], -1), {}), (([A, B],), {})],
    aten.transpose.int: [((A, 1, 2), {})],
    aten.permute.default: [((A, [2, 0, 1]), {})],
    aten.unsqueeze.default: [((A, 1), {})],
    aten.view.default: [((A, [4, -1, 3, 2]), {}), ((A, [72]), {})],
    aten.reshape.default: [((A.transpose(0, 1), [3, -1]), {})],
    aten.expand.default: [((A[:, :1], [-1, 5, -1]), {})],
    aten.contiguous.default: [((A.transpose(0, 1),), {})],
    aten.sym_size.int: [((A, 1), {})],
    aten.matmul.default: [((A, B.transpose(1, 2)), {})],
    aten.linear.default: [((A, B[0]), {}), ((A, B[0], B[0, :, 0]), {})],
    aten.addmm.default: [((A[0, :, :3], B[0], B[1, :, :3].t().expand(3, 3).repeat(2, 1)), {})],
    aten.tanh.default: [((A,), {})],
    aten.sigmoid.default: [((A,), {})],
    aten.relu.default: [((A - 0.5,), {})],
    aten.silu.default: [((A,), {})],
    aten.gelu.default: [((A,), {}), ((A,), {"approximate": "tanh"})],
    aten.scaled_dot_product_attention.default: [
        ((Q, Q, Q), {"scale": 0.3}),
        ((Q, Q, Q, None, 0.0, True), {}),
        ((Q, Q[:, :2], Q[:, :2]), {"enable_gqa": True}),
        ((Q, Q, Q, torch.ones(3, 3).tril().bool()), {}),
    ],
}


def test_every_binding_has_a_case() -> None:
    assert CALLS.keys() == BINDINGS.keys()


@pytest.mark.parametrize("overload", CALLS, ids=str)
def test_a_binding_is_its_overload(overload: Any) -> None:
    for args, kwargs in CALLS[overload]:
        expected, found = overload(*args, **kwargs), BINDINGS[overload](*args, **kwargs)
        if isinstance(expected, int):
            assert found == expected
            continue
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert torch.equal(found, expected)
        recorded = make_fx(lambda *a, f=BINDINGS[overload], rest=kwargs: f(*a, **rest), pre_dispatch=True)(*args)
        assert overload in {node.target for node in recorded.graph.nodes}, recorded.code


def test_the_graph_itself_is_left_alone() -> None:
    graph = make_fx(lambda a, b: torch.argsort(a * b))(A, B).graph
    before = [node.target for node in graph.nodes]
    targets = [node.target for node in directly(graph).nodes]
    assert [node.target for node in graph.nodes] == before
    assert OWN[aten.mul.Tensor] in targets  # and what the table does not know is called as it was
    assert any(target in before and "sort" in str(target) for target in targets)


def test_a_view_takes_any_order_of_memory_unless_somebody_writes_there() -> None:
    graph = make_fx(lambda a: torch.ops.aten.view(a, [12, 6]))(A).graph
    (view,) = [node for node in graph.nodes if node.target is aten.view.default]
    other = A.transpose(0, 1).contiguous().transpose(0, 1)
    run = torch.fx.GraphModule(torch.nn.Module(), directly(graph))
    assert torch.equal(run(other), A.view(12, 6))
    annotate(view, writes=(view,))
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        torch.fx.GraphModule(torch.nn.Module(), directly(graph))(other)


SLICES = [
    (2, 0, 3),
    (-1, 2, 2**63 - 1),
    (2, -2, None),
    (2, None, -1),
    (2, 4, 9),
    (2, 0, 6, 2),
    (1, 1, 2),
    (0, 1, 4),
    (2, 5, 2),
]


@pytest.mark.parametrize("bounds", SLICES, ids=str)
def test_a_slice_is_its_index(bounds: tuple[Any, ...]) -> None:
    graph = make_fx(lambda a: aten.slice.Tensor(a, *bounds))(A).graph
    made = directly(graph)
    assert (operator.getitem in {node.target for node in made.nodes}) == (bounds[0] in (2, -1))
    found, expected = torch.fx.GraphModule(torch.nn.Module(), made)(A), aten.slice.Tensor(A, *bounds)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
    assert found.storage_offset() == expected.storage_offset()
    assert found._base is A
