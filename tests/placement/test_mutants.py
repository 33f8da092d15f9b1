"""The certificate refuses every program in which one node between values is wrong, if that changes a number on any rank.

Whatever it accepts is run on simulated ranks in float64, and gives the numbers of the program that was not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from autotp.dispatch.apply import apply_plan
from autotp.errors import PlacementError
from autotp.placement.certificate import check
from autotp.placement.certificate.check import certify
from autotp.placement.certificate.values import Contract
from autotp.planner.make import make_plan
from autotp.planner.settings import apply_settings
from autotp.rewrite import build
from autotp.rewrite.build import Program, compile_graph
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Verifier
from tests.families import FAMILIES, GPT, LLAMA_LIKE, MIXERS, MIXTURES, WRITERS, Family
from tests.placement.mutants import mutants

TP = 4


@dataclass(frozen=True)
class Kind:
    """A kind of model, and how it is asked to be cut."""

    family: Family
    settings: Mapping[str, str] = field(default_factory=dict)
    sequence: bool = False


KINDS: dict[str, Kind] = {
    "grouped": Kind(FAMILIES["llama"]),  # fewer heads of keys than ranks
    "fused": Kind(FAMILIES["phi3"]),
    "low_rank": Kind(FAMILIES["deepseek_v2"]),
    "experts_inside": Kind(MIXTURES["mixtral"], {"*.experts": "experts"}),
    "experts_apart": Kind(MIXTURES["mixtral"], {"*.experts": "whole_experts"}),
    "parallel_residual": Kind(FAMILIES["falcon_grouped"]),
    "tied": Kind(FAMILIES["gpt2"]),
    "two_stacks": Kind(WRITERS["bart"]),
    "state_space": Kind(MIXERS["mamba2_one_group"]),
    "sequence": Kind(Family("llama", LLAMA_LIKE), sequence=True),
    "normalised_heads": Kind(FAMILIES["qwen3"]),
    "padded": Kind(Family("gpt2", {**GPT, "n_embd": 48, "n_head": 6})),
}


class Subject:
    """One kind of model with its programs, and what they give."""

    def __init__(self, kind: Kind) -> None:
        self.verifier = Verifier(kind.family.config(), sequence_parallel=kind.sequence)
        session = self.verifier.session
        found = apply_settings(self.verifier.dense, session.found, kind.settings)
        made = make_plan(self.verifier.dense, found, TP, sequence_parallel=kind.sequence)
        self.plan = session.bounded(made)
        self.compilers = session.compilers(self.plan)
        self.contracts: dict[torch.fx.Graph, Contract] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "certify", self._certify)
            self.expected = self.run()

    def _certify(self, graph: torch.fx.Graph, contract: Contract) -> check.Certificate:
        self.contracts[graph] = contract
        return certify(graph, contract)

    def run(self) -> list[Any]:
        """Outputs and gradients of every rank, for every call."""

        def on_rank(ranks: Ranks) -> list[Any]:
            parallel = apply_plan(copy.deepcopy(self.verifier.dense), self.plan, ranks, self.compilers)
            found = [self.verifier.parallel_run(parallel, run.call, ranks) for run in self.verifier.runs]
            return [(each.outputs, each.gradients) for each in found]

        return simulate(TP, on_rank)

    def programs(self) -> Iterator[tuple[str, Program, Callable[[Program], None]]]:
        """Every program, and what puts another one in its place."""
        for unit, compiler in self.compilers.items():
            for known in compiler.programs.values():
                for place, (traced, program) in enumerate(known):

                    def put(other: Program, known: Any = known, place: int = place, traced: Any = traced) -> None:
                        known[place] = traced, other

                    yield unit.instances[0], program, put

    def equals(self, program: Program, graph: torch.fx.Graph, put: Callable[[Program], None]) -> bool:
        """Whether another graph in a program's place gives the same numbers."""
        code, run = compile_graph(build.directly(graph), "mutant")
        put(replace(program, graph=graph, code=code, run=run))
        try:
            return equal(self.run(), self.expected)
        except Exception:
            return False
        finally:
            put(program)


def equal(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-9, atol=1e-11)
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(equal(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(equal, found, wanted))
    return bool(found == wanted)


def refusal(graph: torch.fx.Graph, contract: Contract) -> str:
    """Why a program is refused, empty if it is not."""
    try:
        certify(graph, contract)
    except PlacementError as error:
        return str(error)
    return ""


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", KINDS)
def test_whatever_changes_a_number_is_refused(name: str) -> None:
    """Each refusal names the node and the value, and nothing that is refused is run."""
    subject, refused, harmless = Subject(KINDS[name]), 0, 0
    for unit, program, put in subject.programs():
        contract = subject.contracts[program.graph]
        assert not refusal(program.graph, contract)
        for what, graph in mutants(program.graph):
            if why := refusal(graph, contract):
                node = why.removeprefix("the ").partition(" ")[0]
                assert node in {node.name for node in graph.nodes}, why
                refused += 1
            else:
                assert subject.equals(program, graph, put), f"{unit}: {what} changes a number and is accepted"
                harmless += 1
    assert refused > 50 > 10 > harmless
