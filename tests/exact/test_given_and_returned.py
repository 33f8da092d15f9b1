"""What goes into units and comes out of them: lists that they write into, results that share memory, sizes that are merged."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import autotp
from autotp.checkpoint.full import state_of
from autotp.dispatch.apply import apply_plan
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.tensor import closed
from autotp.session.pipeline import Session

HIDDEN, INNER = 12, 21  # of which two ranks have equal parts of one, and three of both
LIMIT = 1e-12


def words(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER).double(), nn.Linear(INNER, HIDDEN).double()

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(self.up(x).tanh())


class Net(nn.Module):
    """Blocks of a kind, called in some way."""

    def __init__(self, kind: Callable[[], nn.Module], run: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.run = nn.ModuleList(kind() for _ in range(2)), run

    def forward(self, x: torch.Tensor, *rest: Any) -> Any:
        return self.run(self, x, *rest)


def one_after_the_other(model: Net, x: torch.Tensor, *rest: Any) -> Any:
    for number, block in enumerate(model.blocks):
        x = block(x, *(each[number] for each in rest))
    return x


def equals_dense(model: Net, example: Any, use: Callable[[nn.Module], list[torch.Tensor]], tp: int) -> None:
    """What a use of a model gives is what it gives with the dense one, on every rank."""
    true = use(copy.deepcopy(model))
    session = Session(model, example=example, objective="memory")
    plan = session.plan(tp)
    compilers = session.compilers(plan)

    def on_rank(ranks: Ranks) -> list[torch.Tensor]:
        found = use(apply_plan(copy.deepcopy(model), plan, ranks, compilers))
        with torch.no_grad():
            return [closed(tensor).clone() for tensor in found]

    for found in simulate(tp, on_rank):
        for one, other in zip(found, true, strict=True):
            torch.testing.assert_close(one, other, rtol=LIMIT, atol=LIMIT)


class Keeps(Mlp):
    """Keeps what it has seen in a dict, or a list, that it is given."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor, kept: Any = None) -> torch.Tensor:
        h = self.up(x)
        if kept is None:
            return x + self.down(h.tanh())
        if self.how == "a dict":
            kept["seen"] = torch.cat([kept["seen"], h], 1) if "seen" in kept else h
            seen = kept["seen"]
        elif self.how == "a list":
            kept.append(h)
            seen = torch.cat(kept, 1)
        else:
            seen = torch.cat([kept["a"][0], h], 1) if kept["a"] else h
            kept["a"][:] = [seen]
        return x + self.down((h + seen.mean(1, keepdim=True)).tanh())


NEW: dict[str, Callable[[], Any]] = {"a dict": dict, "a list": list, "a list in a dict": lambda: {"a": []}}


def written_four_times(how: str, model: nn.Module, grad: bool) -> list[torch.Tensor]:
    kept, found = [NEW[how]() for _ in range(2)], []
    with torch.set_grad_enabled(grad):
        for number in range(4):
            found.append(model(words(2, 2, HIDDEN, seed=number), kept))
    return [*found, torch.tensor([len(str(each)) > 20 for each in kept])]


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("how", NEW)
def test_what_a_block_writes_into_what_it_is_given_stays_there(how: str, grad: bool, tp: int) -> None:
    """Beside a result of the block before it, which is cut; the plan was made without any of it."""
    model = Net(functools.partial(Keeps, how), one_after_the_other)
    use = functools.partial(written_four_times, how, grad=grad)
    with pytest.warns(UserWarning, match="given"):
        equals_dense(model, (words(2, 2, HIDDEN),), use, tp)


class Gives(Mlp):
    def __init__(self, what: Callable[[Any, torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: torch.Tensor) -> Any:
        h = self.up(x).tanh()
        return self.what(self, x + self.down(h), h)


SHARED: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], Any]] = {
    "a slice": lambda block, y, h: (y, y[:, 1:3]),
    "slices that overlap": lambda block, y, h: (y[:, :2], y[:, 1:3]),
    "slices that do not": lambda block, y, h: (y[:, :2], y[:, 2:3]),
    "rows": lambda block, y, h: (h, h[:, 0], h[:, -1]),
    "detached": lambda block, y, h: (y, y.detach()),
    "transposed": lambda block, y, h: (y.transpose(0, 1), y),
    "parts": lambda block, y, h: y.chunk(2, 1),
    "parts and the whole": lambda block, y, h: (h, *h.split([10, 11], -1)),
    "twice": lambda block, y, h: (y, y),
    "a parameter": lambda block, y, h: (y, block.down.weight),
    "a view of a parameter": lambda block, y, h: (y, block.up.weight.detach()[:4]),
}


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("what", SHARED)
def test_a_write_into_one_result_is_seen_in_others_of_its_memory(what: str, which: int, tp: int) -> None:
    model = Net(functools.partial(Gives, SHARED[what]), lambda model, x: model.blocks[0](x))

    def use(model: nn.Module) -> list[torch.Tensor]:
        with torch.no_grad():
            found = model(words(2, 5, HIDDEN))
            found[which].mul_(3.0)
            return [*found, *model(words(2, 5, HIDDEN, seed=1))]

    equals_dense(model, (words(2, 5, HIDDEN),), use, tp)


FLAT: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], Any]] = {
    "everything": lambda block, y, h: y.reshape(-1).sin(),
    "positions": lambda block, y, h: y.flatten(1).sin(),
    "of several heads": lambda block, y, h: h.unflatten(-1, (7, 3)).transpose(1, 2).reshape(-1).sin(),
}


@pytest.mark.parametrize("tp", [2, 3, 7])
@pytest.mark.parametrize("what", FLAT)
def test_sizes_of_a_call_may_be_merged_with_what_is_cut(what: str, tp: int) -> None:
    model = Net(functools.partial(Gives, FLAT[what]), lambda model, x: model.blocks[0](x) + model.blocks[1](x))

    def use(model: nn.Module) -> list[torch.Tensor]:
        x = words(3, 4, HIDDEN).requires_grad_()
        y = model(x)
        y.square().sum().backward()
        assert x.grad is not None
        return [y, x.grad, model(words(1, 2, HIDDEN))]

    equals_dense(model, (words(2, 5, HIDDEN),), use, tp)
    report = autotp.verify(model, tp, example=(words(2, 5, HIDDEN),), objective="memory")
    report.raise_for_failure()


@pytest.mark.parametrize("tp", [2, 3, 7])
def test_merged_sizes_that_nobody_was_known_to_read(tp: int) -> None:
    """Another call reads them, of another size."""
    kind = functools.partial(Gives, lambda block, y, h: (y, h.reshape(-1)))
    model = Net(kind, lambda model, x: model.blocks[1](model.blocks[0](x)[0])[0])

    def use(model: nn.Module) -> list[torch.Tensor]:
        blocks: Any = model.blocks
        y, flat = blocks[1](words(3, 4, HIDDEN))
        return [model(words(2, 5, HIDDEN)), y, torch.tensor(flat.shape), flat, blocks[0](words(1, 2, HIDDEN))[1] * 2]

    equals_dense(model, (words(2, 5, HIDDEN),), use, tp)


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


def selectively(model: Net, x: torch.Tensor) -> Any:
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False, context_fn=SELECTIVE)
    return x


@pytest.mark.parametrize("tp", [2, 3])
def test_programs_are_made_within_selective_checkpoints(tp: int) -> None:
    def use(model: nn.Module) -> list[torch.Tensor]:
        found = []
        for number in range(3):
            x = words(2, 3, HIDDEN, seed=number).requires_grad_()
            y = model(x)
            y.square().sum().backward()
            assert x.grad is not None
            found += [y, x.grad]
        return found

    model = Net(Mlp, selectively)
    equals_dense(model, (words(2, 3, HIDDEN),), use, tp)
    autotp.verify(model, tp, example=(words(2, 3, HIDDEN),), objective="memory").raise_for_failure()


class WritesARow(Mlp):
    """Gives a view that it has written into, of which torch allows no hooks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.up(x).tanh())
        y[:, 0] = 0
        return y


class Numbers(Mlp):
    """Numbers of its weights beside what these make."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x)) + self.up.weight.norm() + self.down.weight.abs().sum(0).max()


class Scaled(Mlp):
    """Weights over the mean of their size, as in networks of one bit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, down = (layer.weight / layer.weight.abs().mean() for layer in (self.up, self.down))
        return x + functional.linear(functional.linear(x, up, self.up.bias).tanh(), down)


class RunsAgain(Mlp):
    """Checkpoints a part of itself in the reentrant form, which calls a function that a trace made; another part is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, INNER).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda value: self.down(self.up(value).tanh()), x, use_reentrant=True)
        return x + y + self.down(self.gate(x).sin())


class Differentiates(Net):
    """Gives a force: the gradient of its energy, to be differentiated again."""

    def forward(self, x: torch.Tensor, *rest: Any) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = super().forward(x).square().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, -force


VERIFIED = {
    "a row": Net(WritesARow, one_after_the_other),
    "numbers": Net(Numbers, one_after_the_other),
    "scaled weights": Net(Scaled, one_after_the_other),
    "a part that runs again": Net(RunsAgain, one_after_the_other),
    "forces": Differentiates(Mlp, one_after_the_other),
    "sums of results": Net(Mlp, lambda model, x: (model.blocks[0](x) + model.blocks[1](x)) / 2),
    "several sums of results": Net(
        Mlp, lambda model, x: (lambda a, b: (a + b, a - b, 2 * a + b))(*(block(x) for block in model.blocks))
    ),
    "a mean of what is cut": Net(
        functools.partial(Gives, lambda block, y, h: y + block.down(h) * h.mean(-1, keepdim=True)), one_after_the_other
    ),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("what", VERIFIED)
def test_collectives_are_as_expected(what: str, tp: int) -> None:
    report = autotp.verify(VERIFIED[what], tp, example=(words(2, 5, HIDDEN),), objective="memory")
    report.raise_for_failure()
    assert report.elements[1] < report.elements[0]


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("wanting", [False, True])
def test_collectives_of_positions_are_as_expected(wanting: bool, tp: int) -> None:
    model, x = Net(Mlp, one_after_the_other), words(2, 6, HIDDEN).requires_grad_(wanting)
    report = autotp.verify(model, tp, example=(x,), sequence_parallel=True)
    report.raise_for_failure()
    assert tp == 2 or report.planned["reduce_scatter forward activation"]


class Attends(nn.Module):
    """Gives its weights of attention, which it uses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN).double() for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (layer(x).unflatten(-1, (4, 3)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.mT).softmax(-1)
        return x + self.o((weights @ v).transpose(1, 2).flatten(2)), weights


class GivesKeys(Attends):
    """Gives its keys and values, which are gathered each by itself."""

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = (layer(x).unflatten(-1, (4, 3)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return x + self.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)), k, v


# Blocks that give a value which they go on with, in several ways.
WENT_ON: dict[str, Callable[[], nn.Module]] = {
    "attention": Attends,
    "keys": GivesKeys,
    "cut": functools.partial(Gives, lambda block, y, h: (y, h)),
    "a sum": functools.partial(Gives, lambda block, y, h: (y + block.down(block.up(y).tanh()), y)),
    "a product": functools.partial(Gives, lambda block, y, h: (y.tanh(), block.down(h))),
    "summed with others": functools.partial(Gives, lambda block, y, h: (y, h.mean(-1))),
}


def heard(model: nn.Module, asks: str) -> list[torch.Tensor]:
    """Gradients, where hooks look at that of the second result, or change it, and where more than the first is read."""
    x, told = words(2, 5, HIDDEN).requires_grad_(), list[torch.Tensor]()
    y, second, *_ = model(x)
    loss = y.square().sum() + (second.sin().sum() if "read" in asks else 0)
    if "hook" in asks:
        second.register_hook(lambda gradient: told.append(gradient * 1))
        second.register_hook(lambda gradient: gradient * 3)
    if "retain" in asks:
        second.retain_grad()
    if "grad of" in asks:
        (gradient,) = torch.autograd.grad(loss, second, retain_graph=True, allow_unused=True)
        told.append(torch.zeros(()) if gradient is None else gradient)
    loss.backward()
    kept = [second.grad] if "retain" in asks and second.grad is not None else []
    assert x.grad is not None
    return [*told, *kept, x.grad, *whole_gradients(model)]


def whole_gradients(model: nn.Module) -> list[torch.Tensor]:
    """Those of a dense model, or of a parallel one."""
    try:
        state_of(model)
    except autotp.AutotpError:
        found = {name: parameter.grad for name, parameter in model.named_parameters()}
    else:
        found = autotp.full_gradients(model)
    return [gradient for gradient in found.values() if gradient is not None]


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("asks", ["hook", "hook, read", "retain, read", "grad of", "grad of, read"])
@pytest.mark.parametrize("kind", WENT_ON)
def test_a_result_that_a_block_goes_on_with_has_all_of_its_gradient(kind: str, asks: str, tp: int) -> None:
    model = Net(WENT_ON[kind], lambda model, x: model.blocks[0](x))
    equals_dense(model, (words(2, 5, HIDDEN),), functools.partial(heard, asks=asks), tp)


class Draws(Mlp):
    """Draws from a generator that it is given."""

    def forward(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        h = self.up(x).tanh()
        if generator is not None:
            h = h * torch.rand(1, generator=generator, dtype=x.dtype)
        return x + self.down(h)


@pytest.mark.parametrize("tp", [2, 3])
def test_a_generator_that_a_block_is_given_is_drawn_from(tp: int) -> None:
    def use(model: nn.Module) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        drawn = [model(words(2, 5, HIDDEN), (generator, generator)) for _ in range(2)]
        return [*drawn, torch.rand(3, generator=generator)]

    model = Net(Draws, one_after_the_other)
    with pytest.warns(UserWarning, match="Generator"):
        equals_dense(model, (words(2, 5, HIDDEN),), use, tp)


def flops_on_processes() -> tuple[float, float, list[int]]:
    dense = Net(Mlp, one_after_the_other)
    model = autotp.parallelize(copy.deepcopy(dense), example=(words(2, 6, HIDDEN),))
    counted = []
    for _ in range(2):
        with FlopCounterMode(display=False) as counter, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its hooks on modules ask for their histories: a call may run whole
            result = model(words(2, 6, HIDDEN))
            result.sum().backward()
        counted.append(counter.get_total_flops())
    x = words(2, 6, HIDDEN)
    return float((closed(result) - dense(x)).abs().max()), float(result.abs().max()), counted


def test_a_counter_of_flops_does_not_count_traces() -> None:
    for error, size, counted in run_ranks(flops_on_processes, 2):  # its hooks on all modules are for one thread
        assert error < LIMIT < size
        assert counted[0] == counted[1] > 0


class Twice(nn.Module):
    """A block under several names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = Mlp()
        self.blocks = nn.ModuleList([Mlp(), self.first, self.first])
        self.last = self.blocks[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(self.first(x))


def trained(model: nn.Module, steps: int, seed: int = 0) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for number in range(steps):
        optimizer.zero_grad()
        model(words(2, 5, HIDDEN, seed=seed + number)).square().sum().backward()
        optimizer.step()
    return optimizer


def on_processes(folder: Path) -> list[float]:
    """Largest differences in the state: after some steps, and after some more of another model, which goes on from there."""
    dense, model = Twice(), autotp.parallelize(Twice(), example=(words(2, 5, HIDDEN),))
    trained(dense, 2)
    optimizer = trained(model, 2)
    found = [_difference(dense, model)]
    autotp.TrainingState(model, optimizer).save(folder, {})
    other = autotp.parallelize(Twice(), example=(words(2, 5, HIDDEN),))
    autotp.TrainingState(other, torch.optim.Adam(other.parameters(), lr=1e-2)).load(folder, {})
    found.append(_difference(dense, other))
    whole, part = state_of(model).plan.elements()
    return [*found, part / whole]


def _difference(dense: nn.Module, model: nn.Module) -> float:
    state = autotp.full_state_dict(model)
    assert list(state) == list(dense.state_dict())
    return max(float((state[name] - value).abs().max()) for name, value in dense.state_dict().items())


def test_a_module_under_several_names_is_cut_as_one(tmp_path: Path) -> None:
    for tp in (2, 3):
        autotp.verify(Twice(), tp, example=(words(2, 5, HIDDEN),)).raise_for_failure()
    for trained_, loaded, part in run_ranks(on_processes, 2, tmp_path / "state"):
        assert trained_ < LIMIT
        assert loaded < LIMIT
        assert part < 0.6
