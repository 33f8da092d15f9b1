"""Python modules that a block imports as it runs, and what lies in Python modules and classes that libraries made."""

import importlib
import math
import sys
import tempfile
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.contract.parts import Mlp, case, reading, twins


def made(name, **held):
    """A Python module that can be imported."""
    module = types.ModuleType(name)
    vars(module).update(held)
    sys.modules[name] = module
    return module


@case(processes=True)
def imported_in_a_block():
    module = made("imported_here", scale=1.5)

    def read(block):
        import imported_here

        return imported_here.scale

    yield from reading(read, lambda net: setattr(module, "scale", 2.5))


@case(processes=True)
def imported_under_another_name():
    module = made("imported_else", held={"scale": 1.5})

    def read(block):
        import imported_else as other

        return (lambda: other.held["scale"])()

    change = lambda net: module.held.update(scale=2.5)  # noqa: E731
    yield from reading(read, change, lambda net: setattr(module, "held", {"scale": 7.0}))


@case(processes=True)
def two_names_from_a_module():
    module = made("imported_from", scale=1.5, shift=0.5)

    def read(block):
        from imported_from import scale, shift

        return scale + shift

    yield from reading(read, lambda net: setattr(module, "scale", 2.5), lambda net: setattr(module, "shift", 2.5))


@case(processes=True)
def inner_module_under_another_name():
    module = made("imported_outer.inner", scale=1.5)
    made("imported_outer", __path__=[], inner=module)

    def read(block):
        import imported_outer.inner as inner

        return inner.scale

    yield from reading(read, lambda net: setattr(module, "scale", 2.5))


@case(processes=True)
def imported_by_a_function():
    module = made("imported_by_name", scale=1.5)
    change = lambda net: setattr(module, "scale", 2.5)  # noqa: E731
    yield from reading(lambda block: importlib.import_module("imported_by_name").scale, change)


@case()
def module_of_a_library_imported_in_a_block():
    patch = pytest.MonkeyPatch()

    def read(block):
        import math as numbers

        return numbers.tau / numbers.pi

    try:
        yield from reading(read, lambda net: patch.setattr(math, "tau", 2.5))
    finally:
        patch.undo()


@case(processes=True)
def not_there_at_first():
    def read(block):
        try:
            import imported_later
        except ImportError:
            return 1.0
        return imported_later.scale

    module = types.ModuleType("imported_later")
    module.scale = 3.0
    change = lambda net: sys.modules.__setitem__("imported_later", module)  # noqa: E731
    yield from reading(read, change, lambda net: setattr(module, "scale", 5.0))
    del sys.modules["imported_later"]


@case(processes=True)
def file_not_there_at_first():
    def read(block):
        try:
            from imported_from_a_file import scale
        except ImportError:
            return 1.0
        return scale

    with tempfile.TemporaryDirectory() as folder:
        sys.path.append(folder)

        def change(net):
            Path(folder, "imported_from_a_file.py").write_text("scale = 3.0\n")
            importlib.invalidate_caches()

        yield from reading(read, change)
        sys.path.remove(folder)
        sys.modules.pop("imported_from_a_file", None)


@case(processes=True)
def imported_at_the_first_call():
    def read(block):
        import imported_lately

        return imported_lately.HELD.sum() * imported_lately.SCALE

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "imported_lately.py").write_text("import torch\nHELD = torch.ones(2)\nSCALE = 1.5\n")
        sys.path.append(folder)
        yield from reading(read, lambda net: setattr(sys.modules["imported_lately"], "SCALE", 2.5))
        sys.path.remove(folder)
        sys.modules.pop("imported_lately", None)


COUNTS = made("counted_in", n=0.0)


class CountsInModule(Mlp):
    def middle(self, y):
        COUNTS.n += 1
        return y.relu() * COUNTS.n


@case()
def counted_in_a_module():
    COUNTS.n = 0.0
    yield twins(CountsInModule)
    for _ in range(4):
        yield


@case(processes=True)
def counted_in_an_imported_module():
    made("counted_in_imported", n=0.0)

    def read(block):
        import counted_in_imported

        counted_in_imported.n += 1
        return counted_in_imported.n

    yield from reading(read)


def counted_in(holder, write):
    class Counts(Mlp):
        def middle(self, y):
            write()
            return y.relu() * holder.counted

    holder.counted = 0.0
    yield twins(Counts)
    for _ in range(4):
        yield
    del holder.counted


@case(processes=True)
def counted_in_a_module_of_a_library():
    def write():
        math.counted += 1

    yield from counted_in(math, write)


@case(processes=True)
def counted_in_torch():
    def write():
        setattr(torch, "counted", torch.counted + 1)  # noqa: B010

    yield from counted_in(torch, write)


@case(processes=True)
def counted_in_a_class_of_torchs():
    def write():
        nn.ReLU.counted += 1

    yield from counted_in(nn.ReLU, write)
