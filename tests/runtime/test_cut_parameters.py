"""Cut parameters, their gradients and optimizer state as other Python sees them: the dense model's, whatever is done to them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.checkpoint import checkpoint

import autotp
from autotp.api import join_ranks
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.errors import RankLostError, UsageError
from autotp.huggingface.examples import examples_for
from autotp.planner.survey import survey
from autotp.runtime.cut.tensor import CutTensor
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


IDS = torch.arange(15).reshape(3, 5) * 2 % 31


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 50), nn.Linear(50, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.down(torch.relu(self.up(value)))


class Net(nn.Module):
    """A table and two blocks, all of which are cut, and Python that reads their parameters by another road."""

    read: Any = None

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        value = self.embed(ids)
        for block in self.blocks:
            value = block(value)
        return value if self.read is None else self.read(self, value)


@functools.cache
def planned(tp: int) -> tuple[Net, Any, Any]:
    """A dense net in float64, its plan and its programs."""
    torch.manual_seed(0)
    dense = Net().double()
    plan = autotp.plan(dense, tp, example=(IDS,))
    return dense, plan, make_compilers(plan, survey(dense, examples_for(dense, (IDS,)), ()))


def on_ranks(tp: int, run: Callable[[Any], Any]) -> list[Any]:
    """Run a function of the parallel net on simulated ranks."""
    dense, plan, compilers = planned(tp)

    def on_rank(ranks: Ranks) -> Any:
        model = apply_plan(copy.deepcopy(dense), plan, ranks, compilers)
        join_ranks(model, ranks)
        assert len(model._autotp.layouts) == 7  # the table, and of each block two weights and a bias
        return run(model)

    return simulate(tp, on_rank)


def same(found: Any, true: Any) -> bool:
    """Returns if two results, of tensors, numbers and containers of these, are equal in float64."""
    if isinstance(true, torch.Tensor):
        found = found.whole() if isinstance(found, CutTensor) else found
        return found.shape == true.shape and torch.allclose(found, true, rtol=1e-10, atol=1e-12)
    if isinstance(true, numpy.ndarray):
        return bool(numpy.allclose(found, true, rtol=1e-10))
    if isinstance(true, (list, tuple)):
        return len(found) == len(true) and all(same(a, b) for a, b in zip(found, true, strict=True))
    if isinstance(true, dict):
        return found.keys() == true.keys() and all(same(found[name], value) for name, value in true.items())
    return bool(found == pytest.approx(true, rel=1e-10))


# -- read by the model's own Python ------------------------------------------------------------------------------------

READS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "T": lambda net, x: x @ net.embed.weight.T,
    "mT": lambda net, x: x @ net.embed.weight.mT,
    "t": lambda net, x: x @ net.embed.weight.t(),
    "transpose": lambda net, x: x @ net.embed.weight.transpose(0, 1),
    "data": lambda net, x: x @ net.embed.weight.data.T,
    "detach": lambda net, x: x @ net.embed.weight.detach().T,
    "linear": lambda net, x: functional.linear(x, net.embed.weight),
    "a row": lambda net, x: x * net.embed.weight[3],
    "rows": lambda net, x: x * net.embed.weight[torch.tensor([3, 4, 9])].sum(0),
    "a table": lambda net, x: functional.embedding(torch.arange(32) % 7, net.embed.weight).sum(0) * x,
    "sum": lambda net, x: x * net.embed.weight.sum(),
    "mean": lambda net, x: x * net.blocks[0].up.weight.mean(),
    "norm": lambda net, x: x / net.blocks[0].up.weight.norm(),
    "norms of rows": lambda net, x: x @ functional.normalize(net.embed.weight, dim=-1).T,
    "einsum": lambda net, x: torch.einsum("bse,ve->bsv", x, net.embed.weight),
    "squares": lambda net, x: x + 0.1 * sum((p**2).sum() for p in net.parameters()),
    "moduli": lambda net, x: x + 0.1 * sum(p.abs().sum() for p in net.parameters()),
    "a product": lambda net, x: x @ net.blocks[0].up.weight.T @ net.blocks[1].down.weight.T,
    "a bias": lambda net, x: x @ net.blocks[0].up.weight.T + net.blocks[0].up.bias,
    "joined": lambda net, x: x @ torch.cat([net.embed.weight, net.blocks[0].up.weight]).T,
    "stacked": lambda net, x: x * torch.stack([block.up.weight for block in net.blocks]).mean(),
    "orthogonality": lambda net, x: x + (net.embed.weight.T @ net.embed.weight - torch.eye(32)).norm(),
    "largest": lambda net, x: x * net.blocks[0].up.weight.max(),
    "deviation": lambda net, x: x * net.blocks[0].up.weight.std(),
    "by element": lambda net, x: x @ (net.blocks[0].up.weight * 2 + net.blocks[1].up.weight).T,
    "of two cuts": lambda net, x: x @ (net.blocks[0].up.weight.T * net.blocks[1].down.weight),
    "times an activation": lambda net, x: x @ (net.embed.weight * x.mean()).T,
    "largest singular value": lambda net, x: x * torch.linalg.matrix_norm(net.blocks[0].up.weight, 2),
    "sizes": lambda net, x: x * net.embed.weight.numel() / net.embed.weight.shape[0] + net.blocks[0].up.weight.size(0),
    "checkpointed": lambda net, x: checkpoint(lambda x: x @ net.embed.weight.T, x, use_reentrant=False),
}


@pytest.mark.parametrize("tp", [2, 3])
def test_another_road_to_a_cut_parameter_leads_to_the_whole(tp: int) -> None:
    expected = {}
    for name, read in READS.items():
        net = copy.deepcopy(planned(tp)[0])
        net.read = read
        out = net(IDS)
        out.square().mean().backward()
        expected[name] = out.detach(), {n: p.grad for n, p in net.named_parameters()}

    def run(model: Any) -> Any:
        found = {}
        for name, read in READS.items():
            model.read = read
            model.zero_grad()
            out = model(IDS)
            assert type(out) is torch.Tensor
            out.square().mean().backward()
            found[name] = out.detach(), autotp.full_gradients(model)
        return found

    for found in on_ranks(tp, run):
        for name, true in expected.items():
            assert same(found[name], true), name


# -- done to a parameter, its gradient and what an optimizer keeps of it -------------------------------------------------


@torch.no_grad()
def looked_at(p: Any) -> list[Any]:
    """What people compute of a tensor without changing it."""
    g = p.detach()
    values = [
        g.sum(), g.mean(), g.max(), g.min(), g.amax(), g.amin(), g.abs().max(), g.norm(), g.norm(1), g.norm(float("inf")),
        g.norm(dim=0), g.norm(dim=-1, keepdim=True), torch.linalg.norm(g), torch.linalg.vector_norm(g, 3), torch.norm(g, 2),
        torch.nn.utils.get_total_norm([g, g]), (g**2).sum(), g.pow(2).mean().sqrt(), g.std(), g.var(), g.median(), g.prod(),
        g.numel(), g.nelement(), tuple(g.shape), tuple(g.size()), len(g), g.dim(), g.ndim, g.nbytes, g.stride(),
        g.norm() / g.numel() ** 0.5, g.sum(0), g.mean(-1), g.max(0).values, g.argmax(), g.argmin(), g.topk(3, 0).values,
        g.sort(0).values, torch.quantile(g, 0.3), g.kthvalue(2, 0).values, g.cumsum(0), g.softmax(0), g.log_softmax(-1),
        torch.histc(g, 5), g.unique().numel(), g.count_nonzero(), (g > 0).sum(), (g > 0).float().mean(), (g != 0).any(),
        (g == g).all(), torch.isfinite(g).all(), g.mT.sum(0) if g.dim() > 1 else g, g @ g.mT if g.dim() > 1 else g,
        g.isnan().any(), bool((g < 9).all()), torch.allclose(g, g + 0), torch.equal(g, g),
        g.flatten(), g.view(-1), g.reshape(-1), g[0], g[-1], g[1:3], g[..., 0], g[g > 0], g.chunk(2), g.split(5), g.unbind()[2],
        g.narrow(0, 3, 4), g.select(0, 3), g.index_select(0, torch.tensor([4, 2])), g.roll(3, 0), g.flip(0), g.tolist(),
        g.numpy(), numpy.asarray(g), g.cpu().numpy(), g.sum().item(), float(g.mean()), [row.norm() for row in g],
        torch.cat([g, g]), torch.stack([g, g]), g.expand(2, *g.shape), g.repeat(2, *[1] * g.dim()), g.unsqueeze(0),
        g.clone(), g.float().double(), g.to(torch.float64), g.new_zeros(3), torch.zeros_like(g), torch.ones_like(g), g * 2 + 1,
        g / g.norm(), g - g.mean(), g - g.mean(0), g / (g.norm(dim=-1, keepdim=True) + 1), g.clamp(-0.1, 0.1), g.sign() * g.abs(),
        torch.where(g > 0, g, -g), torch.maximum(g, -g), g.masked_fill(g > 0, 3.0), g.lerp(-g, 0.3), g.addcmul(g, g),
        torch.nonzero(g > 0.1), torch.dot(g.flatten(), g.flatten()), functional.cosine_similarity(g.flatten(), g.flatten(), 0),
        torch._foreach_norm([g, g])[0], torch._foreach_mul([g], 2.0)[0], torch._foreach_max([g])[0], parameters_to_vector([g]),
        g + torch.arange(g.shape[-1]), torch.arange(g.shape[-1]) * g, g * torch.ones(g.shape), g.reshape(-1)[5], g.nansum(),
        g.logsumexp(0), torch.linalg.norm(g, 1), g.exp().sum(), (g + 1).max(), (g + 1).min(), (g - 1).mean(), (g * 0 + 1).all(),
        torch.triu(g) if g.dim() > 1 else g, torch.linalg.svdvals(g) if g.dim() > 1 else g,
        g.to(torch.bfloat16).double().sum(), g.bool().sum(), g.int().sum(), g.half().isfinite().all(), (g > 0) & (g < 1),
        torch.ops.aten.add.Tensor(g, g), torch.ops.aten.sum.default(g), g.type(torch.float32).double(), 2 / (g.abs() + 1),
    ]  # fmt: skip
    return [value.whole() if isinstance(value, CutTensor) else value for value in values]


@torch.no_grad()
def changed(p: Any) -> None:
    """Ways to write into a tensor, directly, by its data, and by views of it."""
    p += 0.5
    p.mul_(1.5).add_(0.1, alpha=2).clamp_(-0.4, 0.6)
    p.data.sub_(p.data.mean())
    p.data = p.data - 0.01
    p.copy_(p.data * 1.1)
    p[3] = 0.25
    p[0].zero_()
    p.data[2:4].mul_(3)
    p.data.view(-1)[5] = 7
    p.data.T.add_(0.01) if p.dim() == 2 else None
    for row in p.data[5:9]:
        row.div_(2)
    view = p.data[1]
    p.mul_(0.5)
    p.add_(view.sum())  # a view is of what is there now
    p.data.div_(p.data.norm(dim=-1, keepdim=True) + 1)
    if float(p.data.norm()) > 0.9:
        p.data.mul_(0.9 / p.data.norm())
    p.data.masked_fill_(p.data > 0.3, 0.3)
    p.data[p.data < -0.2] = -0.2
    p.index_fill_(0, torch.tensor([7]), 0.125)
    p.add_(torch.arange(p.numel()).reshape(p.shape) / p.numel())
    torch._foreach_add_([p], [p.data], alpha=0.5)
    torch._foreach_mul_([p], 0.9)
    draw = torch.Generator().manual_seed(3)  # ranks that are threads draw from one generator
    p.add_(torch.randn(p.shape, generator=draw), alpha=0.1)
    p.data.add_(torch.empty_like(p).normal_(generator=draw), alpha=0.1)
    vector_to_parameters(parameters_to_vector([p]) * 1.01, [p])
    torch.sub(p, 0.1, out=p.data)


@torch.no_grad()
def around(p: Any) -> list[Any]:
    """Whole tensors written to with cut ones, state made of a parameter, and a gradient that is set."""
    whole = torch.ones(p.shape)
    whole.add_(p).mul_(p)
    state = torch.zeros_like(p)
    state.mul_(0.9).addcmul_(p, p, value=0.1)
    other = p.new_zeros(p.shape[0])
    other.add_(p.flatten(1).sum(1) if p.dim() > 1 else p)
    p.grad = torch.ones(p.shape)
    p.grad += p.data
    p.grad = p.grad / p.grad.norm() if p.dim() > 1 else p.grad.sign()
    torch._foreach_lerp_([whole], [p.grad], 0.5)
    kept = copy.deepcopy(p.data), p.grad.clone()
    averages = [torch.ones(p.shape) for _ in range(3)]
    averages[0].data = 0.9 * averages[0].data + 0.1 * p.data
    averages[1].data = torch.lerp(averages[1], p, 0.1)
    averages[2].data = torch._foreach_add(averages[2:], [p.data], alpha=0.1)[0]
    values = [whole, state, other, *kept, *averages, state.sqrt().sum(), p.grad.sum(), p.grad.norm(), p.data.sum()]
    return [value.whole() if isinstance(value, CutTensor) else value for value in values]


NAMES = ("embed.weight", "blocks.0.up.weight", "blocks.0.up.bias", "blocks.1.down.weight")


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("do", [looked_at, changed, around])
def test_what_is_done_to_a_cut_tensor_is_done_to_the_whole(do: Callable[[Any], Any], tp: int) -> None:
    dense = copy.deepcopy(planned(tp)[0])
    true = [do(dense.get_parameter(name)) for name in NAMES]

    def run(model: Any) -> Any:
        found = [do(model.get_parameter(name)) for name in NAMES]
        for name, parameter in model.named_parameters():
            held = parameter.local() if isinstance(parameter, CutTensor) else parameter
            assert held.isfinite().all(), name
        return found, autotp.full_state_dict(model), model(IDS).detach()

    with torch.no_grad():
        expected = dense(IDS)
    for found, state, out in on_ranks(tp, run):
        for name, mine, theirs in zip(NAMES, found, true, strict=True):
            for i, (value, other) in enumerate(zip(mine or [], theirs or [], strict=True)):
                assert same(value, other), (name, i)
        assert same(state, dict(dense.named_parameters()))
        assert same(out, expected)  # what is padding is zero still


# -- gradients and hooks -------------------------------------------------------------------------------------------------


def test_hooks_see_whole_gradients_whenever_they_were_set() -> None:
    def hooked(model: Any, seen: list[Any]) -> Any:
        weight = model.embed.weight
        weight.register_hook(lambda gradient: gradient - gradient.mean(0))
        weight.register_hook(lambda gradient: seen.append(gradient.sum(1).sum()))
        weight.register_post_accumulate_grad_hook(lambda p: seen.append((p.grad.std(), p.norm(dim=0).sum())))
        gone = weight.register_hook(lambda gradient: gradient * 7)
        return gone

    def backward(model: Any) -> None:
        model(IDS).square().mean().backward()

    dense, plan, compilers = planned(2)
    true, wanted = copy.deepcopy(dense), list[Any]()
    hooked(true, wanted).remove()
    backward(true)

    def on_rank(ranks: Ranks, before: bool) -> Any:
        model, seen = copy.deepcopy(dense), list[Any]()
        gone = hooked(model, seen) if before else None
        apply_plan(model, plan, ranks, compilers)
        join_ranks(model, ranks)
        (gone or hooked(model, seen)).remove()
        backward(model)
        return seen, model.embed.weight.grad.whole()

    for before in (True, False):
        for seen, gradient in simulate(2, functools.partial(on_rank, before=before)):
            assert same(seen, wanted)
            assert same(gradient, true.embed.weight.grad)


def test_gradients_that_are_asked_for_are_cut() -> None:
    def run(model: Any) -> Any:
        asked = [model.embed.weight, model.blocks[1].down.weight, model.blocks[0].up.bias]
        found = torch.autograd.grad(model(IDS).square().mean(), asked)
        return [(g.norm(), g.max(), g.sum(0), g.shape) for g in found], [type(g) is CutTensor for g in found]

    true, _ = run(copy.deepcopy(planned(2)[0]))
    for found, cut in on_ranks(2, run):
        assert same(found, true)
        assert all(cut)


def test_an_optimizer_made_before_is_in_use_and_copies_are_their_own() -> None:
    def step(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(IDS).square().mean().backward()
        optimizer.step()

    dense, plan, compilers = planned(2)
    true = copy.deepcopy(dense)
    optimizer = torch.optim.AdamW(true.parameters(), 1e-2)
    step(true, optimizer)
    step(true, optimizer)

    def on_rank(ranks: Ranks) -> Any:
        model = copy.deepcopy(dense)
        early = torch.optim.AdamW(model.parameters(), 1e-2)
        step(model, early)  # its state is whole
        apply_plan(model, plan, ranks, compilers)
        join_ranks(model, ranks)
        step(model, early)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert isinstance(twin.embed.weight, nn.Parameter)
        return autotp.full_state_dict(model)

    for state in simulate(2, on_rank):
        assert same(state, dict(true.named_parameters()))


def test_a_write_that_autograd_would_lose_is_refused() -> None:
    def run(model: Any) -> None:
        with pytest.raises(UsageError, match=r"embed\.weight.*no_grad"):
            model.embed.weight[0] = 1
        with pytest.raises(RuntimeError, match="leaf"):
            model.embed.weight.add_(1)
        with pytest.raises(UsageError, match="resize_token_embeddings"):
            model.embed.weight.data = torch.zeros(3, 3)
        with torch.no_grad(), pytest.raises(ValueError, match="read-only"):
            model.embed.weight.numpy()[0] = 1

    on_ranks(2, run)


# -- alone ---------------------------------------------------------------------------------------------------------------


def looking_alone() -> str:
    """Runs on a rank: what the first is told that asks for a norm by itself."""
    model = autotp.parallelize(Net(), example=(IDS,))
    model(IDS).sum().backward()
    weight: Any = model.embed.weight
    assert weight.grad.local().shape == weight.local().shape == (16, 32)
    if torch.distributed.get_rank():
        return ""
    with pytest.raises(RankLostError) as error:
        weight.grad.norm()
    return str(error.value)


def test_a_rank_that_looks_alone_is_told_what_to_do() -> None:
    said, _ = run_ranks(looking_alone, 2, timeout_s=5)
    assert "the norm of embed.weight" in said
    assert ".local()" in said


def once_more_on_the_first() -> str:
    """Runs on a rank: the first logs a norm, then all clip by hand, where all numbers that are sent are of one size."""
    model = autotp.parallelize(Net(), example=(IDS,))
    model(IDS).sum().backward()
    if not torch.distributed.get_rank():
        with pytest.raises(RankLostError, match=r"the norm of blocks\.0\.up\.weight"):
            model.blocks[0].up.weight.grad.norm()
        return "told"
    with pytest.raises(RankLostError):
        [p.grad.norm() for p in model.parameters()]
    return "told"


def test_numbers_of_one_size_are_not_taken_for_each_other() -> None:
    assert run_ranks(once_more_on_the_first, 2, timeout_s=5) == ["told", "told"]


# -- writes that no name and no schema tells of ------------------------------------------------------------------------------


class Marking(torch.autograd.Function):
    """Writes into what it is given, and says so to autograd alone."""

    @staticmethod
    def forward(ctx: Any, value: Any, by: Any) -> Any:  # type: ignore[override]
        ctx.mark_dirty(value)
        value.add_(by, alpha=-0.1)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient, None


class Hiding(torch.autograd.Function):
    """Writes into the data of what it is given."""

    @staticmethod
    def forward(ctx: Any, value: Any, by: Any) -> Any:  # type: ignore[override]
        value.data.add_(by, alpha=-0.1)
        return value.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return None, None


def scripted() -> Any:
    def step(value: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        value.add_(by, alpha=-0.1)
        return value

    return torch.jit.script(step)


WRITERS: dict[str, Callable[[], Callable[[Any, Any], Any]]] = {
    "a script": scripted,
    "a derivative that marks": lambda: Marking.apply,
    "a derivative that hides": lambda: Hiding.apply,
    "an embedding that bounds its rows": lambda: (
        lambda value, by: torch.nn.functional.embedding(torch.tensor([0, 2]), value, max_norm=0.1)
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_write_that_nothing_tells_of_is_taken_over(name: str, view: bool) -> None:
    dense, plan, compilers = planned(2)
    write, true = WRITERS[name](), copy.deepcopy(dense)

    def steps(model: Any) -> None:
        for weight in (model.embed.weight, model.blocks[0].up.weight):
            value = weight.data[1:] if view else weight.data
            write(value, torch.ones_like(value))

    def run(ranks: Ranks) -> Any:
        model = apply_plan(copy.deepcopy(dense), plan, ranks, compilers)
        with torch.no_grad():
            steps(model)
        return autotp.full_state_dict(model)

    with torch.no_grad():
        steps(true)
    for state in simulate(2, run):
        assert all(torch.equal(state[key], value) for key, value in true.state_dict().items())
    assert not torch.equal(true.embed.weight, dense.embed.weight)


def test_a_write_of_a_lookup_that_autograd_would_lose_is_refused() -> None:
    def run(model: Any) -> None:
        with pytest.raises(UsageError, match="embedding would write into embed"):
            torch.nn.functional.embedding(IDS, model.embed.weight, max_norm=0.1)

    on_ranks(2, run)


def sharing(value: Any) -> list[Callable[[], Any]]:
    """Ways to let another tensor have the memory of one."""
    plain, view = torch.zeros(value.shape), torch.zeros(4)[1:]
    given = nn.Parameter(torch.zeros(value.shape))
    return [
        lambda: torch.from_dlpack(value),
        lambda: setattr(plain, "data", value),
        lambda: setattr(plain[0], "data", value),
        lambda: setattr(view, "data", value),
        lambda: setattr(given, "data", value),
        lambda: setattr(given, "grad", value),
        lambda: plain.set_(value),
        lambda: plain.set_(source=value),
    ]


def test_memory_that_a_tensor_which_is_not_cut_would_share_is_refused() -> None:
    def run(model: Any) -> None:
        weight = model.embed.weight
        for value in (weight, weight.data, 0.9 * weight.data, weight.data[1:], weight.data.T):
            for way in sharing(value):
                with pytest.raises(UsageError, match=r"embed\.weight, .*; hand on \.whole\(\)"):
                    way()
        row, ones = weight.data[0], torch.ones(32)
        with pytest.raises(UsageError, match=r"embed\.weight, .*; hand on \.whole\(\)"):
            row.data = weight.data[1]
        row.data = ones  # as it was: what is not cut may be shared
        row.add_(1)
        assert torch.equal(ones, torch.full((32,), 2.0))

    on_ranks(2, run)


class Named(torch.Tensor):
    """A tensor of a class that somebody wrote."""


def test_a_class_of_somebodys_own_is_not_given_a_part() -> None:
    def run(model: Any) -> None:
        weight = model.blocks[0].up.weight
        for each in (weight, weight.data, weight.data[:2], weight.detach() * 2):
            with pytest.raises(UsageError, match=r"make it of \.whole"):
                each.as_subclass(Named)
            plain = each.detach().as_subclass(torch.Tensor)
            assert plain.shape == each.shape
            plain.fill_(3)
            assert each.mean() == 3
        named = weight.detach().whole().as_subclass(Named)
        assert type(named + weight.detach()) is Named
        assert (named + weight.detach()).shape == (50, 32)

    on_ranks(2, run)


def test_what_torch_and_its_compiler_know_attributes_by_is_as_it_was() -> None:
    on_ranks(2, lambda model: None)
    for name in ("data", "grad"):
        assert getattr(torch.Tensor, name) is vars(torch._C.TensorBase)[name]

    def doubled(x: torch.Tensor) -> torch.Tensor:
        x.data = x.data + 1
        return x.data * 2

    assert torch.equal(torch.compile(doubled, backend="eager", fullgraph=True)(torch.ones(3)), torch.full((3,), 4.0))
    leaf = torch.ones(3, requires_grad=True)
    (leaf * 2).sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 2.0))
    del leaf.grad
    assert leaf.grad is None
