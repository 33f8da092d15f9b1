"""What ranks tell each other by the store, where one comes as another leaves: every order of their steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from autotp.errors import UsageError
from autotp.runtime.transport import store as module
from autotp.runtime.transport.store import exchange_by_store

LONG_S = 30.0
MOST_STEPS = 40


class Stepped:
    """A store that does something of somebody else before the n-th thing that it is asked for by the rank that is watched."""

    def __init__(self, store: Any, before: dict[int, Callable[[], None]]) -> None:
        self._store, self._before, self.steps = store, before, 0

    def __getattr__(self, name: str) -> Any:
        def asked(*args: Any) -> Any:
            self.steps += 1
            self._before.pop(self.steps, lambda: None)()
            return getattr(self._store, name)(*args)

        return asked


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Under "next" the store that who comes next asks."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: None)
    monkeypatch.setattr(module, "PrefixStore", lambda *_: found["next"])
    return found


def exchanged(stores: dict[str, Any], store: Any, size: int, rank: int, text: str, timeout_s: float) -> list[str]:
    stores["next"] = store
    return exchange_by_store(range(size), rank, text, "it", timeout_s, lambda ranks: None)


def arrived(store: Any, rank: int) -> None:
    while not store.check([f"1/{rank}"]):
        pass


def one_order(stores: dict[str, Any], pool: ThreadPoolExecutor, size: int, step: int) -> tuple[bool, int]:
    """Rank 0 waits for no time at all, and calls again if it was refused; the others come before that step of it. Returns if it
    was refused, and its steps."""
    store, others = dist.HashStore(), list[Future[list[str]]]()

    def come() -> None:
        for rank in range(1, size):
            others.append(pool.submit(exchanged, stores, store, size, rank, f"of {rank}", LONG_S))
            arrived(store, rank)

    watched, refused = Stepped(store, {step: come}), False
    try:
        texts = exchanged(stores, watched, size, 0, "first", 0.0)
    except UsageError:
        refused = True
        if not others:
            come()
        texts = exchanged(stores, store, size, 0, "second", LONG_S)
    assert texts == ["second" if refused else "first", *(f"of {rank}" for rank in range(1, size))]
    assert [other.result(LONG_S) for other in others] == [texts] * (size - 1)
    # Once more: nothing that is left over of the rounds before is taken for what is brought now.
    again = [pool.submit(exchanged, stores, store, size, rank, f"again {rank}", LONG_S) for rank in range(size)]
    assert [each.result(LONG_S) for each in again] == [[f"again {rank}" for rank in range(size)]] * size
    return refused, watched.steps


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_comes_as_another_leaves_is_given_what_that_one_brings_next(
    stores: dict[str, Any], size: int
) -> None:
    refused = set()
    with ThreadPoolExecutor(size) as pool:
        for step in range(1, MOST_STEPS):
            was_refused, steps = one_order(stores, pool, size, step)
            refused.add(was_refused)
            if steps < step:
                break
    assert step < MOST_STEPS - 1
    assert refused == {True, False}


def test_ranks_that_waited_for_one_and_left_meet_it_later(stores: dict[str, Any]) -> None:
    store = dist.HashStore()
    for _ in range(3):
        for rank in (0, 2):
            with pytest.raises(UsageError, match=r"was not called by ranks \[.*1.*\]"):
                exchanged(stores, store, 3, rank, "too early", 0.0)
    with ThreadPoolExecutor(3) as pool:
        late = [pool.submit(exchanged, stores, store, 3, rank, f"late {rank}", LONG_S) for rank in (1, 0, 2)]
        assert [each.result(LONG_S) for each in late] == [["late 0", "late 1", "late 2"]] * 3
