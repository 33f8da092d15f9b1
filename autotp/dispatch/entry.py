"""The call of a program as Python text, straight through: take a call apart, check it, run, put the result together.

Looking at a call as data, to find the program for it, takes longer than everything else around the program. A unit is called
with the same kind of call again and again, so what is looked at then is written down once for each program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ..capture.opaque import Path, Position
from ..capture.signature import CallSite, Slot, autocast_dtype, is_one_of_its_own
from ..capture.traced import Traced
from ..errors import TraceError
from ..rewrite.build import Program
from ..runtime.cut.origin import parts_only
from .entry_parts import Parts
from .live import LiveUnit

Entry: TypeAlias = Callable[[LiveUnit, tuple[Any, ...], dict[str, Any]], Any]
OTHER = object()  # what an entry gives for a call that is not like its own
_EXACT = (bool, int, str, type(None))  # constants that are written as they are


class EntryCode:
    """Python text for the calls that one program is for."""

    def __init__(self, site: CallSite, traced: Traced, program: Program) -> None:
        self.site, self.traced, self.program = site, traced, program
        self.scope: dict[str, Any] = {
            "run": program.run,
            "fail": _fail,
            "other": OTHER,
            "parts_only": parts_only,
            "torch_functions": torch._C._EnableTorchFunction,
            "TraceError": TraceError,
        }
        self.handles: list[str] = []

    def in_graph(self, training: bool) -> Entry:
        """For calls of which dynamo checks what they look like; what was read from objects is checked here.

        Dynamo makes guards of its own from these reads. The entry raises TraceError for another call.
        """
        args = {kind: [_argument(path) for path in self.site.paths(kind)] for kind in ("tensor", "number", "handle")}
        self.handles = args["handle"]
        reads = [self._read(read.handle, read.path) for read in self.traced.reads]
        checks = [f"unit.module.training is not {training}", *self._handle_guards()]
        checks += self.numbers(args["tensor"], [*args["number"], *reads])
        if self.traced.positions is not None:
            checks.append(f"positions != {self.traced.positions}")
        self.scope["contract"] = self.traced.contract
        run = self._run("unit.module", args["tensor"], [*args["number"], *reads], "unit.bounds[contract]")
        lines = [f"if {check}: fail()" for check in checks] + run
        # Dynamo makes a guard of what is looked at, and of a number that only goes through none.
        look = _positions(lines, "tuple([held[name] for held, name in unit.places])")
        return self._compiled(["with parts_only():", *_indented(look + lines)])

    def eager(self, args: tuple[Any, ...], kwargs: dict[str, Any], unit: LiveUnit) -> Entry | None:
        """For calls like this one, the site's, of units like this one: another gives OTHER, and nothing has happened.

        None where a call holds something that has no such text: a container or a tensor of a class of its own.
        """
        parts = Parts(self)
        if not parts.take(args, "args") or not parts.take(kwargs, "kwargs"):
            return None
        numbers, first = [*parts.numbers], len(parts.lines)
        for i, read in enumerate(self.traced.reads):
            parts.lines.append(f"read_{i} = {self._read(read.handle, read.path)}")
            numbers.append(f"read_{i}")
        parts.check([*parts.sizes(numbers), *self._handle_guards()])
        if self.traced.positions is not None:
            parts.check([f"positions != {self.traced.positions}"])
        parts.check([f"unit.compiler.is_filled({handle})" for handle in self.handles])
        if self.handles:  # to which cut parameters are whole
            parts.lines[first:] = ["with torch_functions():", *_indented(parts.lines[first:])]
        if self.traced.contract.writes:
            parts.check([f"not bound.memory.is_apart([{', '.join(parts.tensors)}])"])
        run = self._run("unit.parts", parts.tensors, numbers, "bound")
        look = [*_positions([*parts.lines, *run], "unit.positions"), *self._mode(unit), *parts.lines]
        lines = ["try:", *_indented(look), "except (LookupError, AttributeError, TypeError, RuntimeError, TraceError):"]
        return self._compiled(["with parts_only():", *_indented([*lines, "    return other", *run])])

    def _mode(self, unit: LiveUnit) -> list[str]:
        """Lines that leave if a call finds the module, or torch, in another mode or state."""
        self.scope |= {"grad": torch.is_grad_enabled, "autocast": autocast_dtype, "contract": self.traced.contract}
        checks = [
            "unit.compiler.refused",
            f"unit.module.training is not {unit.module.training}",
            f"grad() is not {torch.is_grad_enabled()}",
            "not unit.structure.is_same()",
            "not (bound := unit.bounds[contract]).holds()",
        ]
        state = unit.first_parameter()
        if state is not None:
            self.scope |= {"dtype": state.dtype, "cast": autocast_dtype(state.device.type)}
            checks += [
                "(state := unit.first_parameter()).dtype is not dtype",
                "autocast(state.device.type) is not cast",
            ]
        return [f"if {' or '.join(checks)}: return other"]

    def constant(self, value: Any, always: bool = False) -> str:
        """A constant as text, by a name of its own where that takes more than a literal."""
        if isinstance(value, Position):
            return f"positions[{value.number}]"
        if not always and type(value) in _EXACT:
            return repr(value)
        name = f"constant_{len(self.scope)}"
        self.scope[name] = value
        return name

    def _handle_guards(self) -> list[str]:
        return [
            check
            for number, guard in enumerate(self.traced.handle_guards)
            for check in self.other_than(
                f"(found_{number} := {self._read(guard.read.handle, guard.read.path)})", f"found_{number}", guard.value
            )
        ]

    def other_than(self, text: str, again: str, value: Any) -> list[str]:
        """What must not be true of a text that gives a constant, which another one gives `again`; as `is_same` has it."""
        constant = self.constant(value)
        if value is None or isinstance(value, (bool, type, Enum)) or is_one_of_its_own(value):
            return [f"{text} is not {constant}"]
        checks = [f"type({text}) is not {self.constant(type(value))}"]
        if isinstance(value, float) and (value == 0 or value != value):
            return [*checks, f"repr({again}) != {repr(value)!r}"]
        return [*checks, f"{again} != {constant}"]

    def numbers(self, tensors: Sequence[str], numbers: Sequence[str]) -> list[str]:
        """What must not be true of the numbers, alone and together with sizes."""
        guards = self.traced.guards
        checks = [f"{numbers[at]} != {value}" for (at, dim), value in guards.constants.items() if dim is None]
        if any(dim is None for _, dim in guards.places):
            checks += self.conditions(tensors, numbers)
        return checks

    def conditions(self, tensors: Sequence[str], numbers: Sequence[str]) -> list[str]:
        """The conditions on sizes and numbers, if there are any, as what must not be true."""
        guards = self.traced.guards
        if not guards.places:
            return []
        self.scope["holds"] = guards.check
        values = [numbers[at] if dim is None else f"{tensors[at]}.shape[{dim}]" for at, dim in guards.places]
        return [f"not holds({', '.join(values)})"]

    def _read(self, handle: int, path: Path) -> str:
        text = self.handles[handle]
        for kind, step in path:
            if kind != "()":
                text = (
                    f"{text}.{step}"
                    if kind == "."
                    else f"hasattr({text}, {step!r})"
                    if kind == "has"
                    else f"type({text})"
                )
                continue
            args, kwargs = step
            given = [*map(self.constant, args), *(f"{name}={self.constant(v)}" for name, v in kwargs.items())]
            text += f"({', '.join(given)})"
        return text

    def _run(self, module: str, tensors: Sequence[str], numbers: Sequence[str], bound: str) -> list[str]:
        inputs = [str(node.target) for node in self.program.graph.nodes if node.op == "placeholder"]
        positions = [f"positions[{i}]" for i in range(sum("position_" in name for name in inputs))]
        read = self.traced.contract.tensors
        constants = [
            f"{bound}.tensors[{name!r}]" if name in read else self.constant(value, always=True)
            for name, value in self.program.constants
        ]
        given = [module, "unit.ranks", *tensors, *numbers, *self.handles, *positions, *constants]
        return [f"tensors = run({', '.join(given)})", f"return {self._result()}"]

    def _result(self) -> str:
        """The result built from the program's tensors, the call's handles and constants."""
        names = [
            f"tensors[{leaf.number}]" if isinstance(leaf, Slot) and leaf.kind == "tensor"
            else self.handles[leaf.number] if isinstance(leaf, Slot)
            else self.constant(leaf)
            for leaf in self.traced.outputs
        ]  # fmt: skip
        built = pytree.tree_unflatten([_Text(name) for name in names], self.traced.out_spec)
        text = _text_of(built)
        if text is not None:
            return text
        self.scope |= {"unflatten": pytree.tree_unflatten, "spec": self.traced.out_spec}
        return f"unflatten([{', '.join(names)}], spec)"

    def _compiled(self, lines: Sequence[str]) -> Entry:
        text = "\n".join(["def entry(unit, args, kwargs):", *_indented(lines)])
        exec(compile(text, "<autotp entry>", "exec"), self.scope)
        entry: Entry = self.scope["entry"]
        return entry


class _Text(str):
    """A leaf of a result as Python text."""


def _text_of(tree: Any) -> str | None:
    """A tree of texts as one, None for a container that has no literal."""
    if isinstance(tree, _Text):
        return str(tree)
    if type(tree) in (tuple, list):
        parts = [_text_of(part) for part in tree]
        if None in parts:
            return None
        joined = ", ".join(map(str, parts))
        return f"[{joined}]" if type(tree) is list else f"({joined}{',' if len(parts) == 1 else ''})"
    return None


def _argument(path: str) -> str:
    """A place in (args, kwargs) as an expression: `[0][1]` is `args[1]`, `[1]['mask']` is `kwargs['mask']`."""
    return ("args" if path.startswith("[0]") else "kwargs") + path[3:]


def _positions(lines: Sequence[str], found: str) -> list[str]:
    """A line that looks up the unit's positions, where other lines read them."""
    return [f"positions = {found}"] if any("positions" in line for line in lines) else []


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _fail() -> None:
    raise TraceError("a compiled block was called in a way it was not compiled for")
