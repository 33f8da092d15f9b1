"""Python's collector of garbage, which does nothing for one thread while it works for another."""

from __future__ import annotations

import gc
import time
from typing import Any

_TRIES, _PAUSE_S = 200, 0.005  # a second in all, for the collection of another thread to end


def collect(generation: int = 2) -> None:
    """Collect what is garbage now, of what is no older than a generation.

    While another thread collects, which may have begun when something was still held, `gc.collect()` does nothing and returns 0;
    one that runs finds the circle made here.
    """
    for _ in range(_TRIES):
        circle: list[Any] = []
        circle.append(circle)
        del circle
        if gc.collect(generation):
            return
        time.sleep(_PAUSE_S)
