"""What ranks tell each other by the store that they met at. It takes no collective, so a rank that never comes hangs nobody."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from ..errors import UsageError

PrefixStore = dist.PrefixStore  # type: ignore[attr-defined]


def exchange_by_store(line: Sequence[int], rank: int, text: str, what: str, timeout_s: float) -> list[str]:
    """The text of every rank of a line of global ranks, in order; this is the one at position `rank`.

    Raises UsageError naming the ranks that have not called within the time; `what` is what they should have called.
    """
    store = PrefixStore(f"autotp/{'-'.join(map(str, line))}", dist.distributed_c10d._get_default_store())
    number = store.add(f"calls/{rank}", 1)  # counted in the store: every object for this group shares it
    keys = [f"{number}/{other}" for other in range(len(line))]
    store.set(keys[rank], text)
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError:
        absent = [other for other, key in enumerate(keys) if not store.check([key])]
        store.delete_key(keys[rank])
        store.add(f"calls/{rank}", -1)  # as if it had not been called, so that a later call meets the others
        raise UsageError(
            f"{what} was not called by ranks {absent} within {timeout_s:.0f} s; every rank must call it"
        ) from None
    texts = [text.decode() for text in store.multi_get(keys)]
    store.delete_key(f"{number - 1}/{rank}")  # everybody is here, so nobody reads that any more
    return texts
