"""Collectives of torch.distributed that a rank does not wait for blindly: it asks from time to time if the others still come.

On an accelerator to wait costs the process nothing, and the backend watches its own. What is traced or compiled holds
functional collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...errors import RankLostError
from ..devices.devices import CPU
from .alarm import LOOK_S, Alarm
from .operators import is_plain

MSG_ENDED = "a rank has ended while others waited for it; its own output says why ({error})"
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
_functional = torch.ops._c10d_functional


def all_reduce(value: torch.Tensor, op: str, group: dist.ProcessGroup, alarm: Alarm) -> torch.Tensor:
    if not _is_watched(value):
        return _functional.wait_tensor(_functional.all_reduce(value, op, group.group_name))
    result = value.detach().clone(memory_format=torch.contiguous_format)
    _wait(lambda: dist.all_reduce(result, _OPS[op], group, async_op=True), alarm)
    return result


def all_gather(value: torch.Tensor, size: int, group: dist.ProcessGroup, alarm: Alarm) -> list[torch.Tensor]:
    if not _is_watched(value):
        joined = _functional.all_gather_into_tensor(value.reshape(1, *value.shape), size, group.group_name)
        return list(_functional.wait_tensor(joined).unbind(0))
    result = value.new_empty((size, *value.shape))
    own = value.detach().contiguous()
    _wait(lambda: dist.all_gather(list(result.unbind(0)), own, group, async_op=True), alarm)
    return list(result.unbind(0))


def reduce_scatter(parts: torch.Tensor, group: dist.ProcessGroup, alarm: Alarm) -> torch.Tensor:
    """The sum of this rank's part; `parts` has one for each rank, along its first dim."""
    if not _is_watched(parts):
        part = _functional.reduce_scatter_tensor(parts, "sum", parts.shape[0], group.group_name)
        return _functional.wait_tensor(part).squeeze(0)
    result, given = parts.new_empty(parts.shape[1:]), parts.detach().contiguous()
    _wait(lambda: dist.reduce_scatter_tensor(result, given, group=group, async_op=True), alarm)
    return result


def _is_watched(value: torch.Tensor) -> bool:
    return value.device == CPU and is_plain(value)


def _wait(begin: Callable[[], Any], alarm: Alarm) -> None:
    """Raises RankLostError if another rank ends or breaks off."""
    alarm.check()
    try:
        work = begin()
        while not _is_over(work):
            alarm.look()
    except BaseException as error:
        alarm.lose(str(error))
        alarm.tell(error)
        if type(error) is not RuntimeError:
            raise
        raise RankLostError(alarm.why(MSG_ENDED.format(error=str(error).splitlines()[0]))) from error


def _is_over(work: Any) -> bool:
    try:
        work.wait(timedelta(seconds=LOOK_S))
    except RuntimeError:
        if work.is_completed():
            raise
        return False
    return True
