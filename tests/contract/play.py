"""A case played on the dense model and on ranks, and what differs."""

from __future__ import annotations

import itertools
import threading
import types
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import autotp
from autotp.checkpoint.full import state_of
from autotp.errors import AutotpError
from autotp.runtime.cut.origin import IsCut
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.results.logits import closed
from autotp.runtime.results.traced import TracedLogits
from autotp.session.groups import join_ranks
from autotp.session.parallel import cut_model
from autotp.session.pipeline import Session
from tests.contract.parts import HIDDEN, Call, Expected, leaf, values
from tests.contract.world import NAME, Process, in_turns, loaded, seed_all

TOLERANCE = 1e-9
CALLS = 4
FOLDER = Path(__file__).parent / "cases"
FILES = tuple(sorted(path for path in FOLDER.glob("*.py") if not path.stem.startswith("_")))
_numbers = itertools.count()
_WHOLE = "computes some calls with whole weights"


class DenseError(Exception):
    """A case fails on the dense model."""


@dataclass
class Record:
    """What one call left: outputs, gradients of parameters and inputs, and everything in the Python around."""

    outputs: list[Any]
    gradients: dict[str, torch.Tensor | None]
    inputs: list[torch.Tensor | None]
    state: dict[str, Any]


@dataclass
class Played:
    """The calls of a case, the parameters behind the last one, and how many of them are cut."""

    records: list[Record] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    cut: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `equal`, `refused`, `wrong` or `crash`, how, and whether something was cut and ran cut."""

    name: str
    kind: str
    text: str = ""
    cut: bool = False

    def holds(self, expected: Expected, compiled: bool = False) -> bool:
        """Returns if this may be, of a case whose model is compiled or not."""
        if self.kind == "refused":
            words = expected.refusal + (expected.compiled if compiled else ())
            return any(word in self.text for word in words)
        return self.kind == "equal"


def one_in(share: int, names: Iterable[str]) -> list[str]:
    """About so few of these names, the same ones whatever others there are."""
    return [name for name in names if zlib.crc32(name.encode()) % share == 0]


@cache
def cases() -> dict[str, tuple[Path | types.CodeType, Expected]]:
    """The file and what is expected of every case, by name."""
    found: dict[str, tuple[Path | types.CodeType, Expected]] = {}
    for path in FILES:
        with loaded(path) as module:
            named = {
                n: f.expected
                for n, f in vars(module).items()
                if isinstance(f, types.FunctionType) and hasattr(f, "expected")
            }
        assert not found.keys() & named.keys()
        found |= {name: (path, expected) for name, expected in named.items()}
    return found


def simulated(name: str, tp: int) -> Outcome:
    """A case on ranks that take turns in this process."""
    source, expected = cases()[name]
    return compared(name, source, expected, tp)


def compared(name: str, source: Path | types.CodeType, expected: Expected, tp: int) -> Outcome:
    """The same for a case from anywhere."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dense = in_turns(1, lambda ranks: played(source, name, None), expected.shared)[0]
        if isinstance(dense, BaseException):
            raise DenseError(f"{name}: {type(dense).__name__}: {dense}") from dense
        found = in_turns(tp, lambda ranks: played(source, name, lambda *made: cut(ranks, *made)), expected.shared)
    return judged(name, dense, found, any(_WHOLE in str(warning.message) for warning in said))


def on_process(name: str, compiled: bool = False) -> Outcome:
    """A case on this process's rank; every rank calls it. A compiled one may be what the dense model is, compiled or not."""
    source, expected = cases()[name]
    before = Process(expected.shared)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dense, failure = [played(source, name, None)], None
        before.give_back()
        if compiled:
            try:
                dense.append(played(source, name, None, compiled))
            except Exception as error:  # torch.compile fails for some of them as they are
                failure = error
            before.give_back()
        try:
            found: Any = played(source, name, _parallelized, compiled)
        except Exception as error:
            found = error
        before.give_back()
    if failure is not None and isinstance(found, Exception) and _said(found) == _said(failure):
        return Outcome(name, "equal")  # torch.compile fails for both, in the same way
    whole = any(_WHOLE in str(warning.message) for warning in said)
    outcomes = [judged(name, each, [found], whole) for each in dense]
    return next((outcome for outcome in outcomes if outcome.kind == "equal"), outcomes[0])


def _said(error: Exception) -> tuple[type[Exception], str]:
    """What an error is and says, without where it was raised."""
    return type(error), next(iter(str(error).splitlines()), "")


def on_processes(names: Sequence[str], compiled: bool = False) -> list[Outcome]:
    """Several cases, one after the other."""
    return [on_process(name, compiled) for name in names]


def assert_as_expected(outcomes: Sequence[Outcome], compiled: bool = False) -> None:
    """Fails with what came of those cases that are not as they should be."""
    wrong = {f"{o.name}: {o.kind}: {o.text}" for o in outcomes if not o.holds(cases()[o.name][1], compiled)}
    assert not wrong, "\n".join(sorted(wrong))


def _parallelized(net: nn.Module, example: Any, options: dict[str, Any]) -> nn.Module:
    return autotp.parallelize(net, example=example, **options)


def cut(ranks: Ranks, net: nn.Module, example: Any, options: dict[str, Any]) -> nn.Module:
    """What `autotp.parallelize` does, on a simulated rank."""
    cut_model(Session(net, example=example, **options), ranks)
    join_ranks(net, ranks)
    return net


def played(
    source: Path | types.CodeType, name: str, parallel: Callable[..., nn.Module] | None, compiled: bool = False
) -> Played:
    """Every call of a case on a model, made parallel or not, and compiled or not."""
    # Dynamo keeps the modules that it has seen, by name.
    with loaded(source, f"{NAME}_{next(_numbers)}" if compiled else NAME) as module:
        seed_all(0)
        steps = getattr(module, name)()
        first = next(steps)
        net, example, options = (*first, {})[:3] if isinstance(first, tuple) else (first, (values(2, 5, HIDDEN),), {})
        if parallel is not None:
            parallel(net, example, options)
        if compiled:
            torch._dynamo.reset()
            net.compile(backend="eager")
        done, result = Played(), None
        while (given := _next(steps, result)) is not _END:
            record = _called(net, given, len(done.records), parallel is not None)
            record.state = state(net, module)
            done.records.append(record)
            result = record.outputs
        assert len(done.records) >= CALLS, f"{name} makes {len(done.records)} calls"
        whole = autotp.full_state_dict(net) if parallel is not None else net.state_dict()
        done.parameters = {n: _dense(tensor) for n, tensor in whole.items() if isinstance(tensor, torch.Tensor)}
        done.cut = len(state_of(net).layouts) if parallel is not None else 0
        return done


_END = object()


def _next(steps: Generator[Any, Any, None], result: Any) -> Any:
    try:
        return steps.send(result)
    except StopIteration:
        return _END


def _called(net: nn.Module, given: Any, number: int, parallel: bool) -> Record:
    """One call and its backward, from the same random numbers for everybody."""
    spec = given if isinstance(given, Call) else Call()
    own = spec.args or spec.kwargs or spec.run
    args = spec.args if own else (leaf(2 + number % 2, 5, HIDDEN, seed=10 + number),)
    seed_all(100 + number)
    net.zero_grad()
    with spec.under():
        result = (spec.run or net)(*args, **spec.kwargs)
    outputs = [output for output in pytree.tree_leaves(result) if isinstance(output, torch.Tensor)]
    loss = sum(
        (output * values(*output.shape, seed=50 + i)).sum()
        for i, output in enumerate(outputs)
        if output.requires_grad and output.is_floating_point()
    )
    if spec.backward and isinstance(loss, torch.Tensor):
        loss.backward()
    named = (
        autotp.full_gradients(net) if parallel else {n: p.grad for n, p in net.named_parameters(remove_duplicate=False)}
    )
    gradients = {n: None if g is None else g.detach().clone() for n, g in named.items()}
    inputs = [leaf.grad for leaf in pytree.tree_leaves((args, spec.kwargs)) if isinstance(leaf, torch.Tensor)]
    return Record([output.detach().clone() for output in outputs], gradients, inputs, {})


# -- what Python holds -----------------------------------------------------------------------------------------------

_INTERNALS = frozenset(vars(nn.Module())) | {"forward"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype)


def state(net: nn.Module, module: types.ModuleType) -> dict[str, Any]:
    """Numbers, words and tensors in the attributes of all modules of a model, and in a module's globals, by where they are."""
    seen = {id(part) for part in net.modules()}
    found: dict[str, Any] = {}
    for path, part in net.named_modules():
        for name, value in vars(part).items():
            if name not in _INTERNALS:
                _note(f"{path}.{name}", value, found, set(seen), 5)
        for name, buffer in part._buffers.items():
            _note(f"{path}.{name}", buffer, found, set(seen), 5)
    for name, value in vars(module).items():
        if not name.startswith("__") and not isinstance(value, (types.ModuleType, types.FunctionType)):
            own = not isinstance(value, type) or value.__module__ == module.__name__
            if own:
                _note(f"global {name}", value, found, set(seen), 5)
    return found


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that can be compared."""
    return (tensor if tensor.layout is torch.strided else tensor.to_dense()).detach().clone()


def _note(place: str, value: Any, found: dict[str, Any], seen: set[int], depth: int) -> None:
    if isinstance(value, _PLAIN):
        found[place] = value
    elif isinstance(value, nn.Parameter):
        pass
    elif isinstance(value, TracedLogits):
        found[place] = value.whole().detach().clone()
    elif isinstance(value, torch.Tensor):
        whole = value.whole() if isinstance(value, IsCut) else closed(value)  # any use of what is cut makes it whole
        found[place] = _dense(whole)
        if value.is_leaf and value.grad is not None:
            found[f"{place}.grad"] = value.grad.detach().clone()
    elif depth and id(value) not in seen:
        seen.add(id(value))
        for name, inner in _inside(value):
            _note(f"{place}{name}", inner, found, seen, depth - 1)


def _inside(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple, deque)):
        return [("#", len(value)), *((f"[{i}]", inner) for i, inner in enumerate(value))]
    if isinstance(value, Mapping):
        return [("#", len(value)), *((f"[{key!r}]", inner) for key, inner in value.items() if isinstance(key, _PLAIN))]
    if isinstance(value, nn.Module):
        parameters = {n: p.grad for n, p in value.named_parameters()}
        return [(f".{n}", inner) for n, inner in {**parameters, **dict(value.named_buffers())}.items()]
    if isinstance(value, type):
        return [(f".{n}", inner) for n, inner in vars(value).items() if not n.startswith("_")]
    if isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, threading.local)):
        return []
    held = getattr(value, "__dict__", None)
    slots = {n: getattr(value, n) for n in getattr(type(value), "__slots__", ()) if hasattr(value, n)}
    every = {**(held if isinstance(held, dict) else {}), **slots}
    return [(f".{n}", inner) for n, inner in every.items() if not n.startswith("__")]


# -- what differs ----------------------------------------------------------------------------------------------------


def judged(name: str, dense: Played, ranks: Sequence[Any], whole: bool) -> Outcome:
    errors = [
        rank for rank in ranks if isinstance(rank, BaseException) and not isinstance(rank, threading.BrokenBarrierError)
    ]
    refusal = next((error for error in errors if isinstance(error, AutotpError)), None)
    crash = next((error for error in errors if not isinstance(error, AutotpError)), None)
    if crash is not None:
        return Outcome(name, "crash", f"{type(crash).__name__}: {' '.join(str(crash).split())[:300]}")
    if refusal is not None:
        return Outcome(name, "refused", f"{type(refusal).__name__}: {refusal}")
    for rank, found in enumerate(ranks):
        text = next(iter(differences(dense, found)), "")
        if text:
            return Outcome(name, "wrong", f"rank {rank}, {text}", bool(found.cut) and not whole)
    return Outcome(name, "equal", "", bool(ranks[0].cut) and not whole)


def differences(dense: Played, found: Played) -> list[str]:
    texts = []
    if len(dense.records) != len(found.records):
        return [f"{len(found.records)} calls of {len(dense.records)}"]
    for number, (true, own) in enumerate(zip(dense.records, found.records, strict=True), 1):
        texts += [f"call {number}: {text}" for text in _different(true, own)]
    texts += [f"behind the last call: {text}" for text in _mapped(dense.parameters, found.parameters)]
    return texts


def _different(true: Record, own: Record) -> list[str]:
    texts = []
    for what in ("outputs", "inputs"):
        mine, theirs = getattr(own, what), getattr(true, what)
        if len(mine) != len(theirs):
            texts.append(f"{len(mine)} {what} of {len(theirs)}")
        else:
            named = [{f"{what[:-1]} {i}": value for i, value in enumerate(side)} for side in (theirs, mine)]
            texts += _mapped(*named)
    gradients = [{f"gradient of {name}": value for name, value in side.gradients.items()} for side in (true, own)]
    return texts + _mapped(*gradients) + _mapped(true.state, own.state)


def _mapped(true: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    texts = [f"{name} is missing" for name in true if name not in own]
    for name, value in true.items():
        if name in own and not _same(value, own[name]):
            texts.append(f"{name} {_difference(value, own[name])}")
    return texts


def _same(true: Any, own: Any) -> bool:
    if isinstance(true, torch.Tensor) and isinstance(own, torch.Tensor):
        if type(own) is not type(true) or own.shape != true.shape or own.dtype != true.dtype:
            return False
        if not (true.is_floating_point() or true.is_complex()):
            return torch.equal(true, own)
        return torch.allclose(own, true, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    if isinstance(true, float) and isinstance(own, float):
        return true == own or abs(true - own) <= TOLERANCE * max(1.0, abs(true))
    return type(true) is type(own) and bool(true == own)


def _difference(true: Any, own: Any) -> str:
    if not isinstance(true, torch.Tensor) or not isinstance(own, torch.Tensor):
        return f"is {own!r:.60}, not {true!r:.60}"
    if type(own) is type(true) and own.shape == true.shape and own.dtype == true.dtype:
        return f"differs by {float((true.double() - own.double()).abs().max()):.1e}"
    return f"is a {type(own).__name__} {tuple(own.shape)} {own.dtype}, not {tuple(true.shape)} {true.dtype}"
