"""A contract as data: where its trace found what, each with the text of it. It is read by looking all of it up again."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import nn

from ..contract import answers, laying, memo, probes
from ..contract.guards import Contract, Guard, grouped
from ..contract.modes import Modes
from ..contract.source import Source
from ..contract.values import as_expected, kind_of
from ..opaque import objects_in
from .names import UnnamedError, found, module_named, name_of, name_of_globals
from .texts import called_with, codes_in, constants_text, text_at, texts_in
from .values import value_data, value_of

_QUESTIONS: Mapping[str, Callable[[Any], Any]] = {
    question.__name__: question
    for question in (
        answers.answer,
        answers.autocast_dtypes,
        answers.level,
        answers.numpy_errors,
        answers.registered,
        answers.warning_filters,
        laying.strides_of,
        memo.cache_state,
        probes.array_state,
        probes.attributes_of,
        probes.builtin_self,
        probes.code_of,
        probes.environment_state,
        probes.getter_names,
        probes.lineage,
        probes.most_items,
        probes.subclasses,
        probes.variable_state,
        probes.viewed,
        probes.wanted_gradients,
    )
}
# Questions that are made for a name.
_NAMED: Mapping[str, Callable[[Any], Callable[[Any], Any]]] = {
    made.__name__: made for made in (answers.attribute, probes.can_be_found, probes.given_to_getter)
}


class _Sources:
    """Sources as data, each after the one that it is a step from."""

    def __init__(self) -> None:
        self.numbers: dict[Source, int] = {}
        self.data: list[Any] = []

    def number(self, source: Source) -> int:
        if source not in self.numbers:
            parent = -1 if source.parent is None else self.number(source.parent)
            self.numbers[source] = len(self.data)
            self.data.append([parent, source.kind, _key_data(source)])
        return self.numbers[source]

    def all(self, sources: Iterable[Source]) -> list[int]:
        return list(map(self.number, sources))


def _key_data(source: Source) -> Any:
    key = source.key
    if source.kind == "fixed":
        return _fixed_data(key)
    if source.kind not in ("probe", "inside"):
        return value_data(key)
    name = str(getattr(key, "__name__", None))
    if _QUESTIONS.get(name) is key:
        return name
    if name not in _NAMED:
        raise UnnamedError
    return [name, value_data(key.__closure__[0].cell_contents)]


def _fixed_data(value: Any) -> list[str]:
    for module, name in _OF_PYTHON:
        if found(module, name) is value:
            return ["at", module, name]
    if isinstance(value, dict):
        return ["globals", name_of_globals(value)]
    return ["module", name_of_globals(vars(value))] if isinstance(value, types.ModuleType) else ["at", *name_of(value)]


_OF_PYTHON = (("os", "environ"), ("sys", "modules"))  # objects, which do not say where they are found


def _sources_of(data: Sequence[Any]) -> list[Source]:
    made: list[Source] = []
    for parent, kind, key in data:
        made.append(Source(made[parent] if parent >= 0 else None, kind, _key_of(kind, key)))
    return made


def _key_of(kind: str, data: Any) -> Any:
    if kind == "fixed":
        manner, *name = data
        value = found(*name) if manner == "at" else module_named(name[0])
        return vars(value) if manner == "globals" else value
    if kind in ("probe", "inside"):
        return _QUESTIONS[data] if isinstance(data, str) else _NAMED[data[0]](value_of(data[1]))
    return value_of(data)


def contract_data(contract: Contract, unit: nn.Module, handles: Sequence[Any]) -> dict[str, Any]:
    """A contract that holds for a unit as data. Raises UnnamedError if another process could not tell whether it holds there.

    What objects of the call, the `handles`, gave by code of their own is asked for again at every call.
    """
    sources, known = _Sources(), dict[Source, Any]()
    kinds = {kind for handle in handles for each in objects_in(handle) for kind in type(each).__mro__}
    codes = {code for kind in kinds for code in codes_in(dict(vars(kind)))}
    texts, memos = [], {id(memo.function): memo.before for memo in reversed(contract.memos)}
    for guard in contract.guards:
        texts.append(_text(guard.source, unit, known, memos))
        codes.update(codes_in(guard.source.get(unit, known)))
    if contract.operators or not contract.codes <= codes:
        raise UnnamedError
    return {
        "memos": _memos_data(contract, unit, known, sources),
        "guards": [[sources.number(guard.source), text] for guard, text in zip(contract.guards, texts, strict=True)],
        "same": _same(contract.guards, known),
        "aliases": [sources.all(pair) for pair in contract.aliases],
        "objects": sources.all(contract.objects),
        "groups": [*contract.groups],
        "tensors": {name: sources.number(source) for name, source in contract.tensors.items()},
        "modes": _modes_text(contract.modes),
        "inference": contract.modes.inference,
        "written": sources.all(contract.written),
        "into": [*contract.into],
        "sources": sources.data,
    }


def contract_of(data: Mapping[str, Any], unit: nn.Module) -> Contract | None:
    """The contract of some data, None unless all that its trace found is found in a unit, and in this process."""
    modes = Modes() if data["inference"] is not None else replace(Modes(), inference=None)
    if _modes_text(modes) != data["modes"] or modes.inference is not data["inference"]:
        return None
    sources, known = _sources_of(data["sources"]), dict[Source, Any]()
    for number, text in data["guards"]:
        if _text(sources[number], unit, known, {}) != text:
            return None
    if not all(_is_remembered(sources[number], unit, known, *call) for number, *call in data["memos"]):
        return None
    guards = [Guard(sources[number], as_expected(sources[number].get(unit, known))) for number, _ in data["guards"]]

    def all_of(numbers: Iterable[int]) -> tuple[Source, ...]:
        return tuple(sources[number] for number in numbers)

    contract = Contract(
        tuple(guards),
        tuple((sources[one], sources[other]) for one, other in data["aliases"]),
        all_of(data["objects"]),
        tuple(data["groups"]),
        {name: sources[number] for name, number in data["tensors"].items()},
        modes,
        all_of(data["written"]),
        tuple(data["into"]),
    )
    is_same = _same(guards, known) == data["same"] and grouped(contract.objects, unit, known) == contract.groups
    return contract if is_same else None


def _memos_data(contract: Contract, unit: nn.Module, known: dict[Source, Any], sources: _Sources) -> list[Any]:
    """The calls of memoising functions whose results these have come to keep in the trace: another process makes them, too."""
    memos, calls = {id(each.function): each for each in reversed(contract.memos)}, []
    for source in (guard.source for guard in contract.guards if guard.source.key is memo.cache_state):
        assert source.parent is not None
        own = memos.get(id(source.parent.get(unit, known)))
        for key, result in own.added().items() if own else ():
            args, kwargs = called_with(key)
            calls.append([sources.number(source), value_data(args), value_data(kwargs), constants_text(result)])
    return calls


def _is_remembered(
    source: Source, unit: nn.Module, known: dict[Source, Any], args: Any, kwargs: Any, result: str
) -> bool:
    """Make such a call. Returns if it gives what it gave in the trace."""
    if source.parent is None or source.key is not memo.cache_state:
        return False
    known.pop(source, None)
    return constants_text(source.parent.get(unit, known)(*value_of(args), **value_of(kwargs))) == result


def _text(source: Source, unit: nn.Module, known: dict[Source, Any], memos: Mapping[int, Mapping[Any, Any]]) -> str:
    value = source.get(unit, known)
    holder = unit if source.parent is None else source.parent.get(unit, known)
    return text_at(source, holder, value, memos)


def _same(guards: Sequence[Guard], known: Mapping[Source, Any]) -> list[int]:
    """For each thing that is no constant the first guard that has found it. What is one in one process is one in the other."""
    first: dict[int, int] = {}
    values = [known[guard.source] for guard in guards]
    return [
        first.setdefault(id(value), i) if kind_of(value) != "constant" and not isinstance(value, tuple) else i
        for i, value in enumerate(values)
    ]


def _modes_text(modes: Modes) -> str:
    told = {each.name: getattr(modes, each.name) for each in fields(Modes) if each.name not in ("context", "inference")}
    traps = {kind.__name__: on for kind, on in modes.context.traps.items()}
    return texts_in([told, traps])
