"""What instructions do to state that outlives their call, or ask of it, found in a piece of code once."""

from __future__ import annotations

import dis
import functools
import itertools
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .of_tensors import OF_PYTHON

_CHAIN = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
SUBCLASSES = "__subclasses__"
_SETS = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_SETTERS = frozenset({"setattr", "delattr", "vars", "__dict__", "__setattr__", "__delattr__"})
_WRITES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})


@dataclass(frozen=True)
class Action:
    """What an instruction does to state that outlives its call: `chains` are the attributes that are read one off the other
    from a global, or from a Python module that is imported, which is the outermost one if it is imported as `whole`; `compared`
    if something is compared with the global itself, or looked for among it and others; `stored` are attributes that the code
    sets, of whatever it may be; `operands` are where two things come from that are compared by what they are."""

    operation: str
    name: str
    chains: tuple[tuple[str, ...], ...] = ()
    compared: bool = False
    stored: frozenset[str] = frozenset()
    whole: bool = False
    operands: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Item:
    """A constant by which something is read from a container."""

    key: Any


# Something is asked for what Python itself says of it: `operands` are where it is held, as `_place` has it.
ABOUT = "ABOUT"
_actions: dict[types.CodeType, dict[int, Action]] = {}


def actions_of(code: types.CodeType) -> dict[int, Action]:
    """The instructions of a piece of code that read globals, or write what is not its own, by where they are."""
    if code not in _actions:
        _actions[code] = dict(_find_actions(code))
    return _actions[code]


def _find_actions(code: types.CodeType) -> Iterator[tuple[int, Action]]:
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "PUSH_NULL")]
    stored = {str(i.argval) for i in instructions if i.opname in _SETS}
    if not _SETTERS.isdisjoint(code.co_names):
        stored |= {each for each in code.co_consts if isinstance(each, str)}
    for at, instruction in enumerate(instructions):
        name = str(instruction.argval)
        if instruction.opname == "IMPORT_NAME":  # behind its level and the names that it takes
            whole = not instructions[at - 1].argval
            name = "." * int(instructions[at - 2].argval) + name
            chains = tuple(_imported(instructions, at, name.split(".")[1:] if whole else []))
            yield instruction.offset, Action("IMPORT_NAME", name, chains, stored=frozenset(stored), whole=whole)
        elif instruction.opname == "MATCH_CLASS":
            yield instruction.offset, Action("MATCH_CLASS", "match")
        elif instruction.opname == "IS_OP" and "constant" not in (operands := _compared(code, instructions[:at])):
            yield instruction.offset, Action("IS_OP", "is", operands=operands)
        elif instruction.opname in _CHAIN and name == SUBCLASSES:
            held = instructions[at - 1]
            yield instruction.offset, Action(SUBCLASSES, _variables(held)[-1], operands=(held.opname,))
        elif instruction.opname in _CHAIN and name in OF_PYTHON:
            yield instruction.offset, Action(ABOUT, name, operands=_place(code, instructions[:at]))
        elif instruction.opname in _READS:
            chains = (tuple(_chain(instructions, at)),)
            compared = _is_compared(instructions, at)
            given = _only_argument(code, instructions[at + 1 :]) if name == "vars" else ()
            yield (
                instruction.offset,
                Action(instruction.opname, name, chains, compared, frozenset(stored), operands=given),
            )
        elif instruction.opname in _WRITES and (instruction.opname.endswith("GLOBAL") or name in code.co_freevars):
            yield instruction.offset, Action(instruction.opname, name)


def _compared(code: types.CodeType, before: list[dis.Instruction]) -> tuple[str, ...]:
    """Where two things come from that are compared by what they are: each a `constant`, what is read off a `global`, a variable
    of a `closure` or the `first` argument, an argument as it was `given`, or `other`."""
    second, before = _operand(code, before)
    return _operand(code, before)[0], second


def _operand(code: types.CodeType, before: list[dis.Instruction]) -> tuple[str, list[dis.Instruction]]:
    """Where the last thing that instructions load comes from, and the instructions before that."""
    at, joined = len(before) - 1, False
    while at >= 0 and before[at].opname in _CHAIN:
        joined |= before[at].is_jump_target
        at -= 1
    if at < 0 or joined:  # one of several, as a condition says
        return "other", []
    base, rest, is_read = before[at], before[:at], at < len(before) - 1
    if _calls_type(base, rest) or (base.opname == "LOAD_CONST" and not base.is_jump_target):
        return "constant", rest
    kind = {"LOAD_GLOBAL": "global", "LOAD_DEREF": "closure", "LOAD_FAST": "local"}.get(base.opname, "other")
    if kind == "local":
        is_first = is_read and base.argval in code.co_varnames[:1]
        kind = "first" if is_first else "given" if base.argval in _given(code) and not is_read else "other"
    # What is before a target of a jump is one of several, too: the first of two operands may be.
    return kind, [] if base.is_jump_target else rest


def _given(code: types.CodeType) -> set[str]:
    """The arguments of a method that stay what they were given as."""
    arguments = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return set(arguments) - {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_FAST", "DELETE_FAST")}


def _calls_type(last: dis.Instruction, before: list[dis.Instruction]) -> bool:
    """Returns if instructions end with a call of `type`: what is compared are classes, which calls tell apart."""
    return last.opname == "CALL" and any(i.opname == "LOAD_GLOBAL" and i.argval == "type" for i in before[-5:])


def _chain(instructions: list[dis.Instruction], at: int) -> Iterator[str]:
    """The names that are read one off the other from what was loaded."""
    for instruction in instructions[at + 1 :]:
        if instruction.opname not in _CHAIN:
            return
        yield str(instruction.argval)


def _imported(instructions: list[dis.Instruction], at: int, inner: list[str]) -> Iterator[tuple[str, ...]]:
    """The same for a Python module that is imported: names that are taken from it, and what is read off the variables that it
    and these become. `inner` is the way from the outermost one to the one that is named: `import a.b as c` takes that."""
    taken: tuple[str, ...] = ()
    kept: dict[str, tuple[str, ...]] = {}  # the variables, and what of the module each is
    for each in instructions[at + 1 :]:
        if each.opname == "IMPORT_FROM":
            taken = tuple(inner) or (str(each.argval),)
            yield taken
        elif each.opname.startswith("STORE_"):
            kept[_variables(each)[0]] = taken
        elif each.opname not in ("SWAP", "POP_TOP"):
            break
    for place, each in enumerate(instructions):
        if each.opname.startswith(_VARIABLES) and _variables(each)[-1] in kept:
            yield (*kept[_variables(each)[-1]], *_chain(instructions, place))


def _variables(instruction: dis.Instruction) -> tuple[str, ...]:
    """The variables of an instruction, which has two from Python 3.13 on."""
    named = instruction.argval
    return tuple(map(str, named)) if isinstance(named, tuple) else (str(named),)


def _is_compared(instructions: list[dis.Instruction], at: int) -> bool:
    behind = (i.opname for i in instructions[at + 1 :] if i.opname not in ("LOAD_GLOBAL", "BUILD_TUPLE", "BUILD_LIST"))
    return next(behind, "") in ("IS_OP", "COMPARE_OP", "CONTAINS_OP")


def _place(code: types.CodeType, before: list[dis.Instruction]) -> tuple[Any, ...]:
    """Where the last thing that instructions load is held: the instruction that loads a variable, its name, and the attributes
    and items (`Item`) that are read one off the other from there; `type` of a class that is asked for, and nothing where
    nothing tells."""
    steps: list[Any] = []
    while before and not before[-1].is_jump_target:
        if before[-1].opname in _CHAIN:
            steps.insert(0, str(before[-1].argval))
            before = before[:-1]
        elif (
            before[-1].opname == "BINARY_SUBSCR" and before[-2].opname == "LOAD_CONST" and not before[-2].is_jump_target
        ):
            steps.insert(0, Item(before[-2].argval))
            before = before[:-2]
        else:
            break
    if not before or before[-1].opname in _CHAIN:
        return ()
    base = before[-1]
    if _calls_type(base, before[:-1]):
        return ("type",)
    is_told = base.opname.startswith(_VARIABLES) and not base.is_jump_target
    return (base.opname, _variables(base)[-1], *steps) if is_told else ()


_VARIABLES = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")


def _only_argument(code: types.CodeType, behind: list[dis.Instruction]) -> tuple[Any, ...]:
    """The same of the argument of a call, if that is its only one; `type` where there is none."""
    loads = list(itertools.takewhile(lambda each: each.opname not in ("PRECALL", "CALL"), behind))
    is_alone = all(each.opname in _CHAIN for each in loads[1:])
    return ("type",) if not loads else _place(code, loads) if is_alone else ()


@functools.cache
def past_access(code: types.CodeType) -> frozenset[str] | None:
    """The attributes that a method reads off its own object past the access to attributes that its class defines, each by a word
    (`super().__getattribute__("name")`). None if it does so in another way, of something else or not at all."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "PUSH_NULL", "PRECALL")]
    names = set[str]()
    for at, instruction in enumerate(instructions):
        if instruction.argval != "__getattribute__":
            continue
        before, behind = instructions[max(at - 2, 0) : at], instructions[at + 1 : at + 3]
        of_super = "SUPER" in instruction.opname or [each.argval for each in before] == ["super", 0]
        if not of_super or [each.opname for each in behind] != ["LOAD_CONST", "CALL"]:
            return None
        word, call = behind
        if call.arg != 1 or word.is_jump_target or call.is_jump_target:  # one of several, as a condition says
            return None
        names.add(str(word.argval))
    return frozenset(names) or None
