"""One process's Python, for ranks that are threads of one process.

A rank reads and writes its own globals, classes and closures, since each loads the cases' module anew. What is left that
a process has once (its environment, its random numbers, hooks for all modules, attributes of torch's classes) is put
aside and back where another rank goes on. One rank runs at a time, until it waits for the others in a collective.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn.modules import module as nn_module
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import SimulatedRanks

PREFIX = "CONTRACT_"  # of variables of the environment that cases set
TIMEOUT_S = 60.0
ABSENT = object()
NAME = "contract_cases"  # of the module that a world is
_GLOBAL_HOOKS = tuple(
    value for name, value in vars(nn_module).items() if name.startswith("_global_") and isinstance(value, dict)
)


@cache
def _code(path: Path) -> types.CodeType:
    return compile(path.read_text(encoding="utf-8"), str(path), "exec")


@contextmanager
def loaded(source: Path | types.CodeType, name: str = NAME) -> Iterator[types.ModuleType]:
    """A module of its own from a file, whoever else has loaded it. On all ranks it has one name, which plans may have in them."""
    code = _code(source) if isinstance(source, Path) else source
    module, outer = types.ModuleType(name), sys.modules.get(name)
    module.__file__ = code.co_filename
    _make_known(name, module)
    try:
        exec(code, vars(module))
        yield module
    finally:
        _make_known(name, outer)


def _make_known(name: str, module: types.ModuleType | None) -> None:
    if module is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = module


def _is_of_a_case(name: str) -> bool:
    """Returns if a Python module is a case's own file, or one that a case makes."""
    return name == NAME or name.startswith("made_")


class Process:
    """What a process has once: noted and given back."""

    def __init__(self, shared: Sequence[tuple[Any, str]] = ()) -> None:
        self.shared = tuple(shared)
        self.note()

    def note(self) -> None:
        self.environment = {n: value for n, value in os.environ.items() if n.startswith(PREFIX)}
        self.hooks = [dict(hooks) for hooks in _GLOBAL_HOOKS]
        self.random = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        self.dtype, self.hook = torch.get_default_dtype(), RemovableHandle.next_id
        self.modules = {n: module for n, module in sys.modules.items() if _is_of_a_case(n)}
        self.attributes = [vars(owner).get(name, ABSENT) for owner, name in self.shared]

    def give_back(self) -> None:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            del os.environ[name]
        os.environ.update(self.environment)
        for hooks, noted in zip(_GLOBAL_HOOKS, self.hooks, strict=True):
            if dict(hooks) != noted:
                hooks.clear()
                hooks.update(noted)
        random.setstate(self.random[0])
        numpy.random.set_state(self.random[1])
        torch.set_rng_state(self.random[2])
        torch.set_default_dtype(self.dtype)
        RemovableHandle.next_id = self.hook
        for name in [name for name in sys.modules if _is_of_a_case(name)]:
            del sys.modules[name]
        sys.modules.update(self.modules)
        for (owner, name), value in zip(self.shared, self.attributes, strict=True):
            if value is not ABSENT:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)


def seed_all(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


class _Turns:
    """Where ranks meet, one of which runs at a time; what it hands over is a copy, as between processes."""

    def __init__(self, size: int, shared: Sequence[tuple[Any, str]]) -> None:
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)
        self.baton = threading.Lock()
        self.processes = [Process(shared) for _ in range(size)]
        self.last: int | None = None

    def begin(self, rank: int) -> None:
        self.baton.acquire()
        if self.last != rank:
            self.processes[rank].give_back()
        self.last = rank

    def end(self, rank: int) -> None:
        self.processes[rank].note()
        self.baton.release()

    def exchange(self, rank: int, value: Any) -> list[Any]:
        with torch.no_grad():
            self.values[rank] = pytree.tree_map_only(torch.Tensor, torch.clone, value)
        self.end(rank)
        try:
            self.barrier.wait(TIMEOUT_S)
            everything = list(self.values)
            self.barrier.wait(TIMEOUT_S)
        finally:
            self.begin(rank)
        return everything


def in_turns(size: int, run: Callable[[Ranks], Any], shared: Sequence[tuple[Any, str]] = ()) -> list[Any]:
    """What a function gives, or the error that it raises, on every rank."""
    turns, before = _Turns(size, shared), Process(shared)
    results: list[Any] = [None] * size

    def body(rank: int) -> None:
        turns.begin(rank)
        try:
            results[rank] = run(SimulatedRanks(rank, turns))  # type: ignore[arg-type]
        except BaseException as error:
            results[rank] = error
            turns.barrier.abort()
        finally:
            turns.end(rank)

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before.give_back()
    return results
