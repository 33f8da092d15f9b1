"""A short soak; `make soak` is a long one."""

from __future__ import annotations

import os
import random
import time

import pytest

from .soak import Account, soak


@pytest.mark.sweep
def test_two_kills_and_other_numbers_of_ranks_lead_to_the_dense_losses() -> None:
    account = Account()
    chance = random.Random(os.urandom(4))
    soak("llama, AdamW", 60, chance, account, kills=2, end=time.monotonic() + 100, longest_s=6.0)
    assert account.finished == 1
    assert sum(account.sizes.values()) == account.kills + 1
    assert account.steps >= 60
