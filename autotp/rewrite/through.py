"""Pass: results have the history that they have in the dense model, so that gradients of them, and hooks on them, are the same.

What a unit gives cut, and computes with itself, it computes with by way of its result: legal because that stands for the whole
of the same part. What one call sends for several results are views of these, each with a history of its own: a hook on one
would be called, with nothing, for the gradient of another.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..placement.placed import placed_as, transition_of
from ..runtime.collectives.single import is_recorded
from ..runtime.results.tensor import CutResult, part_of
from .functions import function_of

_GIVEN_CUT = frozenset({"logits", "defer", "gather"})


def own_part(result: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """This rank's part of a result that is given cut, with the result's history, where it has one; else the part as it is."""
    if torch.compiler.is_dynamo_compiling() or not isinstance(result, CutResult) or not is_recorded(result):
        return value
    result.goes_on = True
    return part_of(result)


def apart(value: torch.Tensor) -> torch.Tensor:
    """A value with a history of its own."""
    return value.view_as(value) if is_recorded(value) else value


def go_through_results(graph: torch.fx.Graph) -> None:
    """Let operators read what is given cut by way of the result. Nothing writes into it: what is written is whole."""
    (output,) = graph.find_nodes(op="output")
    for result in output.all_input_nodes:
        transition = placed_as(result).transition
        if transition is None or not result.meta["val"].is_floating_point():
            continue
        if transition.number is not None:
            with graph.inserting_before(output):
                output.replace_input_with(result, graph.call_function(apart, (result,)))
        elif transition.does in _GIVEN_CUT:
            _go_through(result)


def _go_through(result: torch.fx.Node) -> None:
    value, graph = result.args[0], result.graph
    assert isinstance(value, torch.fx.Node)
    others, transition = [user for user in value.users if user is not result], transition_of(result)
    if not others:
        return
    if transition.does == "gather":  # when it is read, and not here: a whole tensor is none that a part can be of
        if len(result.users) > 1 or transition.summed:
            return
        result.target = function_of(replace(transition, does="defer"))
    value.append(result)
    with graph.inserting_after(result):
        part = graph.call_function(own_part, (result, value))
    for user in others:
        user.replace_input_with(value, part)
