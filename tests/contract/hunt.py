"""Looks for programs that are not the dense ones, for as long as you like: make hunt ARGS="--minutes 60 --seed 1000"

Every failure is printed with its seed and as the smallest program that still fails; --only SEED runs one again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

import torch

from tests.contract.generate import DenseError, Program, is_right, make, run, smallest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the others follow")
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--only", type=int, metavar="SEED")
    parser.add_argument("--as-found", action="store_true", help="print failures without looking for smaller ones")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kinds: Counter[str] = Counter()
    failures: list[int] = []
    end = time.monotonic() + 60 * given.minutes
    seed = given.seed if given.only is None else given.only
    while time.monotonic() < end:
        program = make(random.Random(seed).choice)
        kind, text = _kind(program, given.tp)
        kinds[kind] += 1
        if kind.startswith("NOT"):
            failures.append(seed)
            print(f"seed {seed}: {text}", flush=True)
            small = program if given.as_found else smallest(program, lambda p: _kind(p, given.tp)[0] == kind)  # noqa: B023
            print(small.text(), flush=True)
        if given.only is not None:
            break
        seed += 1
    print(f"{sum(kinds.values())} programs: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}")
    print(f"seeds of failures: {failures or 'none'}")
    return 1 if failures else 0


def _kind(program: Program, tp: int) -> tuple[str, str]:
    """What came of a program, in a word, and how."""
    try:
        outcome = run(program, tp)
    except DenseError as error:
        return "that fail by themselves", str(error)
    if not is_right(program, outcome):
        return f"NOT equal ({outcome.kind})", f"{outcome.kind}: {outcome.text}"
    return (outcome.kind if outcome.cut or outcome.kind == "refused" else "equal, but whole"), ""


if __name__ == "__main__":
    sys.exit(main())
