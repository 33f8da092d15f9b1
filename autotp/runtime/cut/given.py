"""Memory that was given as the `.data` or the `.grad` of a cut parameter: what the parameter has is a copy of its part, so that
somebody who goes on with that memory must not go unnoticed."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...errors import UsageError
from .known import Known
from .memories import holders_of
from .origin import parts_only

MSG_WRITTEN = (
    "what was given as .data of {name} was written to afterwards; a cut parameter has memory of its own:"
    " give a copy, p.data = t.clone(), and write to p"
)
MSG_KEPT = (
    "what was given as .grad of {name} is still held by somebody, and backward adds to the gradient; that of a cut"
    " parameter has memory of its own: give a copy, p.grad = g.clone(), and read p.grad"
)
MSG_BOTH = (
    "what was given as .grad of {name} was written to, and so was the gradient; that of a cut parameter has memory"
    " of its own: write to p.grad alone"
)


@dataclass(frozen=True)
class _Given:
    """What was given: a second tensor over the memory, how often that was written to through the one that was given, and, where
    another tensor has the memory, whose writes may be counted apart, what tells its numbers from others."""

    name: str
    second: torch.Tensor
    writes: int
    numbers: tuple[str, ...]

    @staticmethod
    def of(name: str, value: torch.Tensor) -> _Given:
        second = value.detach()
        return _Given(name, second, second._version, _numbers(second) if holders_of(second) > 2 else ())

    def is_held(self) -> bool:
        """Returns if somebody else has the memory."""
        return holders_of(self.second) > 1

    def is_written(self) -> bool:
        """Returns if the memory was written to: as torch counts it, or by what its numbers are."""
        return self.second._version != self.writes or bool(self.numbers and _numbers(self.second) != self.numbers)


def _numbers(value: torch.Tensor) -> tuple[str, ...]:
    """Two sums over a tensor, as text, in which no number equals itself too."""
    if value.is_meta:
        return ()
    dtype = torch.complex128 if value.is_complex() else torch.float64
    return str(value.sum(dtype=dtype).item()), str(value.abs().sum(dtype=torch.float64).item())


@dataclass(frozen=True)
class _Gradient:
    """The same of a gradient: whose it is, and the part that the parameter has, with how often that was written to."""

    given: _Given
    parameter: weakref.ref[Any]
    part: torch.Tensor
    writes: int


# By the parameter's identity.
given: Known[tuple[weakref.ref[Any], _Given]] = Known()
gradients: Known[_Gradient] = Known()


def note_given(parameter: torch.Tensor, name: str, value: torch.Tensor) -> None:
    """A parameter has a copy of its part of a value from now on."""
    given.pop(id(parameter), None)
    if not value.is_inference():
        given.note(id(parameter), (weakref.ref(parameter), _Given.of(name, value)))


def note_gradient(parameter: Any, value: torch.Tensor | None, part: torch.Tensor | None) -> None:
    """A parameter's gradient is a copy of its part of a value from now on; None where it is none, or nobody else's."""
    gradients.pop(id(parameter), None)
    if value is not None and part is not None and not value.is_inference():
        known = _Given.of(parameter.autotp_origin.name, value)
        gradients.note(id(parameter), _Gradient(known, weakref.ref(parameter), part, part._version))


def settle(parameter: Any) -> None:
    """What was written into the memory of a gradient that was given is written into the gradient, before that is read.

    Raises UsageError if the gradient was written to as well: on the dense model both are one.
    """
    known = gradients.get(id(parameter))
    if known is None or known.parameter() is not parameter or not known.given.is_written():
        return
    if known.part._version != known.writes:
        raise UsageError(MSG_BOTH.format(name=known.given.name))
    with parts_only(), torch.no_grad():
        known.part.copy_(parameter.part_of(known.given.second))  # type: ignore[union-attr]
    again = _Given.of(known.given.name, known.given.second)
    gradients[id(parameter)] = replace(known, given=again, writes=known.part._version)


def check_given(model: nn.Module) -> None:
    """Before a call: raises UsageError if memory that was given to the model was written to, or is held where a backward would
    add to it, and does so until the parameter is given another; what nobody else holds any more is forgotten."""
    within = {id(parameter) for parameter in model.parameters()}
    for key, known in list(given.items()):
        parameter, each = known
        if key in within and parameter() is not None and each.is_written():
            raise UsageError(MSG_WRITTEN.format(name=each.name))
        if parameter() is None or not each.is_held():
            given.forget(key, known)
    for key, gradient in list(gradients.items()):
        if not _is_its(gradient) or not gradient.given.is_held():
            gradients.forget(key, gradient)
        elif key in within and torch.is_grad_enabled():
            raise UsageError(MSG_KEPT.format(name=gradient.given.name))


def _is_its(gradient: _Gradient) -> bool:
    """Returns if a parameter still has the gradient that it was given."""
    with parts_only():
        parameter = gradient.parameter()
        now = None if parameter is None else parameter.grad
        return now is not None and now.data_ptr() == gradient.part.data_ptr()
