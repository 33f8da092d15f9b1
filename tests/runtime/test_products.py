"""Products over a few rows are the products of `torch.nn.functional.linear`, however they are computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.planner.make import make_plan
from autotp.planner.survey import survey
from autotp.rewrite.direct import BINDINGS
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.layers import products
from autotp.runtime.layers.parallel import layer_of
from autotp.runtime.layers.products import Product
from tests.families import FAMILIES


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_found", {})


@pytest.fixture(params=products.PRODUCTS, ids=lambda product: product.__name__)
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Product:
    """What trying all products is said to have shown."""
    monkeypatch.setattr(products, "fastest", lambda rows, weight: request.param)
    return request.param


@pytest.mark.parametrize("shape", [(1,), (2,), (4,), (2, 2), (4, 1), (8,), (9,), (3, 1, 1), ()])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("outputs", [512, 515])
@pytest.mark.usefixtures("product")
def test_every_number_of_rows(shape: tuple[int, ...], biased: bool, outputs: int) -> None:
    value, weight = torch.randn(*shape, 256), torch.randn(outputs, 256)
    bias = torch.randn(outputs) if biased else None
    got = products.linear(value, weight, bias)
    expected = functional.linear(value.double(), weight.double(), None if bias is None else bias.double())
    assert got.shape == expected.shape
    assert torch.allclose(got.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("chosen", range(len(products.PRODUCTS)))
def test_a_graph_has_the_product_that_was_fastest(chosen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph for any few rows, without a break."""
    monkeypatch.setattr(products, "_tried", lambda *kind: chosen)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(products.linear, backend=counter, fullgraph=True)
    weight, bias = torch.randn(512, 256), torch.randn(512)
    for rows in (4, 2, 5, 6):
        value = torch.randn(rows, 1, 256)
        assert torch.allclose(compiled(value, weight, bias), functional.linear(value, weight, bias), rtol=0, atol=1e-4)
    assert counter.frame_count == 2  # one number of rows, and any
    called = {node.target for graph in counter.graphs for node in graph.graph.nodes}
    assert bool({torch.addmm, torch.bmm} & called) == (chosen > 0)


def test_nothing_is_tried_where_torch_is_to_be_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a graph that was made before."""
    monkeypatch.setattr(products, "fastest", lambda rows, weight: products._turned)
    monkeypatch.setattr(products, "_tried", lambda *kind: products.PRODUCTS.index(products._turned))
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(products.linear, backend=counter, fullgraph=True)
    value, weight, bias = torch.randn(4, 256), torch.randn(512, 256), torch.randn(512)
    compiled(value, weight, bias)
    torch.use_deterministic_algorithms(True)
    try:
        compiled(value, weight, bias)
        assert torch.equal(products.linear(value, weight, bias), functional.linear(value, weight, bias))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not products._found
    calls = [{node.target for node in graph.graph.nodes} for graph in counter.graphs]
    assert [torch.addmm in targets for targets in calls] == [True, False]


def test_products_are_tried_once_for_each_shape_and_draw_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, torch.Size]] = []
    fastest = products.fastest
    monkeypatch.setattr(products, "fastest", lambda r, w: [tried.append((r, w.shape)), fastest(r, w)][1])
    state = torch.get_rng_state()
    for _ in range(3):
        products.linear(torch.ones(4, 1, 256), torch.ones(512, 256))
        products.linear(torch.ones(2, 256), torch.ones(512, 256))
        products.linear(torch.ones(4, 256), torch.ones(1024, 256))
    assert torch.equal(torch.get_rng_state(), state)
    assert tried == [(4, (512, 256)), (2, (512, 256)), (4, (1024, 256))]


def test_the_fastest_is_taken_and_a_little_faster_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(512, 256)
    for gain, chosen in ((2.0, products._turned), (1.05, products._plain)):
        seconds = dict.fromkeys(products.PRODUCTS, 1.0) | {products._turned: 1 / gain}
        monkeypatch.setattr(products, "_seconds", lambda product, value, weight, seconds=seconds: seconds[product])
        assert products.fastest(4, weight) is chosen


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        (torch.randn(1, 256), torch.randn(512, 256)),
        (torch.randn(9, 256), torch.randn(512, 256)),
        (torch.randn(8, 4096), torch.randn(32, 4096)),  # the rows do not fit the cache
        (torch.randn(4, 32), torch.randn(32, 32)),  # the weight does
        (torch.randn(4, 256), torch.randn(256, 512).t()),
        (torch.randn(4, 256).double(), torch.randn(512, 256).double()),
        (torch.randn(4, 256), torch.randn(512, 256, requires_grad=True)),
        (torch.randn(4, 0), torch.randn(512, 0)),
    ],
    ids=["one row", "many rows", "long rows", "small weight", "turned weight", "float64", "training", "empty"],
)
def test_all_others_stay(value: torch.Tensor, weight: torch.Tensor) -> None:
    result = products.linear(value, weight)
    assert not products._found
    assert result.requires_grad == weight.requires_grad


def test_what_every_rank_computes_alike_is_computed_by_one_product() -> None:
    """A router that chose other experts on each rank for a difference in rounding would be wrong, silently."""
    assert BINDINGS[torch.ops.aten.linear.default] is functional.linear
    assert products.linear not in BINDINGS.values()


def test_a_part_that_several_ranks_hold_is_computed_by_one_product_too() -> None:
    """With two heads of keys, each is on two of four ranks."""
    model: Any = build_model(FAMILIES["llama"].config())
    found = survey(model, examples_for(model, None))
    plan = make_plan(model, found, 4)
    apply_plan(model, plan, Ranks(0, 4), make_compilers(plan, found))
    layers = {path.rpartition(".")[2]: layer for path, part in model.named_modules() if (layer := layer_of(part))}
    assert {name for name, layer in layers.items() if not layer.apart} == {"k_proj", "v_proj"}
    assert {name for name, layer in layers.items() if layer.apart} >= {
        "q_proj",
        "o_proj",
        "up_proj",
        "down_proj",
        "lm_head",
    }
