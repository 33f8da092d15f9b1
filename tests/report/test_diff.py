"""The difference between a unit's graphs: complete, paired by origin, with the shapes, sums and bytes that a rank has."""

import copy
import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import pytest
import torch
from rich.console import Console
from torch import nn

import autotp
from autotp.axes.layout import Factors, parts_of
from autotp.capture.units import Unit
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.errors import PlanError, UsageError
from autotp.huggingface import models
from autotp.huggingface.examples import examples_for
from autotp.planner.make import make_plan
from autotp.planner.plan import Plan
from autotp.planner.survey import Survey, survey
from autotp.report.diff import GraphDiff, make_diff
from autotp.report.diff import make as make_module
from autotp.report.diff.data import Diff, Step, Transfer, UnitDiff
from autotp.report.diff.graphs import is_visible
from autotp.rewrite.build import Program, build
from autotp.runtime.cut.origin import parts_only
from autotp.runtime.groups.ranks import Ranks
from tests.families import FAMILIES, MIXTURES

SOME = ("llama", "qwen3", "phi3", "gptj", "gpt_neox", "falcon_multi_query", "bloom", "olmo2", "deepseek_v2", "bert")
# The experts of one more are apart on four ranks.
SOME += ("gpt_oss",)
BATCH, SEQUENCE = 3, 13


@cache
def surveyed(family: str) -> tuple[nn.Module, Survey]:
    torch.manual_seed(0)
    model = models.build_model((FAMILIES | MIXTURES)[family].config(), meta=False)
    return model, survey(model, examples_for(model, None), ())


@cache
def difference(family: str, tp: int) -> Diff:
    model, found = surveyed(family)
    return make_diff(model, found, make_plan(model, found, tp))


def block(diff: Diff) -> UnitDiff:
    """The unit that the model has most of."""
    return max(diff.units, key=lambda unit: len(unit.instances))


def step(unit: UnitDiff, name: str) -> Step:
    return next(step for step in unit.steps if name in (step.name, step.either.name))


def kinds(unit: UnitDiff) -> Counter[tuple[str, str]]:
    return Counter((s.transfer.forward, s.transfer.backward) for s in unit.steps if s.transfer)


# -- every node, once -------------------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", SOME)
def test_every_node_of_the_traced_graph_is_there_once(family: str) -> None:
    _, found = surveyed(family)
    for unit in difference(family, 4).units:
        shape = next(u.shape for u in found.units if u.path in unit.instances)
        traced = Counter(node.name for node in found.traced[shape].graph.nodes if is_visible(node))
        shown = Counter(s.name for s in unit.steps if s.before)
        assert not unit.steps or shown == traced
        assert len({s.name for s in unit.steps}) == len(unit.steps)
        known = {s.name for s in unit.steps}
        assert all(known.issuperset(value.inputs) for s in unit.steps for value in (s.before, s.after) if value)


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", SOME)
def test_transfers_are_the_plans_collectives(family: str) -> None:
    diff = difference(family, 4)
    for plan, unit in zip(diff.plan.units, diff.units, strict=True):
        planned = Counter((c.phase == "backward", round(c.wire_bytes)) for c in plan.collectives)
        calls: dict[frozenset[str], list[Transfer]] = {}
        for step in unit.steps:
            if step.transfer and step.transfer.moves:
                calls.setdefault(frozenset([step.name, *step.transfer.together]), []).append(step.transfer)
        assert all(len(transfers) == len(names) for names, transfers in calls.items())
        sent = [(sum(t.forward_bytes for t in own), sum(t.backward_bytes for t in own)) for own in calls.values()]
        forward = Counter((False, round(ahead)) for ahead, _ in sent if ahead)
        backward = Counter((True, round(back)) for _, back in sent if back)
        assert not unit.steps or forward + backward == planned


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", SOME)
def test_gradients_of_parameters_are_whole_or_summed(family: str) -> None:
    """Read off the rewritten graph, backward: a part of a sum reaches a parameter or an input only through a collective."""
    for unit in difference(family, 4).units:
        for leaf in unit.steps:
            if leaf.role in ("parameter", "input") and "part of the sum" in leaf.gradient:
                readers = [s for s in unit.steps if s.after and leaf.name in s.after.inputs]
                assert any(s.transfer and s.transfer.of == "parameter" for s in readers), (family, leaf.name)


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", SOME)
def test_outlines_have_no_cycles_and_keep_what_matters_apart(family: str) -> None:
    for unit in difference(family, 2).units:
        blocks = {s.name: s.block for s in unit.steps}
        graph: Any = nx.DiGraph()
        for s in unit.steps:
            sources = [name for value in (s.before, s.after) if value for name in value.inputs]
            graph.add_edges_from((blocks[name], s.block) for name in sources if blocks[name] != s.block)
        assert nx.is_directed_acyclic_graph(graph)
        sizes = Counter(blocks.values())
        assert all(sizes[s.block] == 1 for s in unit.steps if s.role != "operator" or s.transfer)
        assert not unit.steps or len(sizes) <= len(unit.steps)


# -- shapes are those that run ----------------------------------------------------------------------------------------


class AloneRanks(Ranks):
    """One rank whose collectives give values of the right shapes."""

    def _all_reduce(self, value: torch.Tensor, factors: Factors, op: str) -> torch.Tensor:
        return value

    def _all_gather(self, value: torch.Tensor, factors: Factors) -> list[torch.Tensor]:
        return [value] * parts_of(factors)

    def _reduce_scatter(self, stacked: torch.Tensor, factors: Factors) -> torch.Tensor:
        return stacked[0]


class Recorder(torch.fx.Interpreter):
    """Runs a program node by node and notes the shapes of its results."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[str, list[tuple[int, ...]]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        values = result if isinstance(result, (list, tuple)) else [result]
        name = str(n.target) if n.op in ("get_attr", "call_module") else n.name
        self.shapes[name] = [tuple(v.shape) for v in values if isinstance(v, torch.Tensor)]
        return result


def sizes(texts: Sequence[str]) -> tuple[int, ...]:
    """The numbers that a shape's texts are at the sizes of the example."""
    return tuple(int(eval(text.replace("·", "*"), {"b": BATCH, "s": SEQUENCE})) for text in texts)


@pytest.mark.sample(5)
@pytest.mark.parametrize(("family", "tp"), [*((family, 4) for family in SOME), ("llama", 8), ("qwen3", 8), ("phi3", 3)])
def test_local_shapes_are_those_of_a_rank(family: str, tp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = surveyed(family)
    programs: list[Any] = []

    def noted(*arguments: Any) -> Any:
        programs.append(build(*arguments))
        return programs[-1]

    monkeypatch.setattr(make_module, "build", noted)
    plan = make_plan(model, found, tp)
    diff = make_diff(model, found, plan)
    parallel = apply_plan(copy.deepcopy(model), plan, AloneRanks(0, tp), make_compilers(plan, found))
    checked = 0
    for unit, program in zip((unit for unit in diff.units if unit.steps), programs, strict=True):
        ran = shapes_of(program, parallel, next(u for u in found.units if u.path in unit.instances), found)
        for s in unit.steps:
            deferred = s.transfer is not None and s.transfer.forward == "gather when read"
            if s.after and s.after.name in ran and s.role != "output" and not deferred:
                assert [sizes(shape) for shape in s.after.shapes] == ran[s.after.name], (unit.instances[0], s.name)
                checked += s.role == "operator"
    assert checked > 20


def shapes_of(program: Program, parallel: nn.Module, unit: Unit, found: Survey) -> dict[str, list[tuple[int, ...]]]:
    """Run a unit's program on the sizes it was traced with; the shapes of all values on a rank, by name."""
    module = parallel.get_submodule(unit.path)
    site = found.traced[unit.shape].site
    recorder = Recorder(torch.fx.GraphModule(module, program.graph))
    tensors = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in site.tensors]
    positions = unit.position_values(module)
    ranks = AloneRanks(0, parallel._autotp.plan.tp)  # type: ignore[union-attr]
    constants = [tensor for _, tensor in program.constants]
    with parts_only():
        recorder.run(ranks, *tensors, *site.numbers, *site.handles, *positions, *constants, enable_io_processing=False)
    return recorder.shapes


# -- what is said -----------------------------------------------------------------------------------------------------


def test_a_llama_block() -> None:
    unit = block(difference("llama", 2))
    assert unit.instances == ("model.layers.0", "model.layers.1")
    assert kinds(unit) == {("all-reduce", "identity"): 2, ("identity", "all-reduce"): 2}
    query, down = step(unit, "self_attn.q_proj"), step(unit, "mlp.down_proj")
    assert (query.change, query.role, query.state) == ("replaced", "column", "slice")
    assert (down.change, down.role, down.state) == ("replaced", "row", "partial")
    assert query.after is not None
    assert query.after.operator == "ColumnParallelLinear"
    assert query.after.shapes == (("b", "s", "32"),)
    assert query.dims[-1].term == "A:2 · 4 · [4 + 4]"
    assert "A, an axis of 2, cut in 2: 1 on a rank" in query.dims[-1].words
    assert {(layer.path, layer.after) for layer in unit.layers} >= {("self_attn.o_proj", "RowParallelLinear")}
    assert step(unit, "scaled_dot_product_attention").role == "attention"
    assert [s.module for s in unit.steps if s.name == "silu"] == ["mlp.act_fn"]


def test_reasons_name_values_readers_and_axes() -> None:
    unit = block(difference("llama", 2))
    reduce, enter = (
        next(s for s in unit.steps if s.transfer and s.transfer.forward == kind) for kind in ("all-reduce", "identity")
    )
    assert reduce.by == "collective insertion"
    assert "self_attn.o_proj is a partial sum" in reduce.why
    assert enter.by == "conjugate of a cut"
    assert "self_attn.q_proj, self_attn.k_proj and self_attn.v_proj" in enter.why
    assert "sums over B" in step(unit, "mlp.down_proj").why
    assert step(unit, "silu").by == "rule gated_mlp"
    assert step(unit, "self_attn_q_proj_weight").by == "rule attention"
    assert enter.gradient == "a part of the sum over both ranks"


def test_rows_of_other_ranks_become_zero_before_a_sum() -> None:
    unit = next(unit for unit in difference("gpt_oss", 4).units if unit.instances == ("model.layers.0",))
    product, own = step(unit, "grouped_mm_1"), step(unit, "keep_own")
    assert (product.change, product.state, product.role) == ("replaced", "slice", "expert")
    assert "a rank computes the rows that pick its slice along" in product.why
    assert own.state == "partial"
    assert own.transfer is not None
    assert (own.transfer.forward, own.transfer.forward_bytes) == ("zeros around own rows", 0)
    assert "those that picked what other ranks hold become zero: a partial sum for mlp.experts (index_4)" in own.why


def test_sums_in_another_order_replace_the_models_own() -> None:
    unit = block(difference("gptj", 2))
    made = [s for s in unit.steps if s.change == "inserted" and not s.transfer]
    assert {s.by for s in made} == {"preparation"}
    assert [s.either.operator for s in unit.steps if s.change == "removed"] == ["add"]
    last = [s for s in unit.steps if s.either.operator == "add" and s.change == "same"][-1]
    assert last.before is not None
    assert last.after is not None
    assert last.before.name != last.after.name


def test_localised_arguments_are_shown() -> None:
    """Phi-3 takes its query out of one projection with a slice: 64 of 96 columns, 32 of 48 on a rank."""
    query = next(s for s in block(difference("phi3", 2)).steps if s.either.operator == "slice")
    assert query.before is not None
    assert query.after is not None
    assert (query.before.arguments, query.after.arguments) == ("dim=2, start=0, end=64", "dim=2, start=0, end=32")
    assert "Its arguments are now those of the slice" in query.why


def test_padding_and_mesh_factors_are_named() -> None:
    unit = block(difference("qwen3", 4))
    assert {axis.name: (axis.size, axis.parts) for axis in unit.axes}["A"] == (2, 2)
    summed = [s for s in unit.steps if s.transfer and s.transfer.of == "parameter"]
    assert summed
    assert all("groups of 2 ranks" in s.why or "all 4 ranks" in s.why for s in summed)


def test_the_model_is_left_as_it_is() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    found = autotp.diff(model, 2, example=torch.zeros(2, 8, device="meta"))
    assert [type(module) for module in model] == [nn.Linear, nn.ReLU, nn.Linear]
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    assert {layer.after for layer in found.diffs[0].units[0].layers} == {"ColumnParallelLinear", "RowParallelLinear"}


def test_one_rank_changes_nothing() -> None:
    found = autotp.diff(FAMILIES["llama"].config(), 1)
    assert all(unit.unchanged and not unit.steps for unit in found.diffs[0].units)
    assert "runs as it is" in found.text()


def test_a_given_plan_is_shown() -> None:
    config = FAMILIES["llama"].config()
    plan = autotp.plan(config, 2)
    whole = without(plan, "mlp.")
    shown = autotp.diff(config, 2, plan=whole).diffs[0]
    unit = block(shown)
    assert {axis.rule for axis in unit.axes} == {"attention"}
    assert step(unit, "silu").state == "whole"
    assert autotp.diff(config, 2, plan=plan).diffs[0].plan == plan
    assert plan.units[1].count("forward") == 2
    assert shown.plan.units[1].count("forward") == 1  # those that the edited layouts need
    with pytest.raises(PlanError, match="for 2 ranks"):
        autotp.diff(config, 4, plan=plan)
    with pytest.raises(PlanError, match="another model"):
        autotp.diff(FAMILIES["gpt2"].config(), 2, plan=plan)


def without(plan: Plan, prefix: str) -> Plan:
    """A plan that leaves some parameters whole."""

    def whole(parameter: Any) -> Any:
        texts = tuple(str(size) for size in parameter.shape)
        changed = dataclasses.replace(parameter, layouts=texts, placement="replicated", local_shape=parameter.shape)
        return changed if parameter.name.startswith(prefix) else parameter

    units = tuple(dataclasses.replace(u, parameters=tuple(map(whole, u.parameters))) for u in plan.units)
    return dataclasses.replace(plan, units=units)


# -- how it is shown --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> GraphDiff:
    return GraphDiff((difference("llama", 2),))


def table(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        yield [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_text_folds_and_unfolds(llama: GraphDiff) -> None:
    text = llama.text(unit="model.layers.*")
    rows = list(table(text))
    assert ["»", "self_attn.q_proj", "linear » ColumnParallelLinear", "b × s × 64", "b × s × 32"] in rows
    assert ["+", "reduce", "all-reduce", "b × s × 64", "512 KiB forward"] in rows
    assert any("equal units" in line for line in text.splitlines())
    assert "lm_head · Linear" not in text
    unfolded = llama.text(unit="model.layers.1", full=True)
    assert "· " not in unfolded.partition("operator")[2]
    assert ["· 2 on slices of A", "view, transpose"] in rows
    count = sum(len(unit.steps) for unit in llama.only("model.layers.1").diffs[0].units)
    assert len(unfolded.splitlines()) > count
    lengths = [len(llama.text(context=context).splitlines()) for context in (0, 1, 5)]
    assert lengths == sorted(lengths)
    assert max(map(len, text.splitlines())) <= 120


def test_an_unknown_unit_is_an_error_that_names_the_nearest(llama: GraphDiff) -> None:
    with pytest.raises(UsageError, match=r"no unit matches 'lm_haed'; did you mean 'lm_head'\?"):
        llama.only("lm_haed")


def test_json_has_everything(llama: GraphDiff) -> None:
    data = json.loads(llama.json())
    (diff,) = data["diffs"]
    assert Plan.from_json(json.dumps(diff["plan"])) == llama.diffs[0].plan
    units = {unit["instances"][0]: unit for unit in diff["units"]}
    steps = {s["name"]: s for s in units["model.layers.0"]["steps"]}
    assert steps["reduce"]["transfer"]["forward_bytes"] == 524288
    assert steps["linear"]["before"]["shapes"] == [["b", "s", "64"]]


def test_dot_has_both_graphs(llama: GraphDiff) -> None:
    dot = llama.dot()
    unit = block(llama.diffs[0])
    before, after = (sum(bool(s.before) for s in unit.steps), sum(bool(s.after) for s in unit.steps))
    number = llama.diffs[0].units.index(unit)
    assert dot.count(f'"before_0_{number}:') >= before
    assert (
        len({line for line in dot.splitlines() if line.startswith(f'    "after_0_{number}:') and "label=" in line})
        == after
    )
    assert "all-reduce\\nreduce\\nb × s × 64\\n512 KiB forward" in dot


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz's dot is not installed: apt-get install graphviz")
def test_graphviz_draws_it(llama: GraphDiff) -> None:
    drawn = ElementTree.fromstring(llama.only("model.layers.0").svg())
    titles = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}title")}
    assert {"before_0_0:linear", "after_0_0:linear", "after_0_0:reduce"} <= titles


def test_collectives_stand_out_in_a_terminal(llama: GraphDiff) -> None:
    file = StringIO()
    Console(file=file, force_terminal=True, color_system="standard", width=120, no_color=False).print(
        llama.renderable()
    )
    (reduce, *_) = [line for line in file.getvalue().splitlines() if "KiB forward" in line and "reduce" in line]
    assert "\x1b[1;35m" in reduce  # bold magenta


def test_svg_without_graphviz_is_an_error_with_a_next_step(llama: GraphDiff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="apt-get install graphviz"):
        llama.svg()
