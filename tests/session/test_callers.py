"""Who calls a parallel model: several threads, forked processes, ranks that are given different things; copies and new worlds."""

from __future__ import annotations

import copy
import gc
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import autotp
from autotp.errors import RankLostError, UsageError
from autotp.runtime.groups.launch import run_ranks
from tests.contract.parts import HIDDEN, Mlp, twins, values


def models(seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """A dense model, and the same one made parallel."""
    torch.manual_seed(seed)
    dense = twins(lambda index: Mlp())
    return dense, autotp.parallelize(copy.deepcopy(dense), example=(values(2, 5, HIDDEN),))


def given(seed: int) -> torch.Tensor:
    return values(2, 5, HIDDEN, seed=seed)


def far(model: nn.Module, dense: nn.Module, x: torch.Tensor) -> float:
    return float((model(x) - dense(x)).detach().abs().max())


def in_thread(function: Callable[[], Any]) -> Any:
    """What a function gives in a thread of its own, or the error that it raises."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


# -- threads ---------------------------------------------------------------------------------------------------------


def second_threads() -> tuple[dict[str, Any], list[float]]:
    """What a second thread does within a call, and within a backward; calls one after the other."""
    dense, model = models()
    seen: dict[str, Any] = {}
    weight = model.blocks[0].up.weight
    others = {
        "part": lambda: model.blocks[0](given(2)),  # without the model around it
        "call": lambda: model(given(2)),
        "read": lambda: weight.norm(),
        "backward": lambda: model(given(2)).sum(),
    }
    right = [far(model, dense, given(1))]
    for name in ("part", "call", "read"):
        handle = model.register_forward_hook(
            lambda *unused, name=name: seen.update({name: in_thread(others[name])}), prepend=True
        )
        right.append(far(model, dense, given(1)))
        handle.remove()
    x = given(3).requires_grad_()
    loss = model(x).sum()
    x.register_hook(lambda gradient: seen.update(backward=in_thread(others["backward"])))
    loss.backward()
    right += [in_thread(lambda: far(model, dense, given(4))), far(model, dense, given(5))]
    return seen, right


def test_a_second_thread_is_refused_while_another_one_computes() -> None:
    for seen, right in run_ranks(second_threads, 2):
        assert {type(error) for error in seen.values()} == {UsageError}, seen
        assert len(seen) == 4
        assert all("another thread" in str(error) for error in seen.values())
        assert max(right) < 1e-12


def parts_in_two_threads() -> tuple[Any, float]:
    """The model itself is never called."""
    dense, model = models()
    seen: list[Any] = []
    first, other = model.blocks[0], model.blocks[1]
    first.norm.register_forward_hook(lambda *unused: seen.append(in_thread(lambda: other(given(2)))))
    return (far(first, dense.blocks[0], given(1)), seen)[::-1]


def test_parts_of_a_model_are_watched_too() -> None:
    for seen, difference in run_ranks(parts_in_two_threads, 2):
        assert {type(error) for error in seen} == {UsageError}, seen
        assert difference < 1e-12


def in_another_order() -> str:
    """Both ranks make the same two calls, one of them in the other order: as threads of a server may."""
    _, model = models()
    model(given(0))
    model(given(1 + dist.get_rank()))
    return "nothing was said"


def test_calls_in_another_order_are_an_error() -> None:
    with pytest.raises(RankLostError, match=r"with other inputs|met an error"):
        run_ranks(in_another_order, 2)


# -- processes -------------------------------------------------------------------------------------------------------


def forked() -> tuple[str, float]:
    dense, model = models()
    model(given(0))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            model(given(1))
            text = "it ran"
        except UsageError as error:
            text = str(error)
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(read, 1000).decode(), far(model, dense, given(1))


def test_a_forked_process_is_refused() -> None:
    for text, difference in run_ranks(forked, 2):
        assert "forked" in text
        assert difference < 1e-12


def copied_and_pickled() -> tuple[str, list[float]]:
    dense, model = models()
    model(given(0))
    try:
        torch.save(model, io.BytesIO())
        text = "it was saved"
    except UsageError as error:
        text = str(error)
    copied, other = copy.deepcopy(model), copy.deepcopy(dense)
    with torch.no_grad():
        for each in (*copied.parameters(), *other.parameters()):
            each.mul_(2)
    return text, [far(copied, other, given(1)), far(model, dense, given(1))]


def test_a_copy_is_a_model_of_its_own_and_a_pickle_is_refused() -> None:
    for text, differences in run_ranks(copied_and_pickled, 2):
        assert "save_pretrained" in text
        assert max(differences) < 1e-12


def worlds() -> list[float]:
    """Two models take turns; the world ends and a new one begins; a model of before and one of now."""
    pairs = [models(seed) for seed in range(2)]
    found = [far(model, dense, given(i)) for i in range(3) for dense, model in pairs]
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    found += [far(model, dense, given(i)) for i in range(3) for dense, model in (*pairs, models(2))]
    return found


def test_two_models_and_a_new_world() -> None:
    for differences in run_ranks(worlds, 2):
        assert max(differences) < 1e-12


def mapped() -> int:
    """How many pieces of memory this process shares with other ranks."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("/memfd:autotp")


def forgotten() -> list[int]:
    """Groups and shared memory: with a model, with another one after it is gone, and in a world of its own after that."""
    found = []
    for world in range(2):
        for seed in range(2):
            dense, model = models(seed)
            assert far(model, dense, given(seed)) < 1e-12
            found.append(mapped() + len(dist.distributed_c10d._world.pg_map))
            del model
            gc.collect()
        if not world:
            rank, size, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
            dist.destroy_process_group()
            dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    return found


def test_a_model_that_is_gone_leaves_no_groups_and_no_memory() -> None:
    for first, *others in run_ranks(forgotten, 2):
        assert first >= 2
        assert others == [first] * 3
