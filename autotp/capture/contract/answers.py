"""What libraries answer from state of their own: settings of torch, levels of loggers, classes registered with others, the
system. Nothing tells what their code reads, so their answers are asked for again, or there is no program."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import _contextvars
import abc
import datetime
import decimal
import functools
import inspect
import logging
import operator
import os
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch

from .source import is_a

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
# Names of functions of torch that say how it is set, without being given anything, and of those that set it or draw.
_ASKS = re.compile(r"(is|are|get|has|current)_|initial_seed$|.*_(enabled|available|count)$")
_SETS = re.compile(r"(set|use)_|get_rng_state|(manual_)?seed(_all)?$")
# What they say is in the key of a call, or in the modes of its contract, or is about tracing.
_KNOWN = frozenset(
    {
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch.get_default_dtype,
        torch.get_default_device,
        torch.are_deterministic_algorithms_enabled,
        torch.is_autocast_enabled,
        torch.jit.is_scripting,  # type: ignore[attr-defined]
        torch.jit.is_tracing,  # type: ignore[attr-defined]
        torch.compiler.is_compiling,
        torch.compiler.is_dynamo_compiling,
        torch.compiler.is_exporting,
    }
)
_TRACING = ("torch._dynamo", "torch.compiler", "torch.fx", "torch._C._functorch", "torch.overrides", "torch.utils._")
_PURE = frozenset({os.fspath, sys.intern})
_CLOCKS = (vars(datetime.datetime)["now"], vars(datetime.datetime)["utcnow"], vars(datetime.date)["today"])
_CONTEXTS = (decimal.getcontext, decimal.setcontext, decimal.localcontext)
_BY_IDENTITY = (operator.is_, operator.is_not)  # of what stands for something else in a trace
_OF_SYSTEM = (
    *_BY_IDENTITY,
    globals,
    open,
    print,
    input,
    __import__,
    sys._getframe,
    sys._current_frames,
    sys.gettrace,
    sys.getprofile,
    sys.setrecursionlimit,
    _contextvars.copy_context,  # which has all variables in it
)
# Python's modules in C whose functions have no state of their own, or such as is asked for here. Of all others, and of those
# that no library brings that is known here, nothing shows what they go by.
_STATELESS = frozenset(
    """
    _abc _bisect _blake2 _bz2 _collections _contextvars _datetime _elementtree _functools _hashlib _heapq _json _lzma _md5
    _opcode _operator _sha1 _sha2 _sha256 _sha3 _sha512 _sre _stat _statistics _string _struct _thread _tokenize _typing
    _warnings _weakref array audioop binascii builtins cmath decimal errno io itertools math unicodedata zlib
    """.split()
)
# What they say is about who calls: libraries ask them to put errors in their order.
_OF_CALLERS = (sys.exc_info, *([sys.exception] if hasattr(sys, "exception") else []))
_SET_WARNINGS = (warnings.filterwarnings, warnings.simplefilter, warnings.resetwarnings)
# What reads attributes, or finds classes, where nothing observes it.
_READERS = (
    inspect.getattr_static,
    inspect.getmembers,
    vars(object)["__getattribute__"],
    vars(object)["__getstate__"],
    vars(type)["__getattribute__"],
    vars(type)["__subclasses__"],
)
_OF_THREAD = re.compile(r"get_|_count$")
_MEMORY = tuple(vars(torch._C)[name] for name in ("_to_dlpack", "_to_dlpack_versioned") if name in vars(torch._C))
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def is_outside(value: Any) -> bool:
    """Returns if a function asks the system, its callers, or for what nothing observes, or says something: nothing can be
    compared with its answer. And if one of torch's sets what all of torch goes by, or gives memory away."""
    if any(value is each for each in (*_CLOCKS, *_READERS)) or gives_memory(value):
        return True
    if _is_of_torch(value):
        return bool(_SETS.match(value.__name__))
    if not is_a(value, types.BuiltinFunctionType):
        return False
    if value.__module__ == "_thread":
        return bool(_OF_THREAD.match(value.__name__))
    if value in (*_OF_SYSTEM, *_CONTEXTS):
        return True
    return value not in _PURE and (_sets_sys(value) if value.__module__ == "sys" else _is_of_unknown(value))


def is_about_callers(value: Any) -> bool:
    """Returns if a function says which error is being handled, whoever has met it."""
    return any(value is each for each in _OF_CALLERS)


def is_for_good(function: Any) -> bool:
    """Returns if what a function gives may be written to, and nothing can put that back: files, memory, the state of C code."""
    return function is open or function in _CONTEXTS or gives_memory(function)


def gives_memory(function: Any) -> bool:
    """Returns if a function gives the memory of a tensor to whoever asks."""
    return any(function is each for each in _MEMORY)


def question(value: Any) -> Callable[[Any], Any] | None:
    """How something of a library is asked for what decides what it says; None if nothing does."""
    if is_a(value, logging.Logger):
        return level
    if is_a(value, abc.ABCMeta):
        return registered
    if _is_of_numpy(value):
        return numpy_errors
    if is_a(value, _LOCKS):
        return holder
    if any(value is each for each in (warnings.warn, warnings.warn_explicit, *_SET_WARNINGS)):
        return warning_filters
    if value is torch.get_autocast_dtype:
        return autocast_dtypes
    if (_is_of_torch(value) and _ASKS.match(value.__name__) and value not in _KNOWN) or _is_of_sys(value):
        return answer if _takes_nothing(value) else None
    return None


def level(logger: Any) -> Any:
    """From which level on a logger says anything, and to how many."""
    found, above = [logger.disabled, logger.manager.disable, tuple(map(id, logger.filters))], logger
    while above is not None:
        found += [above.level, len(above.handlers)]
        above = above.parent if above.propagate else None
    return (*found, logger.getEffectiveLevel())


def holder(lock: Any) -> Any:
    """Whether a lock is held, of one that can be taken again by whom and how often."""
    return repr(lock)


def is_held(lock: Any) -> bool:
    """Returns if anybody holds a lock."""
    return holder(lock).startswith("<locked")


def warning_filters(function: Any) -> Any:
    """Which warnings are errors, which are said and which are not."""
    return tuple(warnings.filters)


def registered(kind: Any) -> Any:
    """The classes that were registered with an abstract class, or with one that is made of it."""
    return tuple(sorted(map(id, registered_classes(kind))))


def registered_classes(kind: Any) -> set[type]:
    """The same, the classes themselves."""
    own = {each for reference in _abc._get_dump(kind)[0] if (each := reference()) is not None}
    return own.union(*(registered_classes(each) for each in kind.__subclasses__() if isinstance(each, abc.ABCMeta)))


def answer(function: Any) -> Any:
    """What a function says that is given nothing; in a build of torch that lacks it, that it fails."""
    try:
        return plain(function())
    except RuntimeError as error:
        return type(error), str(error)


def numpy_errors(value: Any) -> Any:
    """What numpy does about results that are no numbers."""
    return tuple(numpy.geterr().items())


def autocast_dtypes(function: Any) -> Any:
    """The dtype of autocast on every kind of device there is."""
    accelerator = torch.accelerator.current_accelerator()
    return tuple(function(kind) for kind in ("cpu", *([accelerator.type] if accelerator is not None else [])))


def plain(value: Any) -> Any:
    """A constant with its class; of anything else, which one it is."""
    return (type(value), repr(value)) if isinstance(value, PLAIN) else (id(value),)


@functools.cache
def attribute(name: str) -> Callable[[Any], Any]:
    """What an object of torch's has under a name, if that is a constant."""

    def attribute(value: Any) -> Any:
        return plain(getattr(value, name, None))

    return attribute


def _is_of_torch(value: Any) -> bool:
    if not is_a(value, (types.FunctionType, types.BuiltinFunctionType)):
        return False
    module = str(value.__module__)
    return module.partition(".")[0] == "torch" and not module.startswith(("torch.nn", *_TRACING))


def _is_of_sys(value: Any) -> bool:
    """Returns if a function says how the interpreter is set."""
    return is_a(value, types.BuiltinFunctionType) and value.__module__ == "sys" and value.__name__.startswith("get")


def _sets_sys(function: Any) -> bool:
    """Returns if a function of the interpreter is given something: such say how it is held, or set it."""
    return not (_is_of_sys(function) or function in _OF_CALLERS) or not _takes_nothing(function)


def _is_of_unknown(function: Any) -> bool:
    """Returns if a function in C is of a module of which nothing is known here."""
    package = str(function.__module__ or "builtins").partition(".")[0]
    return package not in _STATELESS and package not in ("torch", "numpy")


def _is_of_numpy(value: Any) -> bool:
    """Returns if something computes with numpy."""
    if is_a(value, types.ModuleType):
        return value.__name__.partition(".")[0] == "numpy"
    return is_a(value, (numpy.generic, numpy.ndarray, numpy.ufunc))


def _takes_nothing(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # one written in C
        try:
            function()
        except (TypeError, RuntimeError):
            return False
        return True
    return not any(
        each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters
    )
