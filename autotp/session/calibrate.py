"""A machine's own numbers, measured with the ranks that are to compute on it, as a hardware file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from ..axes.layout import Factor, Factors
from ..errors import UsageError
from ..planner.cost import Hardware, hardware
from ..planner.fit import Timing, fitted
from ..runtime.devices.rates import matrix_rate, memory_of, memory_rate, seconds_of
from ..runtime.groups.ranks import Ranks
from .groups import process_ranks

GIB = 2**30
_BYTES = tuple(2**power for power in (10, 12, 14, 16, 18, 20, 22, 24))
_FEW, _MANY, _LARGE = 5, 25, 2**20
MSG_ALONE = "there is no collective of one rank; measure with two or more"
MSG_NOT_WRITTEN = "cannot write {path}: {reason}"


@dataclass(frozen=True)
class Calibration:
    """A measured node, and the times of collectives that its numbers are fitted to, over so many ranks."""

    node: Hardware
    timings: tuple[Timing, ...]
    ranks: int


def calibrate(name: str, dtype: str | None = None) -> Calibration:
    """Measure the machine that the process group's ranks compute on. All ranks call it together, with nothing else running.

    Rates are those of one rank while all compute: the slowest one's. `dtype` of the products is bfloat16 where ranks compute on
    accelerators, float32 on CPUs. Raises UsageError for a group of one rank.
    """
    ranks = process_ranks(None, None, None)
    if ranks.size == 1:
        raise UsageError(MSG_ALONE)
    on_cpu = ranks.device.type == "cpu"
    kind = getattr(torch, dtype or ("float32" if on_cpu else "bfloat16"))
    dist.barrier()
    rates = torch.tensor([matrix_rate(ranks.device, kind), memory_rate(ranks.device)], device=ranks.device)
    slowest = -ranks.all_reduce(-rates, _everybody(ranks), "forward", op="max")
    timings = tuple(_timings(ranks))
    node = Hardware(
        name=name,
        gpus=ranks.size,
        tflops_bf16=float(slowest[0]) / 1e12,
        memory_gib=memory_of(ranks.device, ranks.size) / GIB,
        memory_gbps=float(slowest[1]) / 1e9,
        link_gbps=1.0,
        latency_us=0.0,
        source=f"measured on {ranks.size} ranks ({ranks.device.type}, {kind}, torch {torch.__version__})",
    )
    return Calibration(fitted(node, timings, ranks.size), timings, ranks.size)


def _timings(ranks: Ranks) -> list[Timing]:
    """What collectives of several sizes take, as this rank sees it: all call as often, so that they stay in step."""
    found = []
    for size in _BYTES:
        whole = torch.ones(size // 4, device=ranks.device)
        part = whole[: len(whole) // ranks.size]
        repeats = _MANY if size < _LARGE else _FEW
        for kind, call in (
            ("all_reduce", partial(ranks.all_reduce, whole, _everybody(ranks), "forward")),
            ("all_gather", partial(ranks.all_gather, part, _everybody(ranks), "forward")),
        ):
            found.append(Timing(kind, size, seconds_of(call, ranks.device, repeats)))
    return found


def _everybody(ranks: Ranks) -> Factors:
    return (Factor(ranks.size, 1),)


def write_node(node: Hardware, folder: Path) -> Path:
    """Write a node to `hardware/NAME.toml` in a folder of rules, and read it again. Raises UsageError if that fails."""
    path = folder / "hardware" / f"{node.name}.toml"
    numbers = {each.name: getattr(node, each.name) for each in fields(node) if each.name not in ("name", "source")}
    shown = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in numbers.items()}
    lines = [f"{name} = {value}" for name, value in shown.items()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([f"[{node.name}]", *lines, f'source = "{node.source}"', ""]), encoding="utf-8")
    except OSError as error:
        raise UsageError(MSG_NOT_WRITTEN.format(path=path, reason=error.strerror)) from error
    hardware(node.name, (folder,))
    return path
