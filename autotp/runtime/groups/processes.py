"""Ranks that are processes under torch.distributed."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ...axes.layout import Factor, Factors, parts_of, peers
from ...errors import UsageError
from ..devices.devices import CPU, check_backend
from ..devices.randomness import set_state, state_of
from ..transport import operators, sending
from ..transport.alarm import Alarm
from ..transport.shared import HostGroup
from ..transport.store import exchange_by_store
from .callers import Callers
from .kept import KeptLogits
from .ranks import Ranks
from .registry import Group, alarm_of, callers_of, free_unused, given_group, group_of, timeout_of


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
        if self.size > 1:
            self._alarm.join()
        free_unused()

    def are_those_of(self, other: Ranks) -> bool:
        return isinstance(other, ProcessRanks) and other.line == self.line

    def prepare(self, over: Iterable[Factors], device: torch.device) -> None:
        for factors in over:
            if parts_of(factors) > 1:
                self.group(factors)
                self.host_group(factors, device)

    def as_distributed(self, part: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        shape = torch.Size([*part.shape[:dim], size, *part.shape[dim + 1 :]])
        strides = torch.empty(shape, device="meta").stride()
        made = DTensor.from_local(part, self.mesh, [Shard(dim)], run_check=False, shape=shape, stride=strides)
        return made if torch.compiler.is_compiling() else KeptLogits.of(made, self)

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
            self._groups[factors].alarm = self._alarm
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
        try:
            return exchange_by_store(self.line, self.rank, text, what, timeout_s, self._alarm.miss)
        except BaseException as error:
            if not isinstance(error, UsageError):  # which says that others have not come yet
                self._alarm.tell(error)
            raise

    def to_first(self, value: torch.Tensor, senders: Sequence[int]) -> Iterator[torch.Tensor]:
        everybody: Factors = (Factor(self.size, 1),)
        group = self.group(everybody) if self.size > 1 else None
        value = value.contiguous()
        received = torch.empty_like(value) if self.rank == 0 and self.size > 1 else value
        if self.size > 1:  # who waits for one that will not come hears of it in a collective only
            self._all_reduce(torch.zeros(1, device=self.device), everybody, "sum")
        for sender in senders:
            if self.rank == 0 and sender == 0:
                yield value
            elif self.rank == 0:
                dist.recv(received, src=self.line[sender], group=group)
                yield received
            elif self.rank == sender:
                dist.send(value, dst=self.line[0], group=group)

    @property
    def others(self) -> Sequence[int]:
        me = dist.get_rank()
        return [rank for rank in self.line if rank != me]

    def watch(self, model: nn.Module) -> None:
        self._callers.add(model)

    def begin_part(self) -> None:
        self._callers.check()

    def begin_call(self, model: nn.Module, number: int) -> bool:
        self._callers.check()
        self._alarm.begin_call(model)
        return sum(group.mark(number) for group in self._groups.values()) == len(self._groups)

    @contextmanager
    def about(self, text: str) -> Iterator[None]:
        topic = 0 if torch.compiler.is_compiling() else crc32(text.encode())
        for group in self._groups.values():
            group.turn_to(topic)
        try:
            yield
        finally:
            for group in self._groups.values():
                group.turn_to(0)

    def end_call(self, model: nn.Module) -> None:
        self._alarm.end_call(model)

    def tell(self, error: BaseException) -> None:
        self._alarm.tell(error)

    def settle(self) -> None:
        self._alarm.settle()

    @functools.cached_property
    def _callers(self) -> Callers:
        return callers_of(self.line)

    @functools.cached_property
    def _alarm(self) -> Alarm:
        return alarm_of(self.line)

    def _note(self, kind: str, phase: str, of: str, factors: Factors, value: torch.Tensor) -> None:
        if not torch.compiler.is_compiling():
            self._callers.check()
            self._alarm.begin_collective()
        super()._note(kind, phase, of, factors, value)

    def _all_reduce(self, value: torch.Tensor, factors: Factors, op: str) -> torch.Tensor:
        host, group = self.host_group(factors, value.device), self.group(factors)
        if host is not None:
            return operators.all_reduce(value, op, host, group.group_name)
        return sending.all_reduce(value, op, group, self._alarm)

    def _all_gather(self, value: torch.Tensor, factors: Factors) -> list[torch.Tensor]:
        host, group = self.host_group(factors, value.device), self.group(factors)
        if host is not None:
            return list(operators.all_gather(value, host, group.group_name).unbind(0))
        return sending.all_gather(value, parts_of(factors), group, self._alarm)

    def _reduce_scatter(self, stacked: torch.Tensor, factors: Factors) -> torch.Tensor:
        host, group = self.host_group(factors, stacked.device), self.group(factors)
        if host is not None:
            return operators.reduce_scatter(stacked, "sum", host, group.group_name)
        return sending.reduce_scatter(stacked, group, self._alarm)
