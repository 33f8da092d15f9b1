"""What stands for numbers and objects while a trace observes: to the model's own code it is of the class of that."""

from __future__ import annotations

import json.encoder
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .frames import PARAMETER, between, is_observed

TELLS = "_autotp_class_of"  # a function of what stands for objects: gives their class, and tells that it was given away
# Classes of what stands for a number while a trace runs, with one that is like it.
STANDS_FOR: dict[type, Any] = {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}
_ABSENT: Any = object()
_plain: set[type] = set()  # classes of what stands for nothing else


def _class_of(value: Any, frame: Any) -> Any:
    """The class that the model's code is told of a value that stands for another one; `_ABSENT` for any other value."""
    kind = type(value)
    if kind in STANDS_FOR and is_observed(frame):
        return type(STANDS_FOR[kind])
    is_ours = kind.__module__.startswith("autotp.") and isinstance(vars(kind).get("__class__"), property)
    if not is_ours and kind not in STANDS_FOR:
        _plain.add(kind)
    return value.__class__ if is_ours and is_observed(frame) else _ABSENT


@between
def is_instance(value: Any, kinds: Any) -> bool:
    """`isinstance`, which is asked very often."""
    if type(value) in _plain:
        return isinstance(value, kinds)
    kind = _class_of(value, sys._getframe(1))
    return isinstance(value, kinds) if kind is _ABSENT else issubclass(kind, kinds)


def is_callable(value: Any) -> bool:
    """`callable`."""
    kind = _class_of(value, sys._getframe(1))
    return callable(value) if kind is _ABSENT else "__call__" in dir(kind)


def rounded(value: Any, *digits: Any, **named: Any) -> Any:
    """`round`: symbols round to whole numbers alone."""
    known = type(value) in STANDS_FOR and (digits or named) and is_observed(sys._getframe(1))
    return round(type(STANDS_FOR[type(value)])(value) if known else value, *digits, **named)


def _number_in(text_of: Callable[..., str]) -> Callable[..., str]:
    """A function that writes something as text: for the model's code it writes the number itself, which the trace then holds
    for alone. The name of a symbol would be the text of another size, or of none."""

    def text(value: Any, *specification: str) -> str:
        if is_observed(sys._getframe(1)):
            return text_of(type(STANDS_FOR[type(value)])(value), *specification)
        return f"{value.node.str():{''.join(specification)}}"

    return text


# How what stands for a number becomes text: `format` gives it a specification, all else asks for its `repr`.
_TEXTS: dict[str, Callable[..., str]] = {"__repr__": _number_in(repr), "__format__": _number_in(format)}


def tensor_class(fake: torch.Tensor) -> type:
    """The class of the tensor that one of a trace stands for."""
    is_parameter = isinstance(fake, torch.nn.Parameter) or PARAMETER in vars(fake)
    return torch.nn.Parameter if is_parameter else torch.Tensor


class _Type:
    """`type`, where it is called; in every other use the class itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kind = type(*args, **kwargs) if kwargs or len(args) != 1 else _class_of(args[0], sys._getframe(1))
        if kind is not _ABSENT:
            tells = getattr(type(args[0]), TELLS, None)
            return kind if tells is None else tells(args[0])
        is_fake = isinstance(args[0], FakeTensor) and is_observed(sys._getframe(1))
        return tensor_class(args[0]) if is_fake else type(args[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(type, name)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, type)

    def __subclasscheck__(self, kind: Any) -> bool:
        return issubclass(kind, type)

    def __mro_entries__(self, bases: Any) -> tuple[type]:
        return (type,)

    def __eq__(self, other: Any) -> bool:
        return other is type or other is self

    def __hash__(self) -> int:
        return hash(type)


# What is put among the globals of code that names one of Python's own functions. `type`, which C and torch compare others
# with, is not for the code of libraries.
INSTEAD: dict[str, Any] = {"isinstance": is_instance, "callable": is_callable, "round": rounded, "type": _Type()}


def is_instead(name: str, value: Any) -> bool:
    """Returns if a value is what a trace puts in the place of one of Python's own functions."""
    return name in INSTEAD and INSTEAD[name] is value


# What code must not have under another name, or as a value: a trace puts others in their place.
REPLACED = (isinstance, callable, round)


@contextmanager
def symbols_are_numbers() -> Iterator[None]:
    """Inside, what stands for a number becomes text as that number, where the model's code asks."""
    try:
        with _json_in_python(), _text_of_numbers():
            yield
    finally:
        _plain.clear()


@contextmanager
def _text_of_numbers() -> Iterator[None]:
    """Inside, the classes of what stands for numbers write text as these do."""
    before = {(kind, name): getattr(kind, name) for kind in STANDS_FOR for name in _TEXTS}
    for kind, name in before:
        setattr(kind, name, _TEXTS[name])
    try:
        yield
    finally:
        for (kind, name), own in before.items():
            setattr(kind, name, own)


@contextmanager
def _json_in_python() -> Iterator[None]:
    """Inside, text is made of numbers and objects by Python's own code, which asks what they are. C takes them for others."""
    encoder: Any = json.encoder
    function, written = encoder._make_iterencode, encoder.c_make_encoder
    defaults = function.__defaults__
    function.__defaults__ = tuple(is_instance if each is isinstance else each for each in defaults)
    encoder.c_make_encoder = None
    try:
        yield
    finally:
        function.__defaults__, encoder.c_make_encoder = defaults, written
