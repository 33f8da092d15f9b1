"""What a value is, as text: two processes that find the same text have the same value, as far as a program goes by it.

Of containers, objects and functions that is their class or code, as in `contract.values.agree`: what was read from them is
compared by itself.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import logging
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

from ..contract.answers import answer, level, registered, registered_classes
from ..contract.looks import Looks
from ..contract.memo import cache_state, kept
from ..contract.source import Missing, Source
from ..contract.values import NAMES, PLAIN, as_expected, kind_of
from .names import UnnamedError, name_of, operator_name

_LONGEST = 64  # a longer text is its hash
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_NUMBERS = (torch.Size, range, slice)
_DESCRIPTORS = (property, classmethod, staticmethod)
_METHODS_OF_C = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_TORCH = str(Path(torch.__file__).parent) + os.sep  # and not that of torchvision beside it
_OURS = __name__.partition(".")[0]
_CAPSULE = type(datetime.datetime_CAPI)
# What is in these, or what they say, is guarded by itself.
_BY_CLASS = frozenset(
    "array cache container environment getter method module object partial random variable view".split()
)
# What is written in C has no code to compare: of these packages the versions are known.
_PACKAGES = frozenset({"torch", "numpy", *sys.stdlib_module_names})


def text_at(source: Source, holder: Any, value: Any, memos: Mapping[int, Mapping[Any, Any]]) -> str:
    """The text of a value that is found at a source in a holder. Raises UnnamedError if it has none. `memos` are what memoising
    functions, by their ids, kept before a trace called them: what they came to keep then, another process finds by itself."""
    if source.kind == "probe":
        return _short(_answer_text(source.key, holder, value, memos))
    return _short(texts_in(value) if source.kind in ("content", "names", "order") else _text(as_expected(value)))


def _answer_text(question: Any, holder: Any, value: Any, memos: Mapping[int, Mapping[Any, Any]]) -> str:
    """The text of an answer: where that tells objects by their places in memory, what these are."""
    if question is registered:
        return str(sorted(str(name_of(kind)) for kind in registered_classes(holder)))
    if question is cache_state and (held := memos.get(id(holder), kept(holder))) is not None:
        return constants_text({_without_marks(key): result for key, result in held.items()})
    if (question is answer and len(value) < 2) or (question is level and value[2]):
        raise UnnamedError
    return constants_text(value)


def constants_text(value: Any) -> str:
    """As `texts_in`, of what nothing else is asked about: raises UnnamedError for an object too, whose text is its class."""
    _check_constants(value)
    return texts_in(value)


def _check_constants(value: Any) -> None:
    kind = type(value)
    if kind in (dict, frozenset, tuple, list):
        for each in (*value, *value.values()) if kind is dict else value:
            _check_constants(each)
    elif kind_of(value) in _BY_CLASS:
        raise UnnamedError


def _without_marks(key: Any) -> Any:
    return tuple("by name" if each is _BY_NAME else each for each in key) if isinstance(key, (tuple, list)) else key


def called_with(key: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call of a memoising function that has a result under a key."""
    if not isinstance(key, (tuple, list)):
        return (key,), {}
    plain = [*key]
    first = next((i for i, each in enumerate(plain) if each is _BY_NAME), len(plain))
    named = plain[first + 1 :]
    return tuple(plain[:first]), dict(zip(named[::2], named[1::2], strict=True))


def texts_in(value: Any) -> str:
    """The text of all that is in tuples, lists and dicts. Raises UnnamedError if something has none."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{texts_in(key)}: {texts_in(each)}' for key, each in value.items())}}}"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(texts_in, value)))}}}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(texts_in, value))})"
    return f"tree {pytree.treespec_dumps(value)}" if isinstance(value, pytree.TreeSpec) else _text(value)


@functools.lru_cache
def _called_by_name(**given: Any) -> None:
    """Called once, to find what stands in the keys of memoising functions before arguments that are given by name."""


_called_by_name(name=None)
_BY_NAME = next(each for key in kept(_called_by_name) or () for each in key if type(each) is object)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else hashlib.sha256(text.encode()).hexdigest()


def _text(value: Any) -> str:
    kind = type(value)
    if kind in PLAIN or kind in _OF_TORCH or kind in _NUMBERS:
        return f"{kind.__name__} {value!r}"
    if isinstance(value, Missing):
        return "nothing"
    if isinstance(value, Looks):
        return f"looks {value.shape} {value.dtype} {value.wants_gradient} {name_of(value.kind)}"
    if isinstance(value, Enum):
        return f"{name_of(kind)} {value.name} {_text(value.value)}"
    if isinstance(value, numpy.generic):
        return f"{kind.__name__} {value.dtype} {value.tobytes().hex()}"
    if isinstance(value, re.Pattern):
        return f"pattern {value.pattern!r} {value.flags}"
    if isinstance(value, types.FunctionType):
        return f"function {[getattr(value, name) for name in NAMES]} {_code_text(value.__code__)}"
    if isinstance(value, types.CodeType):
        return _code_text(value)
    return f"a {name_of(kind)} {_length(value)}" if kind_of(value) in _BY_CLASS else _identity_text(value)


def _length(value: Any) -> str:
    return str(len(value)) if isinstance(value, (tuple, frozenset)) else ""


def _identity_text(value: Any) -> str:
    """The text of what is told from others by what it is."""
    if isinstance(value, type):
        applied = getattr(value, "_forward_cls", None) if value.__module__ == torch.autograd.function.__name__ else None
        return f"class {name_of(value)}" if applied is None else f"backward of {name_of(applied)}"
    if isinstance(value, logging.Logger) and logging.Logger.manager.loggerDict.get(value.name) is value:
        return f"logger {value.name}"
    if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
        return f"module {value.__name__}"
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"operator {operator_name(value)}"
    if isinstance(value, _DESCRIPTORS):
        return f"{type(value).__name__} {list(map(_text, _behind(value)))}"
    if isinstance(value, _METHODS_OF_C):
        return f"{type(value).__name__} {name_of(value.__objclass__)} {value.__name__}"
    if isinstance(value, types.BuiltinFunctionType):
        return _builtin_text(value)
    if type(value).__module__.partition(".")[0] == _OURS:
        return f"of ours {name_of(type(value))}"
    if isinstance(value, _CAPSULE):
        return "a pointer of C's"
    raise UnnamedError


def _behind(descriptor: Any) -> list[Any]:
    """The functions of a property or of a method of a class."""
    if isinstance(descriptor, property):
        return [descriptor.fget, descriptor.fset, descriptor.fdel]
    return [descriptor.__func__]


def _builtin_text(function: Any) -> str:
    owner = function.__self__
    kind = owner if isinstance(owner, type) else type(owner)
    module, is_free = (
        str(function.__module__ or kind.__module__),
        isinstance(owner, (type, types.ModuleType, type(None))),
    )
    if module.partition(".")[0] not in _PACKAGES or not (is_free or kind.__module__ == "pybind11_builtins"):
        raise UnnamedError
    return f"builtin {module} {kind.__module__} {kind.__qualname__} {function.__qualname__}"


@functools.lru_cache(maxsize=4096)
def _code_text(code: types.CodeType) -> str:
    """The hash of all that a piece of code does: not of the file and the lines that it is from. Those of torch say as much."""
    if code.co_filename.startswith(_TORCH):
        return f"{code.co_filename.removeprefix(_TORCH)} {code.co_firstlineno} {code.co_qualname} {len(code.co_code)}"
    told = (
        code.co_name,
        code.co_qualname,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_code.hex(),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_exceptiontable.hex(),
    )
    constants = ", ".join(map(_constant_text, code.co_consts))
    return hashlib.sha256(f"{told} {constants}".encode()).hexdigest()


def _constant_text(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_text(value)
    if isinstance(value, (tuple, frozenset)):
        texts = [_constant_text(each) for each in value]
        return f"{type(value).__name__} {texts if isinstance(value, tuple) else sorted(texts)}"
    return f"{type(value).__name__} {value!r}"


def codes_in(value: Any) -> Iterator[types.CodeType]:
    """The pieces of code of which the text of a value tells, with those within them."""
    if isinstance(value, types.CodeType):
        yield value
        for constant in value.co_consts:
            yield from codes_in(constant)
    elif isinstance(value, types.FunctionType):
        yield from codes_in(value.__code__)
    elif isinstance(value, _DESCRIPTORS):
        yield from (code for each in _behind(value) for code in codes_in(each))
    elif isinstance(value, dict):
        yield from (code for each in value.values() for code in codes_in(each))
