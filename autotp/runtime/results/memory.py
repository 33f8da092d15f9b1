"""The memory that a cut tensor and its views have in common: a part, until somebody may write into the whole.

A part is never written to. So where a write is possible (an in-place operator, a view of the gathered whole, which is a plain
tensor that anybody may write into) the whole is what counts from then on: the memory is settled.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

T = torch.Tensor
# Operators that lead from one tensor to a view of it, with their other arguments.
Way: TypeAlias = tuple[tuple[Any, tuple[Any, ...]], ...]


# So many elements of a part are gathered in about the time of a call of a collective, which one more call would take again.
AT_ONCE = 1 << 20


class Memory:
    """What `part`, cut as a policy says, is of, once it was gathered; and what of it was handed on as a plain tensor."""

    __slots__ = ("_gathers_views", "_handed", "_settled", "part", "policy", "whole")

    def __init__(self, part: T, policy: Any) -> None:
        self.part, self.policy = part, policy
        self.whole: T | None = None
        self._settled, self._gathers_views = False, part.numel() > AT_ONCE
        self._handed: list[tuple[T, Way, int | None]] = []

    @staticmethod
    def of_whole(whole: T, policy: Any) -> Memory:
        """One that is settled from the beginning."""
        made = Memory(whole, policy)
        made.whole, made._settled = whole, True
        return made

    @property
    def is_settled(self) -> bool:
        """Whether the whole counts, and not the part."""
        if self._handed:
            self._take_over()
        return self._settled

    def is_to_be_gathered_in_part(self) -> bool:
        """Returns if the first view of a large value is asked for: somebody may need no more than that."""
        first, self._gathers_views = self._gathers_views, False
        return first and self.whole is None and not self.is_settled

    def gather(self) -> T:
        """The whole to read from; all ranks must come here together."""
        if self.whole is None:
            with torch.no_grad():
                self.whole = self.policy.gathered(self.part)
        return self.whole

    def settle(self) -> T:
        """The whole to write into."""
        if not self.is_settled:
            # Autograd takes a view's place in memory from the strides that the cut tensor says it has.
            self.whole, self._settled = self.gather().contiguous(), True
        assert self.whole is not None
        return self.whole

    def hand_on(self, plain: T, way: Way) -> T:
        """A plain tensor of what is here, for whoever asks: writes into it are noticed later, since torch counts them."""
        if not (self._settled and plain is self.whole) and not any(plain is other for other, _, _ in self._handed):
            self._handed.append((plain, way, _writes(plain)))
        return plain

    def _take_over(self) -> None:
        handed, self._handed = self._handed, []
        for plain, way, before in handed:
            now = _writes(plain)
            if now is None or now != before:
                with torch.no_grad():
                    place = along(way, self.settle())
                    if place is not plain:
                        place.copy_(plain)
            self._handed.append((plain, way, now))


def along(way: Way, whole: T) -> T:
    """A view of a whole."""
    for func, args in way:
        whole = func(whole, *args)
    return whole


def _writes(plain: T) -> int | None:
    """How often torch has counted a write; None where it counts none, and there may have been some."""
    return None if plain.is_inference() else plain._version
