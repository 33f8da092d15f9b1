"""Where the code of a block lies says whose it is: folders beside torch's whose names begin the same, copies of a file."""

import linecache
import sys
import types
from pathlib import Path

import torch

import autotp
from tests.contract.parts import Mlp, case, twins

TEXT = """
import torch
from torch import nn
SCALE = 1.5
HELD = {"scale": 1.0}
class Act(nn.Module):
    power = 1.0
    def __init__(self):
        super().__init__()
        self.factor = 1.0
    def forward(self, y):
        return y.relu() * SCALE * HELD["scale"] * self.factor * self.power
"""


class Holds(Mlp):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def middle(self, y):
        return self.act(y)


def module_in(path):
    """A Python module that was loaded from a file."""
    made = types.ModuleType("layers_of_somebody")
    made.__file__ = str(path)
    sys.modules[made.__name__] = made
    linecache.cache[made.__file__] = (len(TEXT), None, TEXT.splitlines(keepends=True), made.__file__)
    exec(compile(TEXT, made.__file__, "exec"), made.__dict__)
    return made


def calls_with(made):
    net = twins(lambda index: Holds(made.Act()))
    yield net
    yield
    made.SCALE = 3.0
    yield
    made.HELD["scale"] = 2.0
    yield
    net.blocks[0].act.factor = 4.0
    yield
    made.Act.power = 0.5
    yield


@case()
def folder_whose_name_begins_as_torchs():
    yield from calls_with(module_in(Path(torch.__file__).parents[1] / "torchlike" / "layers.py"))


@case()
def folder_whose_name_begins_as_ours():
    yield from calls_with(module_in(Path(autotp.__file__).parents[1] / "autotp_models" / "layers.py"))


@case()
def copy_of_a_file_of_torchs():
    module_in(Path(torch.__file__).parent / "layers.py").Act()(torch.ones(2))
    yield from calls_with(module_in("/somewhere/layers.py"))
