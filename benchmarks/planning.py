"""How long planning takes: a 126-layer Llama of the 405B shape, and the same with one layer.

    python benchmarks/planning.py

Every figure comes from a fresh process (the least of several, since the machine does other things too); imports, building
the model without weights, and the parts of its first `autotp.plan` are shown apart.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

LAYERS, SIZES, RUNS = (1, 126), (8, 16), 9
STAGES = ("imports", "model", "capture", "inference", "planning", "loss")


def measure(layers: int) -> dict[str, float]:
    """One run in this process: seconds of each stage, and peak resident GiB."""
    start = time.perf_counter()
    from transformers import AutoConfig

    import autotp.api
    from autotp.capture.capturing import capturing
    from autotp.huggingface.models import build_model

    imports = time.perf_counter()
    config = AutoConfig.for_model(
        "llama",
        hidden_size=16384,
        intermediate_size=53248,
        num_attention_heads=128,
        num_key_value_heads=8,
        vocab_size=128256,
        num_hidden_layers=layers,
    )
    model = build_model(config)
    built = time.perf_counter()
    study = autotp.api.Study(model)
    with capturing():  # as all of `autotp.plan` runs: Python seldom looks for garbage
        inference = study.found.seconds["inference"]
        surveyed = time.perf_counter()
        study.loss  # noqa: B018
        lost = time.perf_counter()
        for tp in SIZES:
            study.plan(tp)
        planned = time.perf_counter()
    return {
        "imports": imports - start,
        "model": built - imports,
        "capture": surveyed - built - inference,  # finding units and everything else included
        "inference": inference,
        "planning": (planned - lost) / len(SIZES),
        "loss": lost - surveyed,
        "GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def fresh(layers: int) -> dict[str, float]:
    """One run in a new process."""
    command = [sys.executable, __file__, "--one", str(layers)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", type=int, help="measure this many layers in this process and print JSON")
    layers = parser.parse_args().one
    if layers is not None:
        print(json.dumps(measure(layers)))
        return
    # Taken in turn, so that both see the same machine.
    runs = {layers: [] for layers in LAYERS}
    for _ in range(RUNS):
        for layers in LAYERS:
            runs[layers].append(fresh(layers))
    print(f"{'layers':>6} " + "".join(f"{stage:>10}" for stage in STAGES) + f"{'all of a plan':>17}{'peak GiB':>10}")
    totals = {}
    for layers, measured in runs.items():
        least = {stage: min(run[stage] for run in measured) for stage in (*STAGES, "GiB")}
        totals[layers] = [sum(run[stage] for stage in STAGES[2:]) for run in measured]
        cells = "".join(f"{least[stage]:>9.2f}s" for stage in STAGES)
        print(f"{layers:>6} {cells}{min(totals[layers]):>16.2f}s{least['GiB']:>10.2f}")
    # Of runs one after the other, which saw the same machine: the least of each may be of other moments.
    times = statistics.median(many / one for one, many in zip(totals[1], totals[126], strict=True))
    print(f"126 layers take {times:.2f} times as long as one, the median of {RUNS} pairs")


if __name__ == "__main__":
    main()
