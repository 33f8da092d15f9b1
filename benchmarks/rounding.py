"""Gradients in a small precision, the dense model's and those of simulated ranks, beside exact ones at the same weights.

    python benchmarks/rounding.py --dtype float32|bfloat16 [FAMILY ...]

Losses of many steps (`benchmarks/steps.py --dtype ...`) tell two runs apart by what rounding grows to on the way, which
is chance. One step tells whether ranks round more than the dense model does.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

import autotp
from autotp.api import join_ranks
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.planner.make import make_plan
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Float64
from benchmarks.regrouped import Regrouped
from benchmarks.steps import FAMILIES, Steps

Gradients: TypeAlias = Mapping[str, torch.Tensor]


class Rounding:
    """A dense model trained for some steps, and its exact gradients for some batches."""

    def __init__(self, name: str, dtype: torch.dtype = torch.bfloat16, steps: int = 30, batches: int = 6) -> None:
        self.steps, self.batches = Steps(name, steps, dtype), batches
        self.model = copy.deepcopy(self.steps.model)
        self.steps.train(self.model)
        with Float64():
            self.true = self._gradients(copy.deepcopy(self.model).double(), _own)

    def dense(self) -> float:
        """The mean relative error of the dense model's gradients."""
        return self._error(self._gradients(copy.deepcopy(self.model), _own))

    def regrouped(self, seed: int, groups: int) -> float:
        """The same where it takes its sums in another order."""
        with Regrouped(seed, groups):
            return self.dense()

    def parallel(self, tp: int) -> float:
        """The same on ranks; their worst."""
        plan = make_plan(self.steps.model, self.steps.found, tp)
        compilers = make_compilers(plan, self.steps.found)

        def on_rank(ranks: Ranks) -> float:
            model = apply_plan(copy.deepcopy(self.model), plan, ranks, compilers)
            join_ranks(model, ranks)
            return self._error(self._gradients(model, autotp.full_gradients))

        return max(simulate(tp, on_rank))

    def _gradients(self, model: Any, read: Callable[[Any], Mapping[str, Any]]) -> list[Gradients]:
        numbers, found = torch.Generator().manual_seed(2), []
        for _ in range(self.batches):
            ids = torch.randint(3, 101, (2, 9), generator=numbers)
            model(input_ids=ids, labels=ids.masked_fill(ids % 4 == 0, -100)).loss.backward()
            found.append({n: g.double().clone() for n, g in read(model).items() if g is not None})
            model.zero_grad()
        return found

    def _error(self, found: list[Gradients]) -> float:
        errors = [
            float((own[name] - true).norm() / true.norm())
            for own, exact in zip(found, self.true, strict=True)
            for name, true in exact.items()
            if float(true.norm()) > 1e-9  # a key's bias has none
        ]
        return sum(errors) / len(errors)


def _own(model: Any) -> dict[str, Any]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=[*FAMILIES], metavar="FAMILY")
    parser.add_argument("--tp", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sizes = "".join(f"{f'tp {tp}':>9}" for tp in given.tp)
    print(f"mean relative error of a gradient in {given.dtype:8}    dense        other orders{sizes}")
    for name in given.families:
        found = Rounding(name, getattr(torch, given.dtype))
        orders = [found.regrouped(seed, 2 + seed % 3) for seed in range(4)]
        ranks = "".join(f"{found.parallel(tp):9.1e}" for tp in given.tp)
        print(f"{name:45} {found.dense():8.1e} {min(orders):.1e} to {max(orders):.1e}{ranks}", flush=True)


if __name__ == "__main__":
    main()
