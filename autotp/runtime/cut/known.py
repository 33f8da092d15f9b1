"""What is known of objects by their identity, which is another object's as soon as the first one is gone.

Two models may be called in two threads: what one finds to be out of date, the other may have taken out or replaced by then.
"""

from __future__ import annotations

import threading
from typing import TypeVar

T = TypeVar("T")


class Known(dict[int, T]):
    """Values by the identity of what they are of, in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def note(self, key: int, value: T) -> None:
        """Know a value from now on. It is the last one, whatever had its identity before."""
        with self.lock:
            self.pop(key, None)
            self[key] = value

    def forget(self, key: int, value: T) -> None:
        """Take a value out, unless it has gone or another one is there."""
        with self.lock:
            if self.get(key) is value:
                del self[key]
