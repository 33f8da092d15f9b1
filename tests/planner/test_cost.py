"""What collectives cost: the ring formula, latency, hardware by name, formulas in batch and sequence."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import autotp
from autotp.errors import UsageError
from autotp.planner.cost import DEFAULT_HARDWARE, Hardware, Workload, hardware, hardware_presets, wire_bytes
from autotp.planner.make import make_plan
from autotp.planner.plan import CollectivePlan
from autotp.planner.sizing import Sizing
from autotp.planner.survey import survey
from tests.families import FAMILIES

NODE = Hardware("node", 8, tflops_bf16=1, memory_gib=1, memory_gbps=1, link_gbps=100, latency_us=5)


@pytest.mark.parametrize(
    ("kind", "ranks", "expected"),
    [
        ("all_reduce", 1, 0),
        ("all_reduce", 2, 1000),
        ("all_reduce", 4, 1500),
        ("all_reduce", 8, 1750),
        ("all_gather", 2, 500),
        ("all_gather", 8, 875),
        ("reduce_scatter", 4, 750),
        ("reduce_scatter", 8, 875),
    ],
)
def test_bytes_on_the_wire_follow_the_ring(kind: str, ranks: int, expected: float) -> None:
    assert wire_bytes(kind, 1000, ranks) == expected


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    for ranks in range(2, 9):
        both = wire_bytes("reduce_scatter", 840, ranks) + wire_bytes("all_gather", 840, ranks)
        assert wire_bytes("all_reduce", 840, ranks) == pytest.approx(both)


def test_time_is_latency_and_bytes_over_bandwidth() -> None:
    assert NODE.seconds("all_reduce", 1e9, 2) == pytest.approx(5e-6 + 1e9 / 100e9)
    assert NODE.seconds("all_gather", 1e9, 4) == pytest.approx(5e-6 + 0.75e9 / 100e9)
    assert NODE.seconds("all_reduce", 0, 2) == pytest.approx(5e-6)


STEPS = Hardware("node", 8, tflops_bf16=1, memory_gib=1, memory_gbps=1, link_gbps=100, latency_us=5, hop_us=2)


def test_every_step_of_a_ring_takes_its_time() -> None:
    assert STEPS.seconds("all_gather", 8e9, 8) == pytest.approx((5 + 7 * 2) * 1e-6 + 7e9 / 100e9)
    assert STEPS.seconds("reduce_scatter", 8e9, 8) == pytest.approx((5 + 7 * 2) * 1e-6 + 7e9 / 100e9)
    assert STEPS.seconds("all_reduce", 8e9, 8) == pytest.approx((5 + 14 * 2) * 1e-6 + 14e9 / 100e9)


def test_a_small_all_reduce_goes_over_trees() -> None:
    assert STEPS.seconds("all_reduce", 1000, 8) == pytest.approx((5 + 2 * 3 * 2) * 1e-6 + 2000 / 100e9)
    assert STEPS.seconds("all_reduce", 1000, 2) == pytest.approx((5 + 2 * 2) * 1e-6 + 1000 / 100e9)


def test_a_single_rank_pays_nothing() -> None:
    assert NODE.seconds("all_reduce", 1e9, 1) == 0


def test_every_preset_is_a_node() -> None:
    presets = hardware_presets()
    assert len(presets) >= 4
    for name, node in presets.items():
        assert node.name == name
        assert node.source
        assert min(node.gpus, node.tflops_bf16, node.memory_gib, node.memory_gbps, node.link_gbps, node.latency_us) > 0


def test_unknown_hardware_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown hardware 'h100-nvlink-4'; did you mean 'h100-nvlink-8'\?"):
        hardware("h100-nvlink-4")
    with pytest.raises(UsageError, match="unknown hardware 'abacus'; known: a100-nvlink-8, "):
        autotp.plan(FAMILIES["llama"].config(), 2, hardware="abacus")


def test_a_plan_prices_its_collectives() -> None:
    plan = autotp.plan(FAMILIES["llama"].config(), 4, tokens=1000)
    unit = next(unit for unit in plan.units if unit.instances[0].endswith(".0"))
    node, hidden = hardware(plan.hardware), 64
    for collective in unit.collectives:
        if collective.of == "activation":
            assert collective.elements == f"{hidden}·b·s"
            size = hidden * 1000 * plan.element_bytes
            assert collective.wire_bytes == pytest.approx(2 * 3 / 4 * size)
            latency = node.latency_us + 2 * 2 * node.hop_us  # a tree of four
            ring = node.latency_us + 2 * 3 * node.hop_us
            rate = node.link_gbps * 1e9
            fastest = min(latency * 1e-6 + 2 * size / rate, ring * 1e-6 + 1.5 * size / rate)
            assert collective.seconds == pytest.approx(fastest)
    assert [c.phase for c in unit.collectives if c.of == "activation"].count("forward") == 2


def test_gathered_logits_count_their_padding() -> None:
    """250 tokens of the vocabulary on 4 ranks are 63 on each: 252 travel."""
    plan = autotp.plan(FAMILIES["llama"].config(), 4)
    head = plan.unit_of("lm_head")
    assert head is not None
    (gather,) = [c for c in head.collectives if c.phase == "forward"]
    assert (gather.kind, gather.elements, gather.ranks) == ("all_gather", "252·b·s", 4)
    assert gather.wire_bytes == pytest.approx(3 / 4 * 252 * plan.tokens * plan.element_bytes)


def test_what_a_rank_holds_of_a_value_is_what_its_sum_costs() -> None:
    """On 8 ranks with 2 key heads, the key weights of a group are summed over the 4 ranks that share it."""
    plan = autotp.plan(FAMILIES["qwen3"].config(), 8)
    unit = next(unit for unit in plan.units if unit.instances[0].endswith(".0"))
    shapes = {parameter.name.replace(".", "_"): parameter for parameter in unit.parameters}
    sums = [c for c in unit.collectives if c.of == "parameter"]
    assert sums
    for collective in sums:
        elements = sum(shapes[name].local_elements for name in collective.nodes)
        assert collective.elements == str(elements)
        size = elements * plan.element_bytes
        assert collective.wire_bytes == pytest.approx(2 * (collective.ranks - 1) / collective.ranks * size)


def test_formulas_of_packed_and_grouped_batches_have_numbers() -> None:
    """Frames of clips in one batch: at one sequence there is no clip, and nothing to divide by."""

    class Clips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, frames: torch.Tensor) -> torch.Tensor:
            clips = frames.shape[0] // 4
            x = frames.reshape(clips, frames.shape[0] // clips, *frames.shape[1:])
            y: torch.Tensor = self.down(self.up(x).relu())
            return y

    plan = autotp.plan(Clips(), 2, example=torch.randn(8, 3, 8, requires_grad=True))
    assert {c.seconds > 0 for c in plan.units[0].collectives} == {True}


def test_stacked_streams_are_no_batch() -> None:
    """Four streams of a text are four times its tokens, not a batch of four texts as long as they are many."""

    class Streams(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, streams: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = streams + self.down(self.up(streams).relu())
            return y

    def on(*stacks: int) -> tuple[CollectivePlan, ...]:
        model = Streams()
        calls = [torch.randn(*stacks, *size, 8, requires_grad=True) for size in ((3, 7), (5, 11))]
        return make_plan(model, survey(model, [((call,), {}) for call in calls]), 2).units[0].collectives

    stacked, plain = on(4), on()
    assert [c.elements for c in stacked] == ["32·b·s"] * 2
    assert [c.elements for c in plain] == ["8·b·s"] * 2
    assert [c.wire_bytes for c in stacked] == [4 * c.wire_bytes for c in plain]


def test_values_that_share_a_call_are_copied_first_so_large_ones_do_not() -> None:
    machine = hardware(DEFAULT_HARDWARE)
    alone, together = (machine.seconds("all_reduce", 1e6, 2, together=several) for several in (False, True))
    assert together - alone == pytest.approx(2 * 1e6 / (machine.memory_gbps * 1e9))
    for tokens, sums in ((4096, 3), (10**7, 4)):
        block = autotp.plan(FAMILIES["olmo2"].config(), 2, tokens=tokens).unit_of("model.layers.0")
        assert block is not None
        assert block.count("forward") == sums


def test_lengths_of_what_an_object_has_are_no_batch() -> None:
    """A cache of three sequences with two heads: its third dim is as long as the keys."""
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        assert mode.shape_env is not None
        value = torch.empty(3, 2, mode.shape_env.create_unbacked_symint(), 16)
    graph = torch.fx.Graph()
    graph.call_function(torch.zeros, ()).meta["val"] = value
    sizing = Sizing(graph, Workload(tokens=100, element_bytes=2))
    assert str(sizing.elements(value)) == "96*n"
    assert sizing.number(sizing.elements(value)) == 9600
