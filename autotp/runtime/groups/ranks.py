"""The ranks of one tensor-parallel group, and the three collectives autotp uses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ...axes.layout import Factor, Factors, coordinate, parts_of
from ...errors import PlacementError, UsageError
from ...outside.own import FUNCTIONS
from ..devices.devices import CPU
from .callers import MSG_PICKLED
from .log import CollectiveCall, CollectiveLog, UnitCall


class Ranks:
    """One rank's view of its tensor-parallel group. By itself it is a planned rank, which can hold parts and reach nobody."""

    are_processes = False
    # Which of several equal groups this is, with other data for each, and how many there are.
    replica, replicas = 0, 1

    def __init__(self, rank: int, size: int, device: torch.device = CPU) -> None:
        """`device` is where this rank computes."""
        self.rank, self.size, self.device = rank, size, device
        self.sum_in_float32 = False
        self._log: CollectiveLog | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self  # a copy of a model is on the same rank

    def __reduce__(self) -> Any:
        raise UsageError(MSG_PICKLED)

    def are_those_of(self, other: Ranks) -> bool:
        """Returns if another one is this rank among the same ranks."""
        return False

    def coordinate(self, factors: Factors) -> int:
        """This rank's position along some mesh factors."""
        return coordinate(factors, self.rank)

    @contextmanager
    def logging(self) -> Iterator[CollectiveLog]:
        """Note every collective this rank runs inside the context."""
        before, log = self._log, CollectiveLog()
        self._log = log
        try:
            yield log
        finally:
            self._log = before

    def all_reduce(
        self, value: torch.Tensor, factors: Factors, phase: str, of: str = "activation", op: str = "sum"
    ) -> torch.Tensor:
        """The sum of a value over the ranks along some factors, or with `op="max"` the largest, as a new tensor."""
        if parts_of(factors) == 1:
            return value
        if self._is_too_narrow(value):
            return self.all_reduce(value.float(), factors, phase, of, op).to(value.dtype)
        self._note("all_reduce", phase, of, factors, value)
        return self._all_reduce(value.contiguous(), factors, op)

    def all_gather(
        self, value: torch.Tensor, factors: Factors, phase: str, of: str = "activation"
    ) -> list[torch.Tensor]:
        """The value of every rank along some factors, in order of their positions."""
        if parts_of(factors) == 1:
            return [value]
        self._note("all_gather", phase, of, factors, value)
        return self._all_gather(value.contiguous(), factors)

    def reduce_scatter(self, parts: Sequence[torch.Tensor], factors: Factors, phase: str) -> torch.Tensor:
        """The sum over the ranks along some factors of the part meant for this rank; parts are in order of positions."""
        if parts_of(factors) == 1:
            return parts[0]
        if self._is_too_narrow(parts[0]):
            return self.reduce_scatter([part.float() for part in parts], factors, phase).to(parts[0].dtype)
        stacked = FUNCTIONS.stack(list(parts))
        self._note("reduce_scatter", phase, "activation", factors, stacked)
        return self._reduce_scatter(stacked, factors)

    def check_agreement(self, text: str, what: str) -> None:
        """Raises PlacementError on every rank if the ranks do not have the same text."""
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
        mine = torch.tensor([number], device=self.device)
        if any(int(other) != number for other in self.said_by_all(mine)):
            raise PlacementError(f"the ranks have different {what}; they need equal models, inputs and versions")

    def said_by_all(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The value of every rank, in their order; it counts as nothing that a model sends."""
        return self._all_gather(value, (Factor(self.size, 1),)) if self.size > 1 else [value]

    @property
    def others(self) -> Sequence[int]:
        """The global ranks of the other processes among these; none where ranks are no processes."""
        return ()

    def watch(self, model: nn.Module) -> None:
        """Let collectives of this model's ranks raise UsageError while another thread computes with it, or with a part of it."""

    def note_unit(self, path: str, ran: object) -> None:
        """Note the call of a unit, and what it ran: None where it has no program for it."""
        if self._log is not None:
            self._log.units.append(UnitCall(path, ran, _in_backward()))

    def note_computed(self) -> None:
        """Note that a forward computes a value on a part of what a unit gave."""
        if self._log is not None and not _in_backward():
            self._log.computed += 1

    def begin_part(self) -> None:
        """A part of a model is called, which may send nothing for a while."""

    def begin_call(self, model: nn.Module, number: int) -> bool:
        """A call of a model begins. Collectives compare the number, that of its inputs, with other ranks'; returns False if
        they cannot. Raises UsageError if another thread is in a call, or in a forked process."""
        return True

    def about(self, text: str) -> AbstractContextManager[None]:
        """Within, collectives are about something that this rank computes outside of calls; where they can, they compare that
        too: numbers of one size would be added up, whatever they are the numbers of."""
        return nullcontext()

    def end_call(self, model: nn.Module) -> None:
        """A call has ended, by an error or without one."""

    def tell(self, error: BaseException) -> None:
        """Tell ranks that wait for this one that it will not come, unless they come to the same error."""

    def settle(self) -> None:
        """All ranks know of an error that one of them told, and go on."""

    def prepare(self, over: Iterable[Factors], device: torch.device) -> None:
        """Make what collectives over these factors need on a device. All ranks call it together, with the same factors."""

    def as_distributed(self, part: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        """The distributed tensor of which this rank holds a part, `size` long along a dim and cut evenly from the start."""
        raise UsageError("only ranks that are processes have distributed tensors; plan with gather_logits=True")

    def share_random_state(self, *, by_store: bool = False) -> None:
        """Give this rank's generators the state that those of the group's first rank have, by a collective or, where no
        group of collectives is needed yet, by the store that the ranks met at. Ranks that are threads of one process draw
        from the same ones already."""

    def exchange(self, text: str, what: str, timeout_s: float) -> list[str]:
        """The text of every rank, in rank order. Takes no collective, so a rank that never comes does not hang the others.

        Raises UsageError naming the ranks that have not called within the time; `what` is what they should have called.
        """
        raise self._alone()

    def to_first(self, value: torch.Tensor, senders: Sequence[int]) -> Iterator[torch.Tensor]:
        """On rank 0 the value of each sender, one after the other; nothing on the others. All ranks must iterate over it."""
        raise self._alone()

    def _is_too_narrow(self, value: torch.Tensor) -> bool:
        return self.sum_in_float32 and value.dtype in (torch.bfloat16, torch.float16)

    def _note(self, kind: str, phase: str, of: str, factors: Factors, value: torch.Tensor) -> None:
        if self._log is not None:
            in_backward = phase == "forward" and _in_backward()
            sent = CollectiveCall(kind, phase, of, parts_of(factors), value.numel(), value.element_size(), in_backward)
            self._log.calls.append(sent)

    def _all_reduce(self, value: torch.Tensor, factors: Factors, op: str) -> torch.Tensor:
        raise self._alone()

    def _all_gather(self, value: torch.Tensor, factors: Factors) -> list[torch.Tensor]:
        raise self._alone()

    def _reduce_scatter(self, stacked: torch.Tensor, factors: Factors) -> torch.Tensor:
        raise self._alone()

    def _alone(self) -> UsageError:
        return UsageError(f"rank {self.rank} of {self.size} is only planned: it has no others to exchange values with")


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
