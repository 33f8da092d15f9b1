"""What a collective costs: bytes on the wire and latency of a ring, or of a tree where that is faster.

Over n ranks, an all-reduce of B bytes in a ring takes 2(n-1) steps and sends 2(n-1)/n B (Patarasuk and Yuan, 2009), an
all-gather or reduce-scatter of a whole of B bytes half of both. An all-reduce over two trees at once takes 2 log2(n)
steps and sends 2B (Sanders, Speck and Träff, 2009). docs/cost.md has the whole model and the sources of its numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError, nearest
from ..outside.rule_files import RULES, read_rules, rule_tables

RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}


@dataclass(frozen=True)
class Hardware:
    """One node: rates in units of the rule file's field names. `latency_us` is that of a call, `hop_us` of each of its steps;
    `source` says where the numbers are from."""

    name: str
    gpus: int
    tflops_bf16: float
    memory_gib: float
    memory_gbps: float
    link_gbps: float
    latency_us: float
    hop_us: float = 0.0
    source: str = ""

    def seconds(self, kind: str, size: float, ranks: int, *, together: bool = False) -> float:
        """Time of one collective of `size` bytes over so many ranks, by the faster algorithm; with `together` they are several
        values, which are read and written once more to lie side by side."""
        if ranks == 1:
            return 0.0
        copied = 2 * size / (self.memory_gbps * 1e9) if together else 0.0
        return self._time(*self.way(kind, size, ranks)) + copied

    def computing(self, flops: float, waits: float, read: float) -> float:
        """Time of so many operations at the peak rate or of reading so many bytes, whichever takes longer, and of the operations
        of the busiest rank beyond these."""
        peak = self.tflops_bf16 * 1e12
        return max(flops / peak, read / (self.memory_gbps * 1e9)) + waits / peak

    def way(self, kind: str, size: float, ranks: int) -> tuple[float, float]:
        """The steps that the faster algorithm takes, and the bytes that a rank sends in it."""
        ring = RING[kind] * (ranks - 1), wire_bytes(kind, size, ranks)
        trees = 2.0 * math.ceil(math.log2(ranks)), 2.0 * size
        return min(ring, trees, key=lambda way: self._time(*way)) if kind == "all_reduce" else ring

    def _time(self, steps: float, sent: float) -> float:
        return (self.latency_us + steps * self.hop_us) * 1e-6 + sent / (self.link_gbps * 1e9)


def wire_bytes(kind: str, size: float, ranks: int) -> float:
    """Bytes every rank sends for one collective on a whole value of `size` bytes, in a ring."""
    return RING[kind] * (ranks - 1) / ranks * size


DEFAULT_HARDWARE = "h100-nvlink-8"
_RATE = {"type": "number", "exclusiveMinimum": 0, "maximum": 1e12, "description": "a number above 0"}
_TIME = {"type": "number", "minimum": 0, "maximum": 1e12, "description": "a number of at least 0"}
_NODE = {
    "type": "object",
    "properties": {
        "gpus": {"type": "integer", "minimum": 1, "maximum": 2**20, "description": "a whole number of at least 1"},
        **dict.fromkeys(("tflops_bf16", "memory_gib", "memory_gbps", "link_gbps"), _RATE),
        **dict.fromkeys(("latency_us", "hop_us"), _TIME),
        "source": {"type": "string", "description": "text"},
    },
    "required": ["gpus", "tflops_bf16", "memory_gib", "memory_gbps", "link_gbps", "latency_us"],
    "additionalProperties": False,
    "description": "a table such as [my-node]",
}
SCHEMA = {"type": "object", "additionalProperties": _NODE, "description": "tables of nodes"}


@functools.cache
def hardware_presets(folders: tuple[Path, ...] = ()) -> Mapping[str, Hardware]:
    """All nodes of `rules/hardware/*.toml`. Raises RuleError naming file, entry and what is expected."""
    presets: dict[str, Hardware] = {}
    for path in _files((RULES, *folders)):
        presets.update({name: Hardware(name, **entry) for name, entry in read_rules(path, SCHEMA).items()})
    return presets


def hardware_names() -> list[str]:
    """The names of the nodes that come with autotp, their entries unread."""
    return [name for path in _files((RULES,)) for name in rule_tables(path)]


def _files(folders: tuple[Path, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((folder / "hardware").glob("*.toml"))


def hardware(name: str, folders: tuple[Path, ...] = ()) -> Hardware:
    """A node by name. Raises UsageError naming the nearest known one."""
    presets = hardware_presets(folders)
    if name not in presets:
        raise UsageError(f"unknown hardware {name!r}{nearest(name, presets)}")
    return presets[name]


@dataclass(frozen=True)
class Workload:
    """What collectives are weighed at: tokens a step, bytes of an activation's and a weight's element, in how many sequences the
    tokens are, and how many positions they attend to, if these are not the sequence's own."""

    tokens: int = 4096
    element_bytes: int = 2
    batch: int = 1
    keys: int | None = None
