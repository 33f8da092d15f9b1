"""The collectives that a call is to send: what units were called, what ran for them, and which gradients came back to them."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.instances import opened
from ..capture.opaque import tensors_of
from ..capture.signature import Slot, call_site
from ..capture.traced import Traced
from ..dispatch.compiler import tensors_in
from ..placement.calls import Sent
from ..planner.plan import Plan, UnitPlan
from ..rewrite.build import Program
from ..runtime.groups.log import CollectiveCall, CollectiveLog, UnitCall
from ..runtime.results.logits import OPERAND

GATHERS, LOSS = "all_gather forward activation", "loss"


class Collective(Protocol):
    """A collective that is planned, that is placed in a program, or that ran."""

    @property
    def kind(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def of(self) -> str: ...


@dataclass
class Called:
    """One call of a unit of the dense model: the places of its tensors that want gradients, the number of leaves that it gave,
    those of them that a gradient came back to, if the call itself was in a backward, as checkpointing has it, and if its
    gradients are to be differentiated again."""

    path: str
    wanting: frozenset[str]
    leaves: int
    in_backward: bool
    came: set[int] = field(default_factory=set)
    is_twice: bool = False

    def tell(self, leaf: int) -> None:
        """A gradient comes to a leaf."""
        self.came.add(leaf)
        self.is_twice |= torch.is_grad_enabled()


@contextmanager
def called_units(model: nn.Module, units: Iterable[str]) -> Iterator[list[Called]]:
    """Notes the calls of units, given by their paths, as long as this lasts."""
    calls: list[Called] = []

    def note(path: str, module: nn.Module, given: tuple[tuple[object, ...], dict[str, object]], result: object) -> None:
        site, leaves = call_site(module, *given), pytree.tree_leaves(opened(result))
        places = zip(site.paths("tensor"), site.tensors, strict=True)
        wanting = frozenset(place for place, tensor in places if tensor.requires_grad)
        call = Called(path, wanting, len(leaves), torch._C._current_graph_task_id() != -1)
        calls.append(call)
        for number, leaf in enumerate(leaves):
            for tensor in tensors_of(leaf) if dataclasses.is_dataclass(leaf) else [leaf]:
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    _tell_of_gradient(tensor, functools.partial(call.tell, number))

    with ExitStack() as wrapped:
        for path in units:
            wrapped.enter_context(_told_of(model.get_submodule(path), functools.partial(note, path)))
        yield calls


def _tell_of_gradient(tensor: torch.Tensor, tell: Callable[[], None]) -> None:
    """Tells when a gradient comes to a tensor."""
    if tensor.grad_fn is None or not tensor._is_view():
        tensor.register_hook(lambda gradient: tell())
        return
    number = tensor.output_nr  # torch dies of a hook of the tensor itself, if it was written into
    tensor.grad_fn.register_prehook(lambda gradients: tell() if gradients[number] is not None else None)


@dataclass(frozen=True)
class Counts:
    """Numbers of collectives by name: planned, counted, and how many fewer than planned may run. Where units ran `whole`, what is
    planned is what was counted."""

    planned: dict[str, int]
    counted: dict[str, int]
    joined: dict[str, int] = field(default_factory=dict)
    whole: tuple[str, ...] = ()


class Expected:
    """The collectives of calls under a plan; the traces that it was made from are given by the paths of units. A call like such
    a one sends what is planned for its unit; another one, with no mask for one, what is placed in the program that ran for it."""

    def __init__(self, plan: Plan, traced: Mapping[str, Traced]) -> None:
        self._plan, self._traced = plan, traced
        self._units = {path: unit for unit in plan.units for path in unit.instances}

    def of(self, dense: Sequence[Called], log: CollectiveLog) -> Counts:
        """The collectives of one call of the model, with those that are to run. The calls of units are those of the dense model,
        and those that a rank logged."""
        counted = Counter(name_of(call) for call in log.calls if _is_of_units(call))
        whole = tuple(dict.fromkeys(unit.path for unit in log.units if unit.ran is None))
        if whole:
            return Counts(dict(counted), dict(counted), whole=whole)
        planned, late, unread = Counter(map(name_of, self._plan.around)), 0, False
        for call, own in _paired(dense, log.units):
            for collective, runs, is_late in self._of_unit(call, own):
                planned[name_of(collective)] += is_late or runs
                late, unread = late + is_late, unread or (is_late and not runs)
        # What is gathered when it is read may be read by nobody, or by a loss, which needs no more than parts; and where the
        # Python outside computes with what is cut, that is gathered, be it one sum of several or several values of one.
        has_loss = any(call.phase == LOSS for call in log.calls)
        fewer = late if has_loss or unread else max(late - 1, 0)
        if any(call.is_twice for call in dense):  # a plan is of one backward
            backward = [name for name in planned | counted if name.split()[1] == "backward"]
            planned |= {name: counted[name] for name in backward}
        planned[GATHERS] += max(min(counted[GATHERS] - planned[GATHERS], log.computed), 0)
        return Counts(dict(+planned), dict(counted), {GATHERS: fewer} if fewer else {})

    def _of_unit(self, call: Called, ran: object) -> Iterator[tuple[Collective, bool, bool]]:
        """The collectives of one call of a unit; if the call needs each; and if it is a gather of what the unit gives, which is
        done when that is read."""
        plan, surveyed = self._units.get(call.path), self._traced.get(call.path)
        if plan is None or surveyed is None or not isinstance(ran, tuple):
            return
        traced, program = ran
        known = {(each.kind, each.phase, each.nodes): each for each in program.sends}
        reached, unwanted = _reached(call, traced), _unwanted(call, traced)
        for collective in plan.collectives if _is_planned(plan, surveyed, traced, program) else program.sends:
            placed: Sent | None = known.get((collective.kind, collective.phase, collective.nodes))
            asked = bool(reached if placed is None else reached & placed.results)
            if collective.of == "buffer":
                continue
            if collective.phase == "backward":
                of_input = unwanted >= set(collective.nodes) and (placed is None or placed.of_gradients)
                yield collective, asked and not of_input, False
            elif not call.in_backward:
                is_late = name_of(collective) == GATHERS and placed is not None and placed.is_result
                yield collective, asked or not is_late, is_late


def _reached(call: Called, traced: Traced) -> frozenset[int]:
    """The numbers of the unit's results that a gradient came back to."""
    if len(traced.outputs) != call.leaves:  # all, where it is not known which
        return frozenset(range(len(traced.outputs)) if call.came else ())
    slots = [traced.outputs[leaf] for leaf in call.came]
    return frozenset(slot.number for slot in slots if isinstance(slot, Slot) and slot.kind == "tensor")


def _unwanted(call: Called, traced: Traced) -> frozenset[str]:
    """The names of the inputs of which the call wants no gradient."""
    return frozenset(node.name for node, place in tensors_in(traced.graph, traced.site) if place not in call.wanting)


def _is_planned(plan: UnitPlan, surveyed: Traced, traced: Traced, program: Program) -> bool:
    """Returns if a program is for a call like the one that its unit's plan was made from."""
    if traced is not surveyed and not traced.site.is_like(surveyed.site):
        return False
    return (program.cut is not None) == plan.sequence and _operators(traced) == _operators(surveyed)


def _operators(traced: Traced) -> list[tuple[str, str, str]]:
    return [(node.op, str(node.target), node.name) for node in traced.graph.nodes]


def _paired(dense: Sequence[Called], ran: Sequence[UnitCall]) -> Iterator[tuple[Called, object]]:
    """Every call of a unit of the dense model with what a rank ran for it. Of those in a backward, a checkpoint may break off
    some; the others have gradients."""
    theirs: dict[tuple[str, bool], list[object]] = {}
    for unit in ran:
        theirs.setdefault((unit.path, unit.in_backward), []).append(unit.ran)
    for found in theirs.values():
        found.reverse()
    for call in dense:
        left = theirs.get((call.path, call.in_backward))
        if left and (call.came or not call.in_backward):
            yield call, left.pop()


def _is_of_units(call: CollectiveCall) -> bool:
    """Returns if units have sent it: not what Python around them adds, recomputes or saves. What buffers are given is not
    compared: it is sent in training only, and a plan knows one mode."""
    return call.phase not in ("checkpoint", LOSS) and call.of not in ("buffer", OPERAND) and not call.in_backward


def name_of(collective: Collective) -> str:
    """The name under which collectives are counted."""
    return f"{collective.kind} {collective.phase} {collective.of}"


@contextmanager
def _told_of(module: nn.Module, tell: Callable[..., None]) -> Iterator[None]:
    """Tells of every forward of a module, also of one that is called by that name, which runs no hooks."""
    before, original = module.__dict__.get("forward"), module.forward

    @functools.wraps(original)
    def forward(*args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        tell(module, (args, kwargs), result)
        return result

    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        module.__dict__.pop("forward")
        module.__dict__ |= {} if before is None else {"forward": before}
