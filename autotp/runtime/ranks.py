"""The ranks of one tensor-parallel group, and the three collectives autotp uses."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ..axes.layout import Factor, Factors, coordinate, parts_of, peers
from ..errors import PlacementError, UsageError
from . import operators
from .callers import MSG_PICKLED, Callers
from .devices import CPU, check_backend
from .groups import Group, callers_of, free_unused, given_group, group_of, timeout_of
from .log import CollectiveCall, CollectiveLog
from .randomness import set_state, state_of
from .shared import HostGroup
from .store import exchange_by_store


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

    def all_gather(self, value: torch.Tensor, factors: Factors, phase: str) -> list[torch.Tensor]:
        """The value of every rank along some factors, in order of their positions."""
        if parts_of(factors) == 1:
            return [value]
        self._note("all_gather", phase, "activation", factors, value)
        return self._all_gather(value.contiguous(), factors)

    def reduce_scatter(self, parts: Sequence[torch.Tensor], factors: Factors, phase: str) -> torch.Tensor:
        """The sum over the ranks along some factors of the part meant for this rank; parts are in order of positions."""
        if parts_of(factors) == 1:
            return parts[0]
        if self._is_too_narrow(parts[0]):
            return self.reduce_scatter([part.float() for part in parts], factors, phase).to(parts[0].dtype)
        stacked = torch.stack(list(parts))
        self._note("reduce_scatter", phase, "activation", factors, stacked)
        return self._reduce_scatter(stacked, factors)

    def check_agreement(self, text: str, what: str) -> None:
        """Raises PlacementError on every rank if the ranks do not have the same text."""
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
        mine = torch.tensor([number], device=self.device)
        numbers = self._all_gather(mine, (Factor(self.size, 1),)) if self.size > 1 else []
        if any(int(other) != number for other in numbers):
            raise PlacementError(f"the ranks have different {what}; they need equal models, inputs and versions")

    def watch(self, model: nn.Module) -> None:
        """Let collectives of this model's ranks raise UsageError while another thread computes with it, or with a part of it."""

    def begin_part(self) -> None:
        """A part of a model is called, which may send nothing for a while."""

    def begin_call(self, number: int) -> bool:
        """A call of a model begins. Collectives compare the number, that of its inputs, with other ranks'; returns False if
        they cannot. Raises UsageError if another thread is in a call, or in a forked process."""
        return True

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
            self._log.calls.append(
                CollectiveCall(kind, phase, of, parts_of(factors), value.numel(), value.element_size())
            )

    def _all_reduce(self, value: torch.Tensor, factors: Factors, op: str) -> torch.Tensor:
        raise self._alone()

    def _all_gather(self, value: torch.Tensor, factors: Factors) -> list[torch.Tensor]:
        raise self._alone()

    def _reduce_scatter(self, stacked: torch.Tensor, factors: Factors) -> torch.Tensor:
        raise self._alone()

    def _alone(self) -> UsageError:
        return UsageError(f"rank {self.rank} of {self.size} is only planned: it has no others to exchange values with")


class ProcessRanks(Ranks):
    """A group of processes under torch.distributed.

    Collectives of CPU tensors between processes of one machine go through memory they share. All others are functional
    ones of torch's. `torch.compile` sees both.
    """

    are_processes = True

    def __init__(
        self, lines: Sequence[Sequence[int]], device: torch.device = CPU, mesh: DeviceMesh | None = None
    ) -> None:
        """`lines` are the global ranks of every tensor-parallel group; this process is in exactly one of them, which is that
        of the mesh, of one dim, if there is one."""
        me = dist.get_rank()
        mine = next((line for line in lines if me in line), None)
        if mine is None:
            raise UsageError(f"rank {me} is in none of the tensor-parallel groups {list(map(list, lines))}")
        super().__init__(list(mine).index(me), len(mine), device)
        if self.size > 1:
            check_backend(device)
        self.lines = [list(line) for line in lines]
        self.line = list(mine)
        self.replica, self.replicas = self.lines.index(self.line), len(self.lines)
        self._given = mesh
        self._groups: dict[Factors, Group] = {}
        free_unused()

    def prepare(self, over: Iterable[Factors], device: torch.device) -> None:
        for factors in over:
            if parts_of(factors) > 1:
                self.group(factors)
                self.host_group(factors, device)

    def as_distributed(self, part: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        shape = torch.Size([*part.shape[:dim], size, *part.shape[dim + 1 :]])
        strides = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(part, self.mesh, [Shard(dim)], run_check=False, shape=shape, stride=strides)

    @functools.cached_property
    def mesh(self) -> DeviceMesh:
        """The group as a mesh of one dim: the one given, else one named `tp`."""
        if self._given is not None:
            return self._given
        group = self.group((Factor(self.size, 1),))
        return DeviceMesh.from_group(group, self.device.type, mesh=self.line, mesh_dim_names=("tp",))

    def share_random_state(self, *, by_store: bool = False) -> None:
        devices = dict.fromkeys((CPU, self.device))
        states = [state_of(device) for device in devices]
        if by_store:
            text = json.dumps([state.tolist() for state in states]) if self.rank == 0 else ""
            patience = timeout_of(dist.group.WORLD).total_seconds()
            said = self.exchange(text, "the function that makes the model parallel", patience)
            states = [torch.tensor(state, dtype=torch.uint8) for state in json.loads(said[0])]
        elif self.size > 1:
            everybody: Factors = (Factor(self.size, 1),)
            states = [self._all_gather(state.to(self.device), everybody)[0].cpu() for state in states]
        for device, state in zip(devices, states, strict=True):
            set_state(device, state)

    def group(self, factors: Factors) -> dist.ProcessGroup:
        """The process group along some factors; made at first use, which all ranks reach together."""
        return self._group(factors).process_group

    def _group(self, factors: Factors) -> Group:
        if factors not in self._groups:
            self._groups[factors] = self._found_group(factors)
        return self._groups[factors]

    def _found_group(self, factors: Factors) -> Group:
        given = None if self._given is None else self._given.get_group()
        if given is not None and parts_of(factors) == self.size:
            return given_group(given, self)
        places = sorted({tuple(peers(rank, factors)) for rank in range(self.size)})
        parts = tuple(tuple(line[place] for place in part) for line in self.lines for part in places)
        return group_of(parts, self, given)

    def host_group(self, factors: Factors, device: torch.device) -> HostGroup | None:
        """The group along some factors if its ranks share memory for values on this device; formed at first use."""
        return self._group(factors).host() if device.type == "cpu" else None

    def exchange(self, text: str, what: str, timeout_s: float) -> list[str]:
        return exchange_by_store(self.line, self.rank, text, what, timeout_s)

    def to_first(self, value: torch.Tensor, senders: Sequence[int]) -> Iterator[torch.Tensor]:
        group = self.group((Factor(self.size, 1),)) if self.size > 1 else None
        for sender in senders:
            if self.rank == 0 and sender == 0:
                yield value
            elif self.rank == 0:
                received = torch.empty_like(value, memory_format=torch.contiguous_format)
                dist.recv(received, src=self.line[sender], group=group)
                yield received
            elif self.rank == sender:
                dist.send(value.contiguous(), dst=self.line[0], group=group)

    def watch(self, model: nn.Module) -> None:
        self._callers.add(model)

    def begin_part(self) -> None:
        self._callers.check()

    def begin_call(self, number: int) -> bool:
        self._callers.check()
        return sum(group.mark(number) for group in self._groups.values()) == len(self._groups)

    @functools.cached_property
    def _callers(self) -> Callers:
        return callers_of(self.line)

    def _note(self, kind: str, phase: str, of: str, factors: Factors, value: torch.Tensor) -> None:
        if not torch.compiler.is_compiling():
            self._callers.check()
        super()._note(kind, phase, of, factors, value)

    def _all_reduce(self, value: torch.Tensor, factors: Factors, op: str) -> torch.Tensor:
        host = self.host_group(factors, value.device)
        name = self.group(factors).group_name
        if host is not None:
            return operators.all_reduce(value, op, host, name)
        return torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(value, op, name))

    def _all_gather(self, value: torch.Tensor, factors: Factors) -> list[torch.Tensor]:
        host = self.host_group(factors, value.device)
        name, parts = self.group(factors).group_name, parts_of(factors)
        if host is not None:
            return list(operators.all_gather(value, host, name).unbind(0))
        value = value.reshape(1, *value.shape)
        joined = torch.ops._c10d_functional.all_gather_into_tensor(value, parts, name)
        return list(torch.ops._c10d_functional.wait_tensor(joined).unbind(0))

    def _reduce_scatter(self, stacked: torch.Tensor, factors: Factors) -> torch.Tensor:
        host = self.host_group(factors, stacked.device)
        name, parts = self.group(factors).group_name, parts_of(factors)
        if host is not None:
            return operators.reduce_scatter(stacked, "sum", host, name)
        part = torch.ops._c10d_functional.reduce_scatter_tensor(stacked, "sum", parts, name)
        return torch.ops._c10d_functional.wait_tensor(part).squeeze(0)
