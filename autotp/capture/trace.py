"""Tracing: one call of one unit as a torch.fx graph with symbolic sizes.

The graph's `get_attr` nodes are the unit's parameters and buffers by path; its placeholders are, in order, the tensors,
the handles and the positions of the call; every node that holds a tensor carries a fake one in `meta["val"]`.
What else is known of it is its `annotation`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from ..axes.annotation import annotate
from ..axes.rules import function_rules, operator_rules
from ..errors import TraceError
from .capturing import capturing, unwrapped
from .clone import clone, holding
from .composite import composites
from .containers import Containers
from .contract.frames import PARAMETER
from .contract.guards import Contract
from .contract.laying import GapsError, layings_of, storage_of
from .contract.modes import Modes
from .contract.observer import Observer
from .functions import opaque_functions
from .grouped import GroupedProducts
from .handles import OPAQUE, OPAQUE_NUMBER, Handles, release
from .instances import opened
from .memory import outliving, settle_writes
from .normalise import normalise
from .opaque import Position, Widths, operator_value
from .reads import HandleRead
from .replace import Inputs, Replacement, become_attribute, check_later
from .signature import CallSite, Slot
from .stand_in import handle_number, is_stand_in
from .symbols import Symbols, is_float
from .traced import CaptureError, Traced
from .units import Unit
from .varying import VaryingDims
from .whereabouts import keep_modules, noting_modules


@capturing()
def trace(
    module: nn.Module,
    unit: Unit,
    site: CallSite,
    varying: VaryingDims,
    unread: frozenset[int] = frozenset(),
    widths: Widths | None = None,
    rules: tuple[Path, ...] = (),
    live: nn.Module | None = None,
) -> Traced:
    """Capture one call of a unit. The module is left as it was, and no weight is read. `widths` says how wide the wholes
    are of which opaque objects in the call hold slices; `rules` are folders with rules of the user's own. `live` is the module
    that is called, of which the given one is a dense copy; the same unless given.

    Raises TraceError, with the reason, for what cannot be captured.
    """
    modes, read = Modes(), [Contract()]

    def run(numbers_vary: bool, gaps: bool) -> Traced:
        given = module, live or module, unit, site, varying, widths or Widths(), rules
        tracer = _Tracer(*given, numbers_vary, gaps)
        try:
            return replace(tracer.run(modes), unread=unread)
        except BaseException:
            if tracer.observer is not None:
                tracer.observer.snapshots.forget_results()
            raise
        finally:
            release(tracer.handles)
            read.append(tracer.contract())

    numbers_vary, gaps = True, False
    try:
        while True:
            try:
                return run(numbers_vary, gaps)
            except TypeError as error:
                if "unhashable type" not in str(error) or not numbers_vary:
                    raise
                numbers_vary = False  # a number is looked up in a table: the trace holds for that number only
            except GapsError:
                if gaps:
                    raise
                gaps = True
    except TraceError as error:
        raise CaptureError(str(error), read[-1], getattr(error, "changes", ())) from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        text = f"{unit.path or 'the model'} cannot be traced: {type(error).__name__}: {reason}"
        raise CaptureError(text, read[-1]) from error


class _Tracer:
    def __init__(
        self,
        module: nn.Module,
        live: nn.Module,
        unit: Unit,
        site: CallSite,
        varying: VaryingDims,
        widths: Widths,
        rules: tuple[Path, ...],
        numbers_vary: bool,
        gaps: bool,
    ) -> None:
        site.check_classes()
        devices = [site.device, *(tensor.device for tensor in site.tensors)]
        device = next((each for each in devices if each is not None and each.type != "meta"), None)
        self.site, self.symbols = site, Symbols(device)
        self.module, self.live, self.rules = clone(module, hooks=True), live, rules
        self.position_names, self.gaps = frozenset(unit.positions), gaps
        self.observer: Observer | None = None
        self.positions: list[Position] = []
        self.places = values = unit.position_values(module)
        for number, (path, name) in enumerate(unit.positions):
            owner = self.module.get_submodule(path)
            self.positions.append(Position(getattr(owner, name), number))
            setattr(owner, name, self.positions[-1])
        self.state = self._fake_state()
        self.inputs = [
            self._fake_input(i, tensor, varying.of(path, tensor))
            for i, (path, tensor) in enumerate(zip(site.paths("tensor"), site.tensors, strict=True))
        ]
        self.numbers = [
            self.symbols.number(i, number, numbers_vary and varying.of_number(path))
            for i, (path, number) in enumerate(zip(site.paths("number"), site.numbers, strict=True))
        ]
        self.reads = self._varying_reads(varying, values)
        self.handles = Handles(self.symbols, self.module, widths, operator_rules(rules))
        self.stand_ins = [self.handles.stand_in(handle) for handle in site.handles]
        self.outputs: list[Any] = []
        self.out_spec: Any = None

    def _varying_reads(self, varying: VaryingDims, positions: tuple[int, ...]) -> list[HandleRead]:
        """The numbers read from objects that are inputs of this trace; they join the call's own."""
        reads = list[HandleRead]()
        for read in varying.reads():
            with suppress(LookupError, AttributeError, TypeError):
                value = read.of(self.site.handles, positions)
                if type(value) is int and value > 1:  # none and one are cases of their own
                    self.numbers.append(self.symbols.number(len(self.numbers), value, True))
                    reads.append(read)
        return reads

    def _fake_state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by path, as fakes; a tied parameter is one fake under several paths."""
        fakes: dict[int, torch.Tensor] = {}
        named = [
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        ]
        for _, tensor in named:
            if id(tensor) not in fakes:
                fake = self.symbols.tensor(tensor, gaps=not isinstance(tensor, nn.Parameter))
                fakes[id(tensor)] = fake.requires_grad_() if _may_want_gradients(tensor) and is_float(fake) else fake
        return {name: fakes[id(tensor)] for name, tensor in named}

    def _fake_input(self, number: int, tensor: torch.Tensor, dynamic: set[int]) -> torch.Tensor:
        fake = self.symbols.tensor(tensor, dynamic, self.gaps)
        self.symbols.bind(number, fake)
        if not (tensor.requires_grad and is_float(fake)):
            return fake
        with self.symbols.mode, torch.enable_grad():
            return fake.requires_grad_().clone()  # no leaf: a block may write into its input

    def contract(self, constants: Mapping[str, torch.Tensor] | None = None, written: Collection[str] = ()) -> Contract:
        """What the unit's Python has read until now, and what the graph writes into."""
        observer = self.observer
        return observer.contract(constants or {}, written, self.site.tensors) if observer else Contract()

    def run(self, modes: Modes) -> Traced:
        self.modes = modes
        names = list({id(fake): name for name, fake in reversed(self.state.items())}.values())[::-1]
        symbolic = [number for number in self.numbers if isinstance(number, torch.SymInt)]
        flat = [*(self.state[name] for name in names), *self.inputs, *symbolic]
        with (
            opaque_functions(self.handles.call_function, self.module, function_rules(self.rules)),
            self.symbols.mode,
            enable_python_dispatcher(),
            noting_modules(self.module),
            GroupedProducts(),
            unwrapped(),
        ):
            tracer = make_fx(
                lambda flat: self._call(names, flat),
                decomposition_table=composites(self.rules),
                tracing_mode="real",
                pre_dispatch=True,
                _allow_non_fake_inputs=True,
            )
            traced = tracer(flat)
        if self.handles.problem is not None:
            raise TraceError(self.handles.problem)
        laid, strides = (self.observer.laid, self.observer.strides) if self.observer else ((), False)
        guards = self.symbols.guards(layings_of(laid, self.site.tensors, self.gaps, strides))
        graph, constants = self._graph(traced, names)
        normalise(graph, constants)
        settle_writes(graph, repeated=self.observer is not None and self.observer.repeats)
        return Traced(
            graph=graph,
            site=self.site,
            outputs=tuple(self.outputs),
            out_spec=self.out_spec,
            guards=guards,
            handle_guards=tuple(self.handles.guards),
            reads=tuple(self.reads),
            constants=constants,
            positions=self.places if any(position.used for position in self.positions) else None,
            contract=self.contract(constants, {str(node.target) for node in outliving(graph)}),
            symbols=self.symbols,
        )

    def _call(self, names: list[str], flat: list[Any]) -> list[torch.Tensor]:
        by_fake = {id(self.state[name]): tensor for name, tensor in zip(names, flat[: len(names)], strict=True)}
        state = {name: by_fake[id(fake)] for name, fake in self.state.items()}
        for name, _ in self.module.named_parameters(remove_duplicate=False):
            state[name].__dict__[PARAMETER] = True
        tensors, symbolic = flat[len(names) :][: len(self.inputs)], iter(flat[len(names) + len(self.inputs) :])
        numbers = [next(symbolic) if isinstance(number, torch.SymInt) else number for number in self.numbers]
        tensors, own = [tensors[same] for same in self.site.same], len(self.site.numbers)
        self.handles.varying = dict(zip((read.name for read in self.reads), numbers[own:], strict=True))
        args, kwargs = self.site.rebuild(tensors, numbers[:own], self.stand_ins)
        given = Containers((args, kwargs))
        with holding(self.module, self.live, state) as held, _reparametrize_module(self.module, state):
            observer = Observer(self.module, self.live, self.position_names, self.modes)
            self.observer = self.handles.observer = observer
            observer.held = held
            observer.inputs = {storage_of(tensor): number for number, tensor in enumerate(tensors)}
            with observer.watching():
                observer.begin(self.site.leaves, map(type, self.site.handles))
                result = observer.run(self.module.forward, *args, **kwargs)
        given.check(result, observer.known.keys() | observer.snapshots.taken.keys())
        leaves, self.out_spec = pytree.tree_flatten(opened(result), is_leaf=is_stand_in)
        self.outputs = list(map(self._output, leaves, itertools.repeat(itertools.count())))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def _output(self, leaf: Any, number: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return Slot("tensor", next(number))
        if (handle := handle_number(leaf)) is not None:
            return Slot("handle", handle)
        leaf = operator_value(leaf)
        if leaf is None or isinstance(leaf, (bool, int, float, str)):
            return leaf
        raise TraceError(f"it returns a {type(leaf).__name__}, which is neither a tensor nor an argument")

    def _graph(self, traced: torch.fx.GraphModule, names: list[str]) -> tuple[torch.fx.Graph, dict[str, torch.Tensor]]:
        """The traced graph with parameters as attributes, opaque calls as Python calls and the handles as inputs."""
        graph = torch.fx.Graph()  # owned by no module, since its attributes live in many
        graph.output(graph.graph_copy(traced.graph, {}))
        keep_modules(graph)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        symbolic = [node for node in placeholders if isinstance(node.meta.get("val"), torch.SymInt)]
        placeholders = [node for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)]
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        for node, name in zip(placeholders[: len(names)], names, strict=True):
            annotate(node, parameter=name in parameters, gradient=self.state[name].requires_grad)
            become_attribute(graph, node, name)
        for node in [n for n in graph.nodes if n.op == "placeholder" and n not in (*placeholders, *symbolic)]:
            graph.erase_node(node)
        for i, number in enumerate(self.numbers):
            if isinstance(number, torch.SymInt):
                node = symbolic.pop(0)
                node.name = node.target = f"number_{i}"
        for i, node in enumerate(placeholders[len(names) :]):
            node.name = node.target = f"tensor_{i}"
            annotate(node, gradient=self.inputs[i].requires_grad)
        inputs = Inputs(graph, self.numbers, len(self.site.handles), len(self.positions))
        for node in [n for n in graph.nodes if n.target in (OPAQUE, OPAQUE_NUMBER)]:
            Replacement(graph, node, inputs).replace()
        check_later(graph, self.symbols)
        constants = {
            str(node.target): getattr(traced, str(node.target))
            for node in graph.nodes
            if node.op == "get_attr" and hasattr(traced, str(node.target)) and str(node.target) not in self.state
        }
        for node in graph.nodes:
            if node.op == "get_attr" and node.target in constants:
                node.meta["val"] = constants[str(node.target)]
                annotate(node, gradient=constants[str(node.target)].requires_grad)
        return graph, constants


def _may_want_gradients(tensor: torch.Tensor) -> bool:
    """Returns if a program is for a tensor that wants a gradient: parameters may be frozen and thawed."""
    return isinstance(tensor, nn.Parameter) or tensor.requires_grad
