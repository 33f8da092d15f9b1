"""What instructions do to state that outlives their call, or ask of it, found in a piece of code once."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from dataclasses import dataclass

GIVEN = "given"  # what an action is about if it compares two arguments
_CHAIN = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_SETS = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_SETTERS = frozenset({"setattr", "delattr", "vars", "__dict__", "__setattr__", "__delattr__"})
_WRITES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})


@dataclass(frozen=True)
class Action:
    """What an instruction does to state that outlives its call: `chains` are the attributes that are read one off the other
    from a global, or from a Python module that is imported, which is the outermost one if it is imported as `whole`; `compared`
    if something is compared with the global itself, or looked for among it and others; `stored` are attributes that the code
    sets, of whatever it may be."""

    operation: str
    name: str
    chains: tuple[tuple[str, ...], ...] = ()
    compared: bool = False
    stored: frozenset[str] = frozenset()
    whole: bool = False


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
        elif instruction.opname == "IS_OP" and not _is_of_state(code, instructions[:at]):
            given = _given(code, instructions)
            is_told = all(i.opname == "LOAD_FAST" and i.argval in given for i in instructions[at - 2 : at])
            yield instruction.offset, Action("IS_OP", GIVEN if is_told else "is")
        elif instruction.opname in _READS:
            chains = (tuple(_chain(instructions, at)),)
            compared = _is_compared(instructions, at)
            yield instruction.offset, Action(instruction.opname, name, chains, compared, frozenset(stored))
        elif instruction.opname in _WRITES and (instruction.opname.endswith("GLOBAL") or name in code.co_freevars):
            yield instruction.offset, Action(instruction.opname, name)


def _given(code: types.CodeType, instructions: list[dis.Instruction]) -> set[str]:
    """The arguments of a method that stay what they were given as."""
    arguments = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return set(arguments) - {i.argval for i in instructions if i.opname in ("STORE_FAST", "DELETE_FAST")}


def _is_of_state(code: types.CodeType, before: list[dis.Instruction]) -> bool:
    """Returns if two things that are compared are constants, or read off globals, variables of a closure or the first argument,
    as a method's own object is: which of these are one is guarded. Of what a call gives nothing says which of the state it is."""
    own = code.co_varnames[:1]
    for _ in range(2):
        names = 0
        while before and before[-1].opname in _CHAIN:
            before, names = before[:-1], names + 1
        if not before:
            return False
        before, base = before[:-1], before[-1]
        if base.opname == "LOAD_CONST" or _calls_type(base, before):
            return True
        if base.opname not in ("LOAD_GLOBAL", "LOAD_DEREF") and not (
            base.opname == "LOAD_FAST" and names and base.argval in own
        ):
            return False
    return True


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
        if each.opname.startswith("LOAD_") and _variables(each)[-1] in kept:
            yield (*kept[_variables(each)[-1]], *_chain(instructions, place))


def _variables(instruction: dis.Instruction) -> tuple[str, ...]:
    """The variables of an instruction, which has two from Python 3.13 on."""
    named = instruction.argval
    return tuple(map(str, named)) if isinstance(named, tuple) else (str(named),)


def _is_compared(instructions: list[dis.Instruction], at: int) -> bool:
    behind = (i.opname for i in instructions[at + 1 :] if i.opname not in ("LOAD_GLOBAL", "BUILD_TUPLE", "BUILD_LIST"))
    return next(behind, "") in ("IS_OP", "COMPARE_OP", "CONTAINS_OP")
