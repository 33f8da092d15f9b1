"""Prints what comes of every case: python -m tests.contract [--tp 3] [--real] [--compiled] [PARTS OF NAMES, OR NAMES OF FILES]"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch

from autotp.runtime.groups.launch import run_ranks
from tests.contract.play import Outcome, cases, on_processes, simulated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--real", action="store_true", help="on ranks that are processes")
    parser.add_argument("--compiled", action="store_true", help="on such ranks, the model compiled")
    parser.add_argument("parts", nargs="*")
    given = parser.parse_args()
    given.real |= given.compiled
    torch.set_num_threads(1)
    named = [
        name
        for name, (path, expected) in cases().items()
        if (given.real or not expected.processes) and _is_meant(name, str(path), given.parts)
    ]
    outcomes = (
        run_ranks(on_processes, given.tp, named, given.compiled, limit_s=3600)[0]
        if given.real
        else _simulated(named, given.tp)
    )
    bad = 0
    for outcome in outcomes:
        holds = outcome.holds(cases()[outcome.name][1], given.compiled)
        bad += not holds
        cut = {True: "cut", False: "whole"}[outcome.cut] if outcome.kind == "equal" else ""
        print(f"{'' if holds else 'NOT':4}{outcome.name:52} {outcome.kind:8} {cut:6} {outcome.text[:240]}", flush=True)
    print(f"{len(named)} cases, {bad} not as expected, in {time.process_time():.0f} s of CPU")


def _is_meant(name: str, path: str, parts: list[str]) -> bool:
    return not parts or any(part in name or path.endswith(f"/{part}.py") for part in parts)


def _simulated(names: list[str], tp: int) -> Iterator[Outcome]:
    for name in names:
        yield simulated(name, tp)


if __name__ == "__main__":
    main()
