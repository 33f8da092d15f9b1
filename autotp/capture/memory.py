"""Memory of a call's inputs that a unit writes into: it stays whole, whatever is cut.

The caller reads such a tensor (a state that is handed from block to block) after the call, and so do other ranks. So what
is written there is collected from all ranks, and what is read there is whole: markers part both from the values inside.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..axes.annotation import annotate, annotation
from ..axes.call import is_tensor, named_arguments
from ..axes.operators.collect import collect
from ..errors import TraceError
from .contract.frames import MSG_HIDDEN
from .normalise import sharing_memory

aten = torch.ops.aten
# Operators that write running statistics though their schemas do not say so, and the argument that says whether they do.
_STATISTICS = {
    aten.batch_norm.default: "training",
    aten.instance_norm.default: "use_input_stats",
    aten.native_batch_norm.default: "training",
}


def settle_writes(graph: torch.fx.Graph, repeated: bool = False) -> None:
    """All that follows from what a traced unit writes in place. `repeated` says that a backward runs some of it again.

    Raises TraceError if that writes again into what outlives the call, as a graph does not.
    """
    if repeated and (node := next(outliving(graph), None)) is not None:
        raise TraceError(f"it writes into {node.target} and has a checkpoint, whose backward does that again")
    _check_data(graph)
    note_running_statistics(graph)
    read_before_writes(graph)
    part_from_inputs(graph)


def _check_data(graph: torch.fx.Graph) -> None:
    """Raises TraceError where the data of a parameter is written after somebody has read the parameter: what is kept for the
    backward then changes behind autograd's back, and a graph keeps what was read."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for writer, shared in _writers(graph):
        if any(annotation(each).data for each in shared):
            readers = [user for each in shared for user in each.users if user not in shared and _reads(user)]
            if any(order[user] < order[writer] for user in readers):
                raise TraceError(MSG_HIDDEN)


def outliving(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """State and inputs that are written."""
    for node in graph.nodes:
        shared = list(annotation(node).writes or ())
        if node.target in _STATISTICS and named_arguments(node)[_STATISTICS[node.target]]:
            shared = [each for state in _running(node) for each in sharing_memory(state)]
        yield from (each for each in shared if each.op in ("get_attr", "placeholder"))


def _running(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The running statistics that a norm has."""
    named = named_arguments(node)
    return [named[name] for name in ("running_mean", "running_var") if is_tensor(named[name])]


def note_running_statistics(graph: torch.fx.Graph) -> None:
    """Say of a norm that it writes its running statistics, where anybody else reads or writes them in the unit, or they are
    given to it. Where nobody does, it may write them when and how it likes."""
    for node in graph.nodes:
        if node.target not in _STATISTICS:
            continue
        running = _running(node)
        shared = [each for state in running for each in sharing_memory(state)]
        readers = {user for each in shared for user in each.users} - {node, *shared}
        is_given = any(each.op == "placeholder" for each in shared)
        if (
            named_arguments(node)[_STATISTICS[node.target]]
            and shared
            and (readers or is_given or len(shared) > len(running))
        ):
            annotate(node, writes=tuple(shared))


def read_before_writes(graph: torch.fx.Graph) -> None:
    """Let what is read before a write in place be a copy made there: a sum that waits may read it later than the model does.

    Legal because the copy has the value that the model's code reads.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    for writer, shared in _writers(graph):
        for node in shared:
            early = [user for user in node.users if user not in shared and _reads(user) and order[user] < order[writer]]
            for user in early:
                _copy(graph, node, user, order)


def _copy(graph: torch.fx.Graph, value: torch.fx.Node, user: torch.fx.Node, order: dict[torch.fx.Node, int]) -> None:
    if not isinstance(value.meta.get("val"), torch.Tensor) or user.target is torch.ops.aten.clone.default:
        return
    with graph.inserting_before(user):
        copied = graph.call_function(torch.ops.aten.clone.default, (value,))
    copied.meta["val"] = value.meta["val"]
    annotate(copied, module=annotation(value).module)
    order[copied] = order[user]
    user.replace_input_with(value, copied)


def part_from_inputs(graph: torch.fx.Graph) -> None:
    """Put a marker between the memory of inputs that are written and everything else that is read or written."""
    for writer, shared in _writers(graph):
        if not any(node.op == "placeholder" for node in shared):
            continue
        for source in [source for source in writer.all_input_nodes if source not in shared]:
            _mark(graph, source, writer)
        for node in shared:
            for user in [user for user in node.users if user not in shared and _reads(user)]:
                _mark(graph, node, user)


def _writers(graph: torch.fx.Graph) -> list[tuple[torch.fx.Node, list[torch.fx.Node]]]:
    """The nodes that write in place, each with the values that share the memory."""
    found = [(node, annotation(node).writes) for node in graph.nodes]
    return [(node, [each for each in writes if not each._erased]) for node, writes in found if writes is not None]


def _reads(user: torch.fx.Node) -> bool:
    return user.op == "call_function" and user.target is not collect and annotation(user).writes is None


def _mark(graph: torch.fx.Graph, value: torch.fx.Node, user: torch.fx.Node) -> None:
    held = value.meta.get("val")
    if not isinstance(held, torch.Tensor) or held.dim() == 0 or value.target is collect:
        return
    with graph.inserting_before(user):
        marker = graph.call_function(collect, (value,))
    marker.meta = {"val": held}
    user.replace_input_with(value, marker)
