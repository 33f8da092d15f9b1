"""Recording: run a model's outer Python once on fake tensors and note how each unit is called.

Nothing is computed and no weight is read. Units of equal shape after the first give back what the first one gave for inputs of
the same sizes, so the cost of a run does not grow with depth. Only where the Python between the units looks at numbers is it
run on real tensors, if the model has weights: then each unit's first call computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import nn

from ..errors import TraceError
from .capturing import capturing
from .functions import FunctionRules
from .recorded import Recording, Way, first_line
from .recorder import Given, Recorder, Taken
from .units import Unit


@capturing()
def record(
    model: nn.Module,
    units: Sequence[Unit],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    functions: FunctionRules | None = None,
    given: Given = lambda shape, result: result,
    taken: Taken = lambda unit, args, kwargs: (args, kwargs),
    until: Collection[int] = (),
    like: Recording | None = None,
    about: Collection[int] = (),
) -> Recording:
    """Run the model on fake copies of the given inputs; where its outer Python needs values, on real ones, or without
    weights taking every condition on values as true, and as false. Functions with a rule only give results of the right
    shapes. `given` may put something else in place of a unit's result, `taken` in place of its arguments. The run ends when
    units of all shapes in `until` have been called, if there are any. What another recording is `like` need not run again: units
    that are called with the same sizes give what they gave there, unless they may have left something in an object that they are
    given; and ways in which that could not run are not tried. Where a run is `about` what is done with the results of units of
    some shapes, what all others leave does not matter, and modules of the model's that have none of those in them are known as a
    whole.

    Raises TraceError if it fails in both ways.
    """
    tries: list[Recorder] = []

    def run(**how: bool) -> Recording:
        tries.append(Recorder(model, units, functions or {}, given, taken, until, like, about, **how))
        return tries[-1].run(args, kwargs)

    if like is not None and like.ways:
        with suppress(Exception):
            return _known(like, (run(**way) for way in like.ways), until)
        until = ()  # then all are tried; a run on fakes that ends early would not tell that values are needed
    try:
        return run()
    except Exception as error:
        reason = f"the model cannot run on fake tensors: {first_line(error)}"
        if isinstance(error, TraceError):  # it does what nobody can follow, whatever the values are
            raise TraceError(reason) from error
        with suppress(Exception):  # what a unit leaves in an object, another one's result does not bring there
            return run(every=True)
        real = not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        way: Way = {"real": True} if real else {"guess": True}
        try:
            found = run(**way)
        except Exception as second:
            raise TraceError(f"{reason}, nor on real ones: {first_line(second)}" if real else reason) from error
        found.ways = (way,)
        if not real:
            with suppress(Exception):  # most conditions can only be one of both: what is asserted is true
                found.add(run(guess=False))
                found.ways += ({"guess": False},)
            found.guessed = f"without weights it is not known what data say: {first_line(error)}"
        found.is_sure = not any(each.recording.failed for each in tries)
        return found


def _known(like: Recording, runs: Iterator[Recording], until: Collection[int]) -> Recording:
    """Runs in the ways of another recording, as one like that; no more of them than it takes to call what is wanted."""
    found = next(runs)
    if not until or set(until) - found.calls.keys():
        for other in runs:
            found.add(other)
    found.ways, found.guessed, found.is_sure = like.ways, like.guessed, like.is_sure
    return found
