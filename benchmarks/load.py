"""Loading a checkpoint on real ranks: peak memory and bytes read of each, and the time beside transformers' own.

    python benchmarks/load.py              # 1.5 GB in float32, 4 ranks

Every load happens in fresh processes, ours and transformers' in turn; the files are in the page cache for both. Memory is
resident, over the process as it is before loading, its imports and its process group included in that. Times are those of the
slowest rank: of the call, and until every weight has been read once, as transformers leaves weights that lie in one piece on
their file and reads them at the first use. CPU seconds are those of one rank. A ratio is the median of the ratios of the runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

os.environ.setdefault("HF_HUB_OFFLINE", "1")

TP, RUNS, MB = 4, 5, 10**6
OURS, PLANNING, THEIRS = "autotp", "autotp, never loaded before", "transformers"
SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}


@dataclass(frozen=True)
class Measured:
    """One load on one rank, in bytes and seconds."""

    call: float
    ready: float
    processor: float
    bare: int
    peak: int
    held: int
    read: int
    replicated: int

    @property
    def over(self) -> int:
        """Peak memory over the bare process."""
        return self.peak - self.bare


def write_checkpoint(folder: Path) -> None:
    """A Llama of the benchmark's shape with random weights, in files of at most 500 MB."""
    from transformers import AutoConfig

    from autotp.huggingface.models import build_model

    build_model(AutoConfig.for_model("llama", **SHAPE), meta=False).save_pretrained(folder, max_shard_size="500MB")


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def load(folder: Path, way: str, plans: Path) -> Measured:
    """Load on a rank; `plans` is where autotp keeps the plans that it has made."""
    import transformers

    import autotp
    from autotp.checkpoint.full import state_of

    transformers.logging.disable_progress_bar()
    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), AUTOTP_CACHE=str(plans))
    from transformers import AutoModelForCausalLM, LlamaForCausalLM  # the modules that either way needs

    assert LlamaForCausalLM
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    bare, start, processor = resident("VmRSS"), time.perf_counter(), time.process_time()
    if way != THEIRS:
        model = autotp.from_pretrained(folder)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    call, peak = time.perf_counter() - start, resident("VmHWM")
    touch(model)
    times = call, time.perf_counter() - start, time.process_time() - processor
    if way == THEIRS:
        held = sum(
            (p.local() if hasattr(p, "local") else getattr(p, "_local_tensor", p)).nbytes for p in model.parameters()
        )
        return Measured(*times, bare, peak, held, 0, 0)
    loaded = autotp.loading(model)
    cut = state_of(model).layouts
    whole = sum(p.nbytes for name, p in model.named_parameters() if name not in cut)
    return Measured(*times, bare, peak, loaded.bytes_held, loaded.bytes_read, whole)


def touch(model: torch.nn.Module) -> None:
    """Look at every page of every weight."""
    for parameter in model.parameters():
        local = getattr(parameter, "_local_tensor", parameter).detach()
        int(local.reshape(-1).view(torch.uint8)[::4096].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a checkpoint to load instead of a new one")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--tp", type=int, default=TP)
    arguments = parser.parse_args()
    from autotp.runtime.groups.launch import run_ranks

    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if arguments.folder is None:
            run_ranks(write_checkpoint, 1, folder)
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        for file in folder.glob("*.safetensors"):
            file.read_bytes()
        runs: dict[str, list[list[Measured]]] = {PLANNING: [], OURS: [], THEIRS: []}
        for number in range(arguments.runs):
            for way, measured in runs.items():
                plans = Path(temporary) / f"plans-{number}"
                measured.append(run_ranks(load, arguments.tp, folder, way, plans))
    report(size, arguments.tp, runs)


def report(size: int, tp: int, runs: dict[str, list[list[Measured]]]) -> None:
    """Print the tables."""
    print(f"checkpoint {size / MB:,.1f} MB, {tp} ranks; all sizes in MB of 10^6 bytes\n")
    print(
        "rank     holds     reads  replicated    bare    peak   peak - bare   peak - bare - holds   peak - bare, planning"
    )
    for rank in range(tp):
        m, planning = (max((run[rank] for run in runs[way]), key=lambda m: m.over) for way in (OURS, PLANNING))
        print(
            f"{rank:>4}{m.held / MB:>10.1f}{m.read / MB:>10.1f}{m.replicated / MB:>12.3f}{m.bare / MB:>8.0f}{m.peak / MB:>8.0f}"
            f"{m.over / MB:>14.0f}{(m.over - m.held) / MB:>22.0f}{planning.over / MB:>24.0f}"
        )
    theirs = max((m for run in runs[THEIRS] for m in run), key=lambda m: m.over)
    print(f"transformers' worst rank: holds {theirs.held / MB:.1f}, peak - bare {theirs.over / MB:.0f}\n")
    print(f"{'':<26}{'call':>8}{'ratio':>7}{'ready':>8}{'ratio':>7}{'CPU s':>8}{'ratio':>7}   ready, each run")
    for way, found in runs.items():
        cells = ""
        for field in ("call", "ready", "processor"):
            ours, theirs = ([max(getattr(m, field) for m in run) for run in runs[w]] for w in (way, THEIRS))
            ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
            cells += f"{statistics.median(ours):>8.2f}{ratio:>7.2f}"
        print(f"{way:<26}{cells}   {' '.join(f'{max(m.ready for m in run):.2f}' for run in found)}")


if __name__ == "__main__":
    main()
