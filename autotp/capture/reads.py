"""What a block reads from an object of its call: a number that is an input, or a condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .contract.values import is_same
from .opaque import Path, follow, path_name


@dataclass(frozen=True)
class HandleRead:
    """A number or constant that a block reads from a handle."""

    handle: int
    path: Path

    @property
    def name(self) -> str:
        return f"handle {self.handle} {path_name(self.path)}"

    def of(self, handles: list[Any], positions: tuple[int, ...]) -> Any:
        """What reading it gives now."""
        return follow(handles[self.handle], self.path, positions)


@dataclass(frozen=True)
class HandleGuard:
    """What a block read from a handle that must be the same for its trace to hold; `varies` if a number may become an input."""

    read: HandleRead
    value: Any
    varies: bool = True

    def holds(self, handles: list[Any], positions: tuple[int, ...]) -> bool:
        """Returns if reading it again gives the same value; not if there is nothing to read any more."""
        try:
            return is_same(self.read.of(handles, positions), self.value)
        except (LookupError, AttributeError, TypeError):
            return False
