"""Programs made at random: blocks that keep numbers somewhere, read and write them, have hooks and aliases, and calls with
changes in between. A program is data, from which its Python text is written; a smaller one leaves something out.
"""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tests.contract.kinds import KINDS as FIRST_KINDS
from tests.contract.more_kinds import MORE_KINDS
from tests.contract.parts import Expected
from tests.contract.play import CALLS, DenseError, Outcome, compared

__all__ = ["DenseError", "Program", "is_right", "make", "run", "smallest"]

KINDS = {**FIRST_KINDS, **MORE_KINDS}

# Chooses one of several.
Pick: TypeAlias = Callable[[Sequence[Any]], Any]

PLACES = {"before": 32, "middle": 48, "after": 32}
NUMBERS = ("1.0", "2.0", "3.0", "4.0")
# What a block does with a number `{r}`; a tensor is read for what is marked so.
USES = {
    "factor": "v = v * {r} / 2",
    "shift": "v = v + {r} / 4",
    "condition": "v = v.relu() if {r} > 2 else v.tanh() * 1.5",
    "loop": "for i in range(int({r}) % 3 + 1):\n    v = v * 0.5 + i",
    "index": "v = v * TABLE[int({r}) % 3]",
    "row": "v = v + ROWS[int({r}) % 3, :width]",
    "key": "v = v * NAMED['k%d' % (int({r}) % 3)]",
    "failure": "try:\n    v = v * NAMED[int({r})]\nexcept KeyError:\n    v = v.tanh()",
}
HOOKS = {
    "doubles": ("register_forward_hook", "lambda module, args, result: result * 2"),
    "reads": ("register_forward_hook", "lambda module, args, result: result * HELD[0]"),
    "counts": ("register_forward_hook", "counting"),
    "collects": ("register_forward_hook", "lambda module, args, result: HELD.append(float(result.detach().sum()))"),
    "halves": ("register_forward_pre_hook", "lambda module, args: (args[0] / 2,)"),
    "backward": ("register_full_backward_hook", "lambda module, wanted, given: (wanted[0] * 2,)"),
    "backward first": ("register_full_backward_pre_hook", "lambda module, given: (given[0] * 2,)"),
}
TARGETS = ("norm", "up", "down", "drop", "")
ALIASES = {
    "none": (),
    "tied in the first": ("net.blocks[0].down.weight = nn.Parameter(net.blocks[0].up.weight.detach().T.clone())",),
    "one weight for two in the first": ("net.blocks[0].more.weight = net.blocks[0].norm.weight",),
    "one norm for all": ("for block in net.blocks:", "    block.norm = net.blocks[0].norm"),
    "a linear held twice": ("for block in net.blocks:", "    block.__dict__['again'] = block.up"),
}
BETWEEN = (
    "net.eval()",
    "net.train()",
    "net.blocks[{b}].eval()",
    "net.blocks[{b}].drop.train()",
    "net.blocks[{b}].requires_grad_(False)",
    "net.requires_grad_(True)",
    "net.blocks[{b}].up.weight.requires_grad_(False)",
    "net.blocks[{b}].norm.eps = {v} / 8",
    "net.blocks[{b}].norm.weight = nn.Parameter(values(32, seed=int({v})))",
    "net.blocks[{b}].norm.weight.data.mul_({v})",
    "net.blocks[0], net.blocks[1] = net.blocks[1], net.blocks[0]",
    "HELD.insert(0, {v})",
    "Block.middle, Block.before = Block.before, Block.middle",
    "net.blocks[{b}].middle = torch.tanh",
    "vars(net.blocks[{b}]).pop('middle', None)",
)
WEIGHTS = (
    "net.blocks[{b}].up.weight = nn.Parameter(values(48, 32, seed=int({v})))",
    "net.blocks[{b}].down.weight = nn.Parameter(values(32, 48, seed=int({v})))",
    "net.blocks[{b}].up.bias = None",
    "net.blocks[{b}].down.bias = nn.Parameter(values(32, seed=int({v})))",
    "net.blocks[{b}].down.weight = net.blocks[0].down.weight",
    "net.blocks[0].up.weight, net.blocks[1].up.weight = net.blocks[1].up.weight, net.blocks[0].up.weight",
    "net.blocks[{b}].down.weight.data = values(32, 48, seed=int({v}))",
    # Not constant: equal weights sum a normed value to zero, and the sign of its rounding would be what relu reads.
    "torch.manual_seed(int({v}))\nnn.init.trunc_normal_(net.blocks[{b}].up.weight, std={v} / 16)",
    "torch.manual_seed(int({v}))\nnet.blocks[{b}].down = linear(48, 32)",
    "torch.manual_seed(int({v}))\nnet.blocks[{b}].up.reset_parameters()",
    "net.blocks[{b}].load_state_dict(net.blocks[0].state_dict(), strict=False)",
    "with torch.no_grad():\n    net.blocks[{b}].up.weight.mul_({v} / 2)",
)
CALLED = (
    "call(leaf({s}, 5, 32))",
    "call(leaf({s}, 3, 32))",
    "call(values({s}, 5, 32))",
    "call(values({s}, 5, 32), under=torch.no_grad, backward=False)",
    "call(values({s}, 5, 32), under=torch.inference_mode, backward=False)",
    "call(leaf({s}, 5, 32), run=lambda x: checkpoint(net, x, use_reentrant=False))",
    "call(leaf({s}, 5, 32), run=lambda x: (net(x), net(x + 1)))",
    "call(values({s}, 32, 5).transpose(1, 2))",
    "call(values({s}, 10, 32)[:, ::2])",
)

TOP = """import copy
import functools
import itertools
import logging
import operator
import os
import threading
import types
import weakref
from collections import defaultdict, deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from tests.contract.parts import Mlp, call, leaf, linear, twins, values

TABLE = [0.5, 1.0, 1.5]
ROWS = values(3, 48)
NAMED = {"k0": 0.5, "k1": 1.5, "k2": 2.0, 2: 0.5}
HELD = [2.0]


def counting(module, args, result):
    module.calls = getattr(module, "calls", 0) + 1
    return result * module.calls
"""


@dataclass(frozen=True)
class State:
    """A number somewhere, used in one place of a block: written before that, after it, or not (`write` is empty)."""

    number: int
    kind: str
    place: str
    use: str
    write: str
    first: bool


@dataclass(frozen=True)
class Hook:
    """A hook that is there from one call on, 0 for before the model is parallel, until another."""

    number: int
    effect: str
    block: int
    target: str
    since: int
    until: int


@dataclass(frozen=True)
class Step:
    """One call and what changes before it."""

    changes: tuple[str, ...]
    call: str


@dataclass(frozen=True)
class Program:
    """A module and its calls."""

    blocks: int
    states: tuple[State, ...]
    hooks: tuple[Hook, ...]
    alias: str
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The program as Python, without what all begin with."""
        kinds = [(state.number, KINDS[state.kind]) for state in self.states]
        top = [kind.top.format(n=n) for n, kind in kinds if kind.top]
        globals_ = [kind.globals.format(n=n) for n, kind in kinds if kind.globals]
        lines = [*([f"global {', '.join(globals_)}"] if globals_ else [])]
        lines += [kind.local.format(n=n) for n, kind in kinds if kind.local]
        lines += self._class(kinds)
        lines += [f"net = twins(Block, {self.blocks})", "for block in net.blocks:"]
        lines += ["    block.__dict__['friends'] = [net.blocks[0]]", *ALIASES[self.alias]]
        lines += self._hooks(0)
        lines += ["yield net"]
        for number, step in enumerate(self.steps, 1):
            lines += self._hooks(number)
            lines += [*step.changes, f"yield {step.call}"]
        return "\n\n".join([*top, ""]) + "\ndef program():\n" + _indented("\n".join(lines)) + "\n"

    def _class(self, kinds: Sequence[tuple[int, Any]]) -> list[str]:
        body = [kind.body.format(n=n) for n, kind in kinds if kind.body]
        init = ["super().__init__()", "self.drop, self.more = nn.Dropout(0.0), nn.LayerNorm(32, dtype=torch.float64)"]
        init += [kind.init.format(n=n) for n, kind in kinds if kind.init]
        written = ["def __init__(self, index):", _indented("\n".join(init))]
        for place, width in PLACES.items():
            written += ["", f"def {place}(self, v):", _indented("\n".join(self._place(place, width)))]
        return ["class Block(Mlp):", _indented("\n".join([*body, "", *written])), ""]

    def _place(self, place: str, width: int) -> list[str]:
        own = [state for state in self.states if state.place == place]
        lines = []
        for scope in ("globals", "nonlocals"):
            names = [
                getattr(KINDS[s.kind], scope).format(n=s.number)
                for s in own
                if s.write and getattr(KINDS[s.kind], scope)
            ]
            lines += [f"{scope.removesuffix('s')} {', '.join(names)}"] if names else []
        lines += [f"width = {width}"]
        lines += {"before": ["v = self.drop(v)"], "middle": ["v = v.relu()"], "after": []}[place]
        for state in own:
            kind = KINDS[state.kind]
            read = kind.read.format(n=state.number)
            if kind.is_tensor and state.write and state.use == "factor":
                read += ".clone()"  # what autograd keeps must not be written
            if kind.is_tensor and state.use not in ("factor", "shift"):
                read += ".sum()"
            use = [USES[state.use].format(r=read)]
            write = [state.write.format(n=state.number)] if state.write else []
            lines += write + use if state.first else use + write
        return [*lines, "return v"]

    def _hooks(self, at: int) -> list[str]:
        lines = []
        for hook in self.hooks:
            register, function = HOOKS[hook.effect]
            owner = f"net.blocks[{hook.block}]" + (f".{hook.target}" if hook.target else "")
            if hook.since == at:
                lines.append(f"hook_{hook.number} = {owner}.{register}({function})")
            elif hook.until == at > hook.since:
                lines.append(f"hook_{hook.number}.remove()")
        return lines

    def smaller(self) -> Iterator[Program]:
        """Programs with something less."""
        for name in ("states", "hooks"):
            parts = getattr(self, name)
            yield from (replace(self, **{name: (*parts[:i], *parts[i + 1 :])}) for i in range(len(parts)))
        if self.alias != "none":
            yield replace(self, alias="none")
        if self.blocks > 2:
            yield replace(self, blocks=2)
        for i, step in enumerate(self.steps):
            for k in range(len(step.changes)):
                fewer = replace(step, changes=(*step.changes[:k], *step.changes[k + 1 :]))
                yield replace(self, steps=(*self.steps[:i], fewer, *self.steps[i + 1 :]))
            if step.call != CALLED[0].format(s=2):
                plain = replace(step, call=CALLED[0].format(s=2))
                yield replace(self, steps=(*self.steps[:i], plain, *self.steps[i + 1 :]))
        for i, state in enumerate(self.states):
            if state.write:
                yield replace(self, states=(*self.states[:i], replace(state, write=""), *self.states[i + 1 :]))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def make(pick: Pick) -> Program:
    """A program of choices."""
    blocks = pick((2, 2, 3))
    states = tuple(_state(number, pick) for number in range(pick((1, 1, 2, 2, 3))))
    hooks = tuple(_hook(number, pick) for number in range(pick((0, 0, 0, 1, 1, 2))))
    alias = pick(("none", "none", "none", *ALIASES))
    steps = []
    for number in range(1, CALLS + 1):
        known = [change for state in states for change in _changes(state)]
        pool = [*known, *known, *BETWEEN] if number > 1 else []
        chosen = [pick(pool) for _ in range(pick((0, 1, 1, 2, 3)))] if pool else []
        changes = tuple(text.format(b=pick((0, 1)), v=pick(NUMBERS)) for text in chosen)
        steps.append(Step(changes, pick((CALLED[0], CALLED[0], CALLED[0], *CALLED)).format(s=pick((2, 2, 3)))))
    for _ in range(pick((0, 0, 1, 2))):
        at = pick(range(1, CALLS))
        change = pick(WEIGHTS).format(b=pick((0, 1)), v=pick(NUMBERS))
        steps[at] = replace(steps[at], changes=(*steps[at].changes, change))
    return Program(blocks, states, hooks, alias, tuple(steps))


def _state(number: int, pick: Pick) -> State:
    name = pick(sorted(KINDS))
    write = pick(("", "", *KINDS[name].writes)) if KINDS[name].writes else ""
    return State(number, name, pick(sorted(PLACES)), pick(sorted(USES)), write, pick((False, True)))


def _changes(state: State) -> list[str]:
    """The changes of a state, with `{b}` and `{v}` still open."""
    return [text.replace("{n}", str(state.number)) for text in KINDS[state.kind].changes]


def _hook(number: int, pick: Pick) -> Hook:
    since = pick((0, 0, 1, 2, 3))
    return Hook(number, pick(sorted(HOOKS)), pick((0, 1)), pick(TARGETS), since, pick((0, since + 1, since + 2)))


def run(program: Program, tp: int = 2) -> Outcome:
    """What comes of a program on simulated ranks."""
    text = TOP + "\n\n" + program.text()
    name = f"<program {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    code: types.CodeType = compile(text, name, "exec")
    return compared("program", code, Expected(), tp)


def is_right(program: Program, outcome: Outcome) -> bool:
    """Returns if a program came out as the dense one, or was refused for a backward hook."""
    refusable = any(hook.effect.startswith("backward") for hook in program.hooks)
    return outcome.kind == "equal" or (outcome.kind == "refused" and refusable and "hook" in outcome.text)


def smallest(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program that still fails, from which nothing can be left out."""
    for candidate in program.smaller():
        if fails(candidate):
            return smallest(candidate, fails)
    return program
