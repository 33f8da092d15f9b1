"""What a model does with logits that are cut, when it gets labels: its own Python is run once on tensors without data."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..axes.layout import Cut, Factor, Factors, Leaf
from ..axes.term import axes_of_dims
from ..capture.opaque import tensors_of
from ..capture.record import record
from ..capture.recorded import Recording, is_plain
from ..chains.rules import OUTPUT
from ..errors import TraceError
from ..planner.choose import UnitProblem
from ..planner.survey import Survey
from ..runtime.groups.ranks import Ranks
from ..runtime.results.logits import Head, cut_logits
from .models import EXAMPLE_SIZES, example_inputs, is_transformers_model

CUT = "with labels, the loss reads the cut logits: all-reduces of b·s and of 2·b·s numbers instead of their all-gather"
WHOLE = "with labels, logits are gathered: the model's own code needs them whole for {reader}"


class _Pretended(Ranks):
    """The first of two ranks, the other of which answers what this one says."""

    def _all_reduce(self, value: torch.Tensor, factors: Factors, op: str) -> torch.Tensor:
        return value.clone()

    def _all_gather(self, value: torch.Tensor, factors: Factors) -> list[torch.Tensor]:
        return [value, value]


def reading_of_logits(model: nn.Module, found: Survey) -> str:
    """A sentence on what a loss costs beside the logits; empty for a model without a head or without labels."""
    heads = {shape for shape, problem in found.problems.items() if _gives_logits(problem)}
    if not (heads and is_transformers_model(model) and "labels" in inspect.signature(model.forward).parameters):
        return ""
    inputs, known = example_inputs(model, *EXAMPLE_SIZES[0]), found.recorded
    labelled = _labelled(known, heads, inputs)
    if labelled is None:
        return ""
    labels = torch.zeros(labelled, dtype=torch.long, device="meta")
    if "decoder_input_ids" in inputs:
        inputs["decoder_input_ids"] = labels  # as long as the labels are
    seen: list[Head] = []

    def cut(shape: int, result: Any) -> Any:
        if shape in heads and isinstance(result, torch.Tensor):
            layout = Leaf(result.shape[-1], Cut((Factor(2, 1),), -(-result.shape[-1] // 2) * 2))
            part = nn.functional.pad(result, (0, layout.padded_size - layout.size)).narrow(-1, 0, layout.local_size)
            seen.append(Head(_Pretended(0, 2), layout))
            return cut_logits(part, seen[-1])
        return result

    origins = {new: old for new, old in known.origins.items() if not heads & {new, old}} if known is not None else {}
    # As they were when recorded.
    units = [replace(u, shape=origins[u.shape]) if u.shape in origins else u for u in found.units]

    def run(about: Collection[int]) -> Recording:
        seen.clear()
        return record(model, units, (), {**inputs, "labels": labels}, given=cut, like=known, about=about)

    try:
        failed = run(heads).failed.keys()
        if failed - (known.failed.keys() if known is not None else set()):  # for want of what others leave
            run(())
    except TraceError:
        return ""
    return _sentence(seen)


def _gives_logits(problem: UnitProblem) -> bool:
    """Returns if a chain may end with the last dim of what a unit gives."""
    results = [
        node for node in next(iter(reversed(problem.graph.nodes))).all_input_nodes if node in problem.typing.facts
    ]
    last = {axis for node in results for dims in problem.typing.facts[node].outputs for axis in axes_of_dims(dims[-1:])}
    return any(each.rule.end == OUTPUT and not last.isdisjoint(each.axes) for each in problem.proposals)


def _labelled(known: Recording | None, heads: Set[int], inputs: Mapping[str, Any]) -> Sequence[int] | None:
    """The sizes of what has a label each: what a head, the last to be called, gave the logits for that the model returns, or else
    tokens. None if there are neither."""
    if known is not None:
        returned = {tuple(tensor.shape) for tensor in tensors_of(known.result) if is_plain(tensor)}
        given = [result for (shape, *_), result in known.results.items() if shape in heads and is_plain(result)]
        logits = [each.shape for each in given if isinstance(each, torch.Tensor) and tuple(each.shape) in returned]
        if logits:
            return logits[-1][:-1]
    tokens = (each for each in inputs.values() if isinstance(each, torch.Tensor))
    return EXAMPLE_SIZES[0] if any(tuple(each.shape) == EXAMPLE_SIZES[0] for each in tokens) else None


def _sentence(seen: Sequence[Head]) -> str:
    if any(head.lost and not head.reader for head in seen):
        return CUT
    readers = [head.reader for head in seen if head.reader]
    return WHOLE.format(reader=readers[0]) if readers else ""
