"""Clean-up of a traced graph: what does nothing goes, what writes in place becomes a plain value where that is the same."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..axes.annotation import annotate, annotation
from ..axes.call import named_arguments, written_by
from .bags import BAGS, bag_to_lookups
from .sizes import count_to_sizes, stride_to_sizes

_IDENTITIES = frozenset(
    {torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default}
)
_CASTS = frozenset(
    {torch.ops.aten.to.dtype, torch.ops.aten.to.dtype_layout, torch.ops.aten.to.device, torch.ops.aten.to.other}
)


def normalise(graph: torch.fx.Graph, constants: Mapping[str, torch.Tensor]) -> None:
    """Normalise in place. Legal because every value a later node reads is unchanged, and so is how its gradient flows."""
    _note_no_results(graph)
    unseen = _unseen_writes(graph)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch.ops.aten.type_as.default:
            _type_as_to_cast(node)
        if _does_nothing(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is torch.ops.aten.sym_numel.default:
            count_to_sizes(graph, node)
        elif node.target is torch.ops.aten.sym_stride.int:
            stride_to_sizes(graph, node)
        elif node.target is torch.ops.aten.index.Tensor:
            _index_to_slice(graph, node, constants)
        elif node.target is torch.ops.aten.matmul.default:
            _matmul_to_linear(node)
        elif node.target in BAGS:
            bag_to_lookups(graph, node)
        elif node in unseen:
            annotate(node, writes=_memory_written(node))
        elif _writes(node):
            _functionalise(graph, node)
    graph.eliminate_dead_code()
    graph.lint()


def _note_no_results(graph: torch.fx.Graph) -> None:
    """Of what gives nothing, but writes into what it is given, a value is known too: none."""
    for node in filter(_writes, graph.nodes):
        node.meta.setdefault("val", ())


def _does_nothing(node: torch.fx.Node) -> bool:
    if node.target in _IDENTITIES:
        return True
    if node.target is torch.ops.aten.slice.Tensor:
        return _takes_everything(*node.args[1:])
    if node.target is torch.ops.aten.dropout.default:
        return bool(node.args[1] == 0 or node.args[2] is False)
    if node.target in _CASTS and not node.kwargs.get("copy"):
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        before, after = source.meta["val"], node.meta["val"]
        return bool(before.dtype == after.dtype and before.device == after.device)
    return False


def _takes_everything(dim: object = 0, start: object = None, end: object = None, step: object = 1) -> bool:
    """Returns if a slice is `[:]`, as the first one in `x[:, a:b]`."""
    return start in (None, 0) and (end is None or (isinstance(end, int) and end >= _END)) and step == 1


def _writes(node: torch.fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _memory_written(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """All nodes that may be in memory that a node writes into."""
    return tuple(dict.fromkeys(each for own in written_by(node) for each in sharing_memory(own)))


def _unseen_writes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Writes that autograd does not see, as they run without gradients, into values that have one: what is read later has new
    numbers, and the gradient of the old ones."""
    found, wanting, enabled = set[torch.fx.Node](), set[torch.fx.Node](), True
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            enabled = bool(node.args[0])
        elif annotation(node).gradient:
            wanting.add(node)
        elif _writes(node):
            sharing = _memory_written(node)
            if enabled and not wanting.isdisjoint(node.all_input_nodes):
                wanting.update(sharing)
            elif not enabled and not wanting.isdisjoint(sharing):
                found.add(node)
        elif enabled and not wanting.isdisjoint(node.all_input_nodes):
            wanting.add(node)
    return found


_END = 2**62  # an end at or beyond it is none

_TRANSPOSES = frozenset({torch.ops.aten.t.default, torch.ops.aten.numpy_T.default})


def _type_as_to_cast(node: torch.fx.Node) -> None:
    """Replace `x.type_as(y)`, which reads only y's type, by a cast to that type."""
    source, like = node.args
    assert isinstance(source, torch.fx.Node) and isinstance(like, torch.fx.Node)
    if source.meta["val"].device == like.meta["val"].device:
        node.target = torch.ops.aten.to.dtype
        node.args = (source, like.meta["val"].dtype)


def _matmul_to_linear(node: torch.fx.Node) -> None:
    """Replace `x @ w.T` for a matrix w by the linear operator it is."""
    weight = node.args[1]
    assert isinstance(weight, torch.fx.Node)
    if weight.target in _TRANSPOSES and weight.meta["val"].dim() == 2:
        node.target = torch.ops.aten.linear.default
        node.args = (node.args[0], weight.args[0])


def _index_to_slice(graph: torch.fx.Graph, node: torch.fx.Node, constants: Mapping[str, torch.Tensor]) -> None:
    """Replace an index by one known list of consecutive numbers, as in `x[:, [-2]]`, by the slice it is."""
    source, indices = node.args
    assert isinstance(source, torch.fx.Node) and isinstance(indices, (list, tuple))
    used = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(used) != 1 or used[0][1].op != "get_attr" or used[0][1].target not in constants:
        return
    dim, numbers = used[0][0], constants[used[0][1].target]
    size = source.meta["val"].shape[dim]
    if numbers.dim() != 1 or numbers.dtype != torch.long or not isinstance(size, int):
        return
    places = [number % size for number in numbers.tolist()]
    if places != list(range(places[0], places[0] + len(places))):
        return
    node.target = torch.ops.aten.slice.Tensor
    node.args = (source, dim, places[0], places[0] + len(places))


def _functionalise(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Replace `x.op_(..)` by `op(x, ..)` if nobody can see the difference; else note whose memory it writes."""
    target, order = node.target, {n: i for i, n in enumerate(graph.nodes)}
    assert isinstance(target, torch._ops.OpOverload)
    written = node.args[0] if node.args else None
    if written_by(node) != [written] or target.namespace != "aten":
        annotate(node, writes=_memory_written(node))
        return
    assert isinstance(written, torch.fx.Node)
    if target is torch.ops.aten.detach_.default:
        node.target = torch.ops.aten.detach.default
        return
    if _is_slice_write(node):
        written = _write_to_scatter(graph, node, order)
        if written is None:
            return
    sharing = sharing_memory(written)
    later = _read_later(sharing, (written,), node, order)
    name = target._schema.name.split("::")[1]
    plain = getattr(getattr(torch.ops.aten, name.removesuffix("_"), None), target._overloadname, None)
    owned = all(map(_is_made_here, sharing))
    if later or not owned or plain is None or not name.endswith("_") or plain._schema.is_mutable:
        annotate(node, writes=tuple(sharing))
        return
    if plain is torch.ops.aten.copy.default:
        _copy_to_clone(graph, node, order)
    else:
        node.target = plain
    written.replace_all_uses_with(node, delete_user_cb=lambda user: order[user] > order[node])


def _copy_to_clone(graph: torch.fx.Graph, node: torch.fx.Node, order: dict[torch.fx.Node, int]) -> None:
    """Replace `copy(x, y)`, which has no derivative, by a clone of y in the type and shape of x."""
    written, source = node.args[:2]
    assert isinstance(written, torch.fx.Node) and isinstance(source, torch.fx.Node)
    like = written.meta["val"]
    with graph.inserting_before(node):
        if source.meta["val"].dtype != like.dtype:
            value = source.meta["val"].to(like.dtype)
            source = graph.call_function(torch.ops.aten.to.dtype, (source, like.dtype))
            source.meta = {"val": value}
        if source.meta["val"].shape != like.shape:
            source = graph.call_function(torch.ops.aten.expand_as.default, (source, written))
            source.meta = {"val": like}
            order[source] = order[node]
    node.target, node.args, node.kwargs = torch.ops.aten.clone.default, (source,), {}


def _is_slice_write(node: torch.fx.Node) -> bool:
    view = node.args[0]
    assert isinstance(view, torch.fx.Node)
    return node.target is torch.ops.aten.copy_.default and view.target is torch.ops.aten.slice.Tensor


def _write_to_scatter(
    graph: torch.fx.Graph, node: torch.fx.Node, order: dict[torch.fx.Node, int]
) -> torch.fx.Node | None:
    """Replace `base[a:b].copy_(x)` by `base = slice_scatter(base, x, a, b)`; gives the view back where others see it."""
    view, source = node.args[:2]
    assert isinstance(view, torch.fx.Node) and isinstance(source, torch.fx.Node)
    base = view.args[0]
    assert isinstance(base, torch.fx.Node)
    sharing = sharing_memory(base)
    seen = _read_later(sharing, (base, view), node, order)
    whole = tuple(source.meta["val"].shape) == tuple(view.meta["val"].shape)
    if seen or node.users or not whole or not all(map(_is_made_here, sharing)):
        return view
    with graph.inserting_before(node):
        scattered = graph.call_function(torch.ops.aten.slice_scatter.default, (base, source, *view.args[1:]))
    scattered.meta = {"val": base.meta["val"]}
    order[scattered] = order[node]
    base.replace_all_uses_with(scattered, delete_user_cb=lambda user: order[user] > order[node])
    graph.erase_node(node)
    return None


def _is_made_here(node: torch.fx.Node) -> bool:
    """Returns if a value's memory is the graph's own: not an input's, and not in an opaque object."""
    return node.op == "call_function" and annotation(node).opaque is None


def _read_later(
    sharing: list[torch.fx.Node],
    known: tuple[torch.fx.Node, ...],
    write: torch.fx.Node,
    order: dict[torch.fx.Node, int],
) -> list[torch.fx.Node]:
    """Views made before a write, other than the known ones, that are read after it."""
    others = [n for n in sharing if n not in known and order[n] < order[write]]
    return [n for n in others if any(order[user] > order[write] for user in n.users)]


def sharing_memory(node: torch.fx.Node) -> list[torch.fx.Node]:
    """All nodes that may be views of the memory a node is in, itself included, in their order."""
    while (viewed := _viewed(node)) is not None:
        node = viewed
    found, waiting = {node}, [node]
    while waiting:
        views = [user for user in waiting[-1].users if user not in found and _viewed(user) is waiting[-1]]
        waiting.pop()
        found.update(views)
        waiting.extend(views)
    return sorted(found)


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """The operand whose memory the result may be in."""
    target = node.target
    if getattr(target, "__name__", "") == "getitem" and isinstance(node.args[0], torch.fx.Node):
        return None if _makes_results(node.args[0]) else node.args[0]
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if not _makes_results(node):
        named = named_arguments(node)
        for argument in target._schema.arguments:
            if argument.alias_info is not None and isinstance(value := named.get(argument.name), torch.fx.Node):
                return value
    return None


def _makes_results(node: torch.fx.Node) -> bool:
    """Returns if an operator's results are in memory of their own, each of several in another."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and all(
        result.alias_info is None for result in target._schema.returns
    )
