"""The check that a unit's calls make of what a trace read: straight Python, written for what one unit has."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from .probes import attributes_of, code_of, is_empty
from .source import MISSING, Source, own_attributes, static_attribute
from .values import CONTAINERS, PLAIN, is_cut
from .versions import VERSIONED, check_text, dict_version, entries_of


class _Text:
    """The check as text, with the objects that it names."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.values: list[Any] = []
        self.terms: dict[str, str | None] = {}  # the dict of which alone a term speaks, by its name

    def name(self, value: Any) -> str:
        if id(value) not in self.names:
            self.names[id(value)] = f"v{len(self.values)}"
            self.values.append(value)
        return self.names[id(value)]

    def add(self, term: str, entries: Any = None) -> None:
        """A term; `entries` if it says something of these alone, and of nothing that is in them."""
        self.terms.setdefault(term, self.name(entries) if type(entries) in VERSIONED else None)

    def compiled(self) -> Callable[[], bool]:
        given = [f"v{i}" for i in range(len(self.values))]
        made: Callable[[], bool] = _made(check_text(self.terms, given))(dict_version, *self.values)
        return made

    def shared(self) -> Callable[[], bool]:
        """The check, as one function for all who ask the same of the same objects, which it keeps."""
        key = (*self.terms, *map(id, self.values))
        made = _common.get(key)
        if made is None:
            made = _common[key] = self.compiled()
        return made


_common: WeakValueDictionary[tuple[Any, ...], Callable[[], bool]] = WeakValueDictionary()
_factories: dict[str, Callable[..., Any]] = {}


def _made(text: str) -> Callable[..., Any]:
    if text not in _factories:
        scope: dict[str, Any] = {}
        exec(compile(text, "<autotp guards>", "exec"), scope)
        _factories[text] = scope["bind"]
    return _factories[text]


def check_of(
    sources: Sequence[Source],
    aliases: Sequence[tuple[Source, Source]],
    found: Mapping[Source, Any],
    first: Mapping[Source, int],
) -> Callable[[], bool]:
    """A function that compares what is there with what was found: by identity, since state that nobody changed stays the
    object that it was.

    What has the same id as in the unit that was `first` is compared by a function that units have in common: a processor
    that has just read these objects for one unit reads them for the next in less time.
    """
    text, common = _Text(), _Text()
    _looks(text, {id(value): value for value in map(found.get, sources) if isinstance(value, torch.Tensor)}.values())
    for source in sources:
        # Of what lies in nothing the term about that says enough.
        if source.parent is not None and found[source.parent] is not MISSING:
            is_common = all(first.get(each) == id(found[each]) for each in (source, source.parent))
            _TERMS[source.kind](common if is_common else text, found[source.parent], source.key, found[source])
    if common.terms:
        text.add(f"{text.name(common.shared())}()")
    for one, other in aliases:
        if one.kind in ("parameter", "buffer") and one.parent is not None and other.parent is not None:
            here, second = (_place(text, s, found[s.parent]) for s in (one, other) if s.parent is not None)
            text.add(f"{here} is {second}")
    return text.compiled()


def _looks(text: _Text, tensors: Collection[torch.Tensor]) -> None:
    """What a tensor looks like changes in place: `resize_`, `.data =`, `.to()` of a module. A cut one keeps its sizes."""
    own = _Text()
    for tensor in tensors:
        held = own.name(tensor)
        own.add(f"{held}.dtype is {own.name(tensor.dtype)}")
        if not is_cut(tensor):
            own.add(f"{held}.shape == {own.name(tensor.shape)}")
        if not isinstance(tensor, nn.Parameter):  # programs know no difference between frozen ones and others
            own.add(f"{held}.requires_grad is {tensor.requires_grad}")
    if tensors:
        text.add(f"{text.name(_natively(own.compiled()))}()")


def _natively(same: Callable[[], bool]) -> Callable[[], bool]:
    """A question about tensors that is put to them and not to their classes."""

    def asked() -> bool:
        with torch._C.DisableTorchFunctionSubclass():
            return same()

    return asked


def _place(text: _Text, source: Source, holder: Any) -> str:
    return f"{text.name(_held(holder, source.kind))}[{source.key!r}]"


def _held(holder: Any, kind: str) -> Any:
    return holder._parameters if kind == "parameter" else holder._buffers if kind == "buffer" else holder


def _entry(text: _Text, entries: Any, key: Any, value: Any) -> None:
    # A member of an enumeration is a word or a number too, and is written like neither.
    held, name = text.name(entries), repr(key) if type(key) in (str, int) else text.name(key)
    text.add(f"{name} not in {held}" if value is MISSING else f"{held}[{name}] is {text.name(value)}", entries)


def _attribute(text: _Text, holder: Any, key: str, value: Any) -> None:
    attributes = own_attributes(holder)
    _entry(text, attributes, key, value)
    if attributes and not isinstance(holder, (nn.Module, torch.Tensor, types.FunctionType, types.ModuleType)):
        # An object may be given another dict of attributes.
        text.add(f"{text.name(own_attributes)}({text.name(holder)}) is {text.name(attributes)}")


def _tensor_entry(kind: str) -> Callable[[_Text, Any, str, Any], None]:
    return lambda text, holder, key, value: _entry(text, _held(holder, kind), key, value)


def _item(text: _Text, holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, type(os.environ)):
        name, variables = holder.encodekey(key), vars(holder)["_data"]
        _entry(text, variables, name, variables.get(name, MISSING))
    elif not isinstance(holder, tuple):  # which cannot change
        _entry(text, holder, key, value)


def _hooks(text: _Text, holder: nn.Module, key: str, value: tuple[Any, ...]) -> None:
    hooks = own_attributes(holder)[key]
    _entry(text, own_attributes(holder), key, hooks)
    name = text.name(hooks)
    text.add(f"tuple({name}.items()) == {text.name(tuple(hooks.items()))}" if value else f"not {name}")


def _global(text: _Text, holder: Any, key: str, value: Any) -> None:
    if value is not MISSING or not str(holder.get("__name__")).startswith("torch."):  # else one of Python's own names
        _entry(text, holder, key, value)


def _class(text: _Text, holder: type, key: str, value: Any) -> None:
    if value is MISSING and holder.__module__.startswith("torch."):
        return  # nobody adds to torch's classes what hides what their objects hold
    _static(text, holder, key, value)


def _static(text: _Text, holder: type, key: str, value: Any) -> None:
    """What a class gives for a name: the entry of the first class in its order that has one."""
    owner = static_attribute(holder, key)[1]
    order = holder.__mro__
    text.add(f"{text.name(holder)}.__mro__ is {text.name(order)}")
    for kind in filter(_may_change, order if owner is None else order[: order.index(owner)]):
        _entry(text, entries_of(kind), key, MISSING)
    if owner is not None:
        _entry(text, entries_of(owner), key, value)


def _may_change(kind: type) -> bool:
    return bool(kind.__flags__ & _HEAP_TYPE)


def _slot(text: _Text, holder: Any, key: str, value: Any) -> None:
    if value is MISSING:
        text.add(f"not hasattr({text.name(holder)}, {key!r})")
    else:
        text.add(f"{text.name(holder)}.{key} is {text.name(value)}")


def _cell(text: _Text, holder: Any, key: str, value: Any) -> None:
    cell = holder.__closure__[holder.__code__.co_freevars.index(key)]
    if value is MISSING:
        text.add(f"{text.name(is_empty)}({text.name(cell)})")
    else:
        text.add(f"{text.name(cell)}.cell_contents is {text.name(value)}")


def _type(text: _Text, holder: Any, key: None, value: type) -> None:
    if not isinstance(holder, type) and _may_change(type(holder)):
        text.add(f"type({text.name(holder)}) is {text.name(type(holder))}")


_HEAP_TYPE = 1 << 9
_EQUAL = frozenset({*PLAIN} - {float, complex})  # two of one of these classes that are equal are the same


def _content(text: _Text, holder: Any, key: None, value: Any) -> None:
    if isinstance(holder, (tuple, frozenset)):
        return
    if not holder and isinstance(holder, CONTAINERS):
        text.add(f"not {text.name(holder)}")
    elif isinstance(value, int):
        text.add(f"len({text.name(holder)}) == {value}")
    else:
        _keys(text, text.name(holder), holder, value)


def _keys(text: _Text, held: str, holder: Any, keys: tuple[Any, ...]) -> None:
    """The keys of a dict, or the items of a set. 1 and True are equal, so are zeros of both signs, and a program tells them
    apart."""
    kinds = tuple(map(type, keys))
    entries = holder if type(holder) is dict else None  # the version of another one says nothing of its order
    if not _EQUAL.issuperset(kinds):
        text.name(keys)  # keeps them
        text.add(f"tuple(map(id, {held})) == {text.name(tuple(map(id, keys)))}", entries)
        return
    text.add(f"tuple({held}) == {text.name(keys)}", entries)
    text.add(f"tuple(map(type, {held})) == {text.name(kinds)}", entries)


def _names(text: _Text, holder: Any, key: None, value: tuple[str, ...]) -> None:
    attributes = own_attributes(holder)
    text.add(f"tuple({text.name(attributes)}) == {text.name(value)}", attributes)


def _order(text: _Text, holder: nn.Module, key: str, value: tuple[str, ...]) -> None:
    held = own_attributes(holder)[key]
    _entry(text, own_attributes(holder), key, held)
    text.add(f"tuple({text.name(held)}) == {text.name(value)}", held)


def _probe(text: _Text, holder: Any, key: Callable[[Any], Any], value: Any) -> None:
    if key in (code_of, attributes_of):
        entries = entries_of(holder)
        # Equal entries are found soonest; where a class counts its objects, say, its code is what it was.
        same = f"{text.name(entries)} == {text.name(dict(entries))}"
        text.add(f"({same} or {text.name(key)}({text.name(holder)}) == {text.name(value)})", entries)
        return
    text.add(f"{text.name(key)}({text.name(holder)}) == {text.name(value)}")


def _inside(text: _Text, holder: Any, key: Callable[[Any], Any], value: Any) -> None:
    text.add(f"{text.name(key)}({text.name(holder)}) is {text.name(value)}")


_TERMS: Mapping[str, Callable[[_Text, Any, Any, Any], None]] = {
    "part": lambda text, holder, key, value: None,
    "parameter": _tensor_entry("parameter"),
    "buffer": _tensor_entry("buffer"),
    "attribute": _attribute,
    "slot": _slot,
    "type": _type,
    "class": _class,
    "absent": _static,
    "item": _item,
    "hooks": _hooks,
    "global": _global,
    "cell": _cell,
    "content": _content,
    "names": _names,
    "order": _order,
    "probe": _probe,
    "inside": _inside,
}
