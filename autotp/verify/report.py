"""What a verification found: the largest difference of every tensor, in which call it was, and the collectives that ran."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..errors import VerificationError

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Difference:
    """The largest difference found in one tensor, relative to its largest entry (see `verify`), and the call that it was in."""

    name: str
    error: float
    call: str = ""


@dataclass(frozen=True)
class CallReport:
    """What verification found in one call; the fields are those of `Report`. The units in `whole` ran with no program of their
    own in it: a plan does not know what such a call sends, and what is planned is what was counted."""

    name: str
    outputs: tuple[Difference, ...]
    gradients: tuple[Difference, ...]
    planned: Mapping[str, int]
    counted: Mapping[str, int]
    tolerance: float = TOLERANCE
    joined: Mapping[str, int] = field(default_factory=dict)
    whole: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Returns if every output and gradient of the call is within the tolerance."""
        return all(difference.error <= self.tolerance for difference in (*self.outputs, *self.gradients))

    @property
    def counts_agree(self) -> bool:
        """Returns if exactly the planned collectives ran, but for those that were one with others."""
        return agree(self.planned, self.counted, self.joined)


@dataclass(frozen=True)
class Report:
    """What verification found.

    `outputs` and `gradients` have the largest error of each tensor in any of the `calls`. `planned` and `counted` are numbers of
    collectives in one training step, by "kind phase of". They are those of the first call in which the two differ, or of the
    first call if they are equal everywhere. A block that is called otherwise than it is planned for (without a mask, say, or in
    training) is to send what is placed for that call. What checkpointing sends again is in neither number. Of the planned ones
    up to `joined` may be one with others, or none: results that the Python outside adds up while they are cut are gathered
    together; those that nobody reads, or that a loss in the model does, are not gathered at all. `elements` are the numbers of
    parameters of the whole model and of one rank.
    """

    model: str
    tp: int
    outputs: tuple[Difference, ...]
    gradients: tuple[Difference, ...]
    planned: Mapping[str, int]
    counted: Mapping[str, int]
    elements: tuple[int, int]
    tolerance: float = TOLERANCE
    calls: tuple[CallReport, ...] = ()
    joined: Mapping[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Returns if every output and gradient is within the tolerance."""
        return all(difference.error <= self.tolerance for difference in (*self.outputs, *self.gradients))

    @property
    def counts_agree(self) -> bool:
        """Returns if exactly the planned collectives ran, but for those that were one with others."""
        return agree(self.planned, self.counted, self.joined)

    @property
    def ok(self) -> bool:
        """Returns if the parallel model equals the dense one, and exactly the planned collectives ran."""
        return self.exact and self.counts_agree

    def differing(self) -> tuple[str, ...]:
        """The names of the calls with a difference from the dense model, or with other collectives than planned."""
        return tuple(call.name for call in self.calls if not (call.exact and call.counts_agree))

    def worst(self) -> tuple[Difference, ...]:
        """The worst output and the worst gradient."""
        groups = [group for group in (self.outputs, self.gradients) if group]
        return tuple(max(group, key=lambda difference: difference.error) for group in groups)

    def raise_for_failure(self) -> None:
        """Raises VerificationError naming the worst tensor, or the collectives that differ from the plan, and the calls."""
        where = f" in {', '.join(self.differing())}" if self.differing() else ""
        if not self.exact:
            worst = max(self.worst(), key=lambda difference: difference.error)
            raise VerificationError(f"{self.model} at tp {self.tp}: {worst.name} differs by {worst.error:.1e}{where}")
        if not self.counts_agree:
            raise VerificationError(
                f"{self.model} at tp {self.tp}: planned {dict(self.planned)}, counted {dict(self.counted)} collectives{where}"
            )

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**dataclasses.asdict(self), "ok": self.ok}, indent=2) + "\n"


def agree(planned: Mapping[str, int], counted: Mapping[str, int], joined: Mapping[str, int]) -> bool:
    """Returns if as many collectives ran as were planned, or up to so many fewer."""
    missing = Counter(planned)
    missing.subtract(counted)
    return all(0 <= fewer <= joined.get(name, 0) for name, fewer in missing.items())


def compare(
    true: Mapping[str, torch.Tensor],
    found: Mapping[str, torch.Tensor | None],
    scale: Mapping[str, torch.Tensor],
    call: str,
) -> tuple[Difference, ...]:
    """What differs in the tensors of one call; relative to the largest of `scale` where the true one vanishes."""
    largest = max(map(_size, scale.values()), default=0.0)
    differences = []
    for name, tensor in true.items():
        own = _size(tensor)
        unit = own if own > TOLERANCE * largest else largest
        differences.append(Difference(name, _largest(tensor, found.get(name)) / (unit or 1.0), call))
    return tuple(differences)


def worst_of(groups: Sequence[Sequence[Difference]]) -> tuple[Difference, ...]:
    """The largest difference of every tensor in any call or on any rank; what is no number is larger than any."""
    found: dict[str, Difference] = {}
    for difference in (difference for group in groups for difference in group):
        known = found.get(difference.name)
        if known is None or not (math.isnan(known.error) or difference.error <= known.error):
            found[difference.name] = difference
    return tuple(found.values())


def _largest(true: torch.Tensor, found: torch.Tensor | None) -> float:
    """The largest absolute difference; infinite where the tensor is missing or is not a number where the true one is."""
    if found is None or true.shape != found.shape:
        return float("inf")
    true, found = _numbers(true), _numbers(found)
    difference = found - true
    if math.isfinite(largest := _norm(difference)):
        return largest
    difference = difference.abs().masked_fill(found == true, 0)  # infinities that are equal differ by none
    return float(difference.nan_to_num(nan=float("inf")).max())


def _size(tensor: torch.Tensor) -> float:
    """The largest absolute entry, infinities aside."""
    tensor = _numbers(tensor)
    if math.isfinite(largest := _norm(tensor)):
        return largest
    sizes = tensor.abs()
    return float(sizes.masked_fill(sizes.isinf(), 0).max())


def _norm(tensor: torch.Tensor) -> float:
    """The largest absolute entry; without one, 0."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        tensor = tensor.double()
    return float(torch.linalg.vector_norm(tensor, float("inf"))) if tensor.numel() else 0.0


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.int() if tensor.dtype == torch.bool else tensor
