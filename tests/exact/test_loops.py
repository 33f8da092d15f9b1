"""Training loops as people write them, on real ranks: each gives the dense numbers, random draws included, or is refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.utils import parametrize, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import autotp
from autotp.errors import AutotpError, UsageError
from autotp.runtime.cut.origin import IsCut
from autotp.runtime.groups.launch import run_ranks
from tests.exact.test_optimizers import IDS, Net

LOOPS: dict[str, Callable[[Any], Any]] = {}
Numbers = list[torch.Tensor]


def loop(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    LOOPS[function.__name__] = function
    return function


def loss_of(model: Any, step: int) -> torch.Tensor:
    return (model((IDS + step) % 31) - 0.3).square().mean()


def adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


def train(model: Any, optimizer: Any, steps: int = 3, adjust: Callable[[], Any] = lambda: None) -> Numbers:
    losses = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model, step)
        loss.backward()
        adjust()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@loop
def a_scaler_meets_infinity(model: Any) -> Numbers:
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scales = []
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        if step == 1:
            with torch.no_grad():
                model.blocks[0].up.weight.grad[3, 1] = float("inf")
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(torch.tensor(scaler.get_scale()))
    return scales


@loop
def averages_of_weights(model: Any) -> Numbers:
    averages = [AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), AveragedModel(model)]
    optimizer = adam(model)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        for each in averages:
            each.update_parameters(model)
    return [loss_of(averages[0], 5), *(p for each in averages for p in each.module.parameters())]


@loop
def averages_by_hand(model: Any) -> Numbers:
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    shadow = copy.deepcopy(model)
    optimizer = adam(model)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                kept[name].mul_(0.9).add_(p, alpha=0.1)
            torch._foreach_lerp_(list(shadow.parameters()), list(model.parameters()), 0.1)
    return [*kept.values(), *shadow.parameters()]


@loop
def what_loggers_ask(model: Any) -> Numbers:
    train(model, adam(model))
    gradients = [p.grad for p in model.parameters()]
    found = [torch.nn.utils.get_total_norm(gradients, order) for order in (1.0, 2.0, float("inf"))]
    found += torch._foreach_norm(gradients)
    for p in model.parameters():
        found += [p.std(), p.grad.var(), p.abs().max(), (p == 0).double().mean(), p.grad.data.norm(2), p.grad.argmax()]
        found += [torch.histc(p.grad, 4), torch.quantile(p.grad.flatten(), 0.9), p.detach().flatten().cumsum(0)[-1]]
    return found


@loop
def a_search_for_a_rate(model: Any) -> Numbers:
    """States are copied, and pickled, and put back."""
    optimizer = adam(model)
    train(model, optimizer, 1)
    states = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    found = train(model, optimizer, 2)
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    found += train(model, optimizer, 2)
    file.seek(0)
    stored = torch.load(file, weights_only=False)
    model.load_state_dict(stored["model"])
    optimizer.load_state_dict(stored["optimizer"])
    return found + train(model, optimizer, 2)


@loop
def the_states_of_a_dense_run(model: Any) -> Numbers:
    torch.manual_seed(1)
    dense = Net().double()
    before = adam(dense)
    train(dense, before, 2)
    optimizer = adam(model)
    model.load_state_dict(dense.state_dict())
    optimizer.load_state_dict(before.state_dict())
    return train(model, optimizer)


@loop
def one_vector(model: Any) -> Numbers:
    vector = torch.nn.utils.parameters_to_vector(model.parameters())
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(vector * 1.01, model.parameters())
    flat = torch._utils._flatten_dense_tensors([p.data for p in model.parameters()])
    return [vector, flat, *train(model, adam(model))]


@loop
def noise(model: Any) -> Numbers:
    """Differential privacy, Langevin dynamics, a sign for every entry, and values rounded at random."""

    def perturb() -> None:
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
            p.grad.mul_(torch.randint_like(p, high=2) * 2 - 1)
            p.data.add_(torch.empty_like(p.data).normal_(), alpha=1e-3)
            p.grad += torch.nn.functional.dropout(p.grad, 0.5)
            narrow = p.data.float()
            bits = narrow.view(torch.int32) + torch.randint(0, 1 << 16, narrow.shape, dtype=torch.int32)
            p.data.copy_((bits & -65536).view(torch.float32))

    return train(model, adam(model), adjust=perturb)


@loop
def hooks_on_gradients(model: Any) -> Numbers:
    optimizers = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

    def step(p: Any) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_hook(lambda gradient: gradient / (gradient.norm() + 1))
        p.register_post_accumulate_grad_hook(step)
    losses = []
    for number in range(3):
        loss = loss_of(model, number)
        loss.backward()
        losses.append(loss.detach())
    return losses


@loop
def one_clip_for_each(model: Any) -> Numbers:
    norms: Numbers = []

    def clip() -> None:
        for p in model.parameters():
            norms.append(torch.nn.utils.clip_grad_norm_(p, 0.01))
            p.grad.clamp_(-p.grad.abs().quantile(0.9), p.grad.abs().quantile(0.9))
            largest = p.grad.view(-1).abs().topk(3).indices
            p.grad.view(-1)[largest] *= 0.5

    return [*train(model, adam(model), adjust=clip), *norms]


@loop
def sharpness(model: Any) -> Numbers:
    """Up the gradient, a second gradient there, and down again."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def climb() -> None:
        norm = torch.stack([(p.abs() * p.grad).norm() for p in model.parameters()]).norm()
        with torch.no_grad():
            steps = [p.grad * p.square() * (0.05 / norm) for p in model.parameters()]
            torch._foreach_add_(list(model.parameters()), steps)
        optimizer.zero_grad()
        loss_of(model, 7).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), steps)

    return train(model, optimizer, adjust=climb)


@loop
def two_losses(model: Any) -> Numbers:
    """Gradients that are projected on each other, a penalty on gradients, and distances to where it began."""
    parameters, begun = list(model.parameters()), [p.detach().clone() for p in model.parameters()]
    one = torch.autograd.grad(loss_of(model, 0), parameters)
    other = torch.autograd.grad(loss_of(model, 5), parameters)
    inner = torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in zip(one, other, strict=True)]).sum()
    with torch.no_grad():
        for p, a, b in zip(parameters, one, other, strict=True):
            p.sub_(0.1 * (a - inner * b))
    first = torch.autograd.grad(loss_of(model, 1), parameters, create_graph=True)
    penalty = torch.stack([gradient.square().sum() for gradient in first]).sum()
    away = sum(torch.nn.functional.mse_loss(p, q + 0.1) for p, q in zip(parameters, begun, strict=True))
    (loss_of(model, 1) + penalty + away).backward()
    return [inner, penalty, *(p.grad for p in parameters)]


@loop
def weights_that_are_pruned_and_drawn_again(model: Any) -> Numbers:
    for block in model.blocks:
        prune.l1_unstructured(block.up, "weight", amount=0.3)
    found = train(model, adam(model), 2)
    for block in model.blocks:
        prune.remove(block.up, "weight")
        torch.nn.init.orthogonal_(block.down.weight)
        block.up.reset_parameters()
    with torch.no_grad():
        model.embed.weight.renorm_(2, 0, 0.5)
        model.embed.weight.index_fill_(0, torch.tensor([1, 2]), 0.0)
        model.blocks[0].down.weight[:, :3] = 0
    return found + train(model, adam(model), 2)


@loop
def a_weight_and_its_norm(model: Any) -> Numbers:
    torch.nn.utils.parametrizations.weight_norm(model.blocks[0].up)
    torch.nn.utils.parametrizations.spectral_norm(model.blocks[1].down)
    found = train(model, adam(model))
    parametrize.remove_parametrizations(model.blocks[0].up, "weight")
    return [*found, loss_of(model, 4)]


@loop
def states_that_are_edited(model: Any) -> Numbers:
    optimizer = adam(model)
    train(model, optimizer, 2)
    found = []
    for state in optimizer.state.values():
        state["exp_avg"].mul_(0.5)
        state["exp_avg"][0] = 0
        state["exp_avg_sq"] = state["exp_avg_sq"].clone()
        found += [state["exp_avg_sq"].sum(), state["exp_avg"].norm()]
    return found + train(model, optimizer, 2)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "the mean of checkpoints": lambda model: [torch.stack([v, v]).mean(0) for v in model.state_dict().values()],
    "an average in a state": lambda model: [v.mul_(0.9) for v in model.state_dict().values()],
}


def whole(value: Any) -> torch.Tensor:
    return (value.whole() if isinstance(value, IsCut) else value).detach().clone()


def on_ranks() -> tuple[dict[str, float], dict[str, str]]:
    """Runs on a rank: the largest difference of each loop, and what was refused."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    start, far = Net().double(), {}
    for name, run in LOOPS.items():
        results = []
        for model in (copy.deepcopy(start), autotp.parallelize(copy.deepcopy(start), example=(IDS,))):
            torch.manual_seed(3)
            seen = [whole(value) for value in run(model)]
            state = model.state_dict() if not results else autotp.full_state_dict(model)
            results.append([*seen, *(whole(state[key]) for key in sorted(state))])
        pairs = list(zip(*results, strict=True))
        far[name] = max(float((own - true).abs().max() / (1 + true.abs().max())) for true, own in pairs)
    model, refused = autotp.parallelize(copy.deepcopy(start), example=(IDS,)), {}
    for name, run in REFUSED.items():
        with pytest.raises(AutotpError) as caught:
            run(model)
        refused[name] = str(caught.value)
    return far, refused


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")  # of torch, about schedulers and states
def test_loops_give_the_dense_numbers_or_are_refused() -> None:
    for far, refused in run_ranks(on_ranks, 2):
        assert far.keys() == LOOPS.keys()
        assert {name: difference for name, difference in far.items() if not difference < 1e-9} == {}
        assert all("full_state_dict" in text for text in refused.values())


def of_two_replicas(model: Any, replica: int | None, step: int) -> torch.Tensor:
    """The loss of one replica's half of a batch, or of all of it."""
    halves = [loss_of(model, 2 * step + half) / 2 for half in (range(2) if replica is None else (replica,))]
    return torch.stack(halves).sum()


def averaged_by_hand(model: Any, group: Any) -> torch.optim.Optimizer:
    return adam(model)


def shared_among_replicas(model: Any, group: Any) -> torch.optim.Optimizer:
    if group is None:
        return adam(model)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns as it is imported

    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group, lr=1e-2)


def on_replicas() -> dict[str, float]:
    """Runs on a rank of two by two: gradients are averaged by hand, and an optimizer's work is shared among replicas."""
    torch.set_default_dtype(torch.float64)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    group, replica = mesh["dp"].get_group(), mesh["dp"].get_local_rank()
    torch.manual_seed(0)
    start, far = Net().double(), {}
    for make in (averaged_by_hand, shared_among_replicas):
        dense = copy.deepcopy(start)
        model: Any = autotp.parallelize(copy.deepcopy(start), mesh=mesh, example=(IDS,))
        optimizers = make(dense, None), make(model, group)
        rows = model.blocks[0].up.weight.data[2:4]
        for step in range(3):
            for own, optimizer, part in zip((dense, model), optimizers, (None, replica), strict=True):
                optimizer.zero_grad()
                of_two_replicas(own, part, step).backward()
                if part is not None:
                    for p in own.parameters():
                        dist.all_reduce(p.grad, group=group)
                optimizer.step()
        state = autotp.full_state_dict(model)
        apart = [state[name] - value for name, value in dense.state_dict().items()]
        apart.append(rows.clone() - dense.blocks[0].up.weight[2:4])  # type: ignore[union-attr, index]
        far[make.__name__] = max(float(each.detach().abs().max()) for each in apart)
    for mixed in (lambda p: dist.all_reduce(p.grad), lambda p: dist.broadcast(p.data, src=0)):
        with pytest.raises(UsageError, match=r"would mix different parts of embed\.weight.*mesh\['dp'\]"):
            mixed(model.embed.weight)
    return far


@pytest.mark.filterwarnings("ignore")
def test_replicas_exchange_parts_and_others_are_refused() -> None:
    for far in run_ranks(on_replicas, 4):
        assert len(far) == 2
        assert max(far.values()) < 1e-9
