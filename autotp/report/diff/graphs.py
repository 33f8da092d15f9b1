"""The nodes of a traced or rewritten graph that a reader wants to see: those that hold tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from ...axes.annotation import annotation
from ...axes.call import named_arguments, operator_name
from ...axes.operators.collect import collect
from ...placement.placed import placed_as
from .words import Words


def is_visible(node: torch.fx.Node) -> bool:
    """Returns if a node holds tensors, or is the graph's output; markers and arithmetic on sizes are not shown."""
    return node.op == "output" or (bool(values_of(node)) and node.target is not collect)


def values_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """The traced tensors of a node: one, or several for a list."""
    value = node.meta.get("val")
    found = value if isinstance(value, (list, tuple)) else [value]
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def inputs_of(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The visible nodes that a node reads, through markers."""
    for source in node.all_input_nodes:
        if source.target is collect:
            yield from inputs_of(source)
        elif is_visible(source):
            yield source


def operator_of(node: torch.fx.Node) -> str:
    """A short name of what a node does: `linear`, `input`, `parameter`, `constant`, a method of an object."""
    if node.op == "placeholder":
        return "constant" if str(node.target).startswith("constant") else "input"
    if node.op == "get_attr":
        return "parameter" if annotation(node).parameter else "constant"
    if node.op == "output":
        return "output"
    if annotation(node).opaque is not None:
        return str(annotation(node).opaque).rpartition(".")[2]
    return operator_name(node.target).rpartition(".")[2].replace("keep_zero", "keep padding zero")


@dataclass(frozen=True)
class Arguments:
    """Texts of what a node is given beside tensors."""

    words: Words

    def of(self, node: torch.fx.Node) -> str:
        """Arguments that are not tensors and not the defaults: `dim=1, size=[b, s, 8]`."""
        if node.op != "call_function" or placed_as(node).collective is not None:
            return ""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return ""
        defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        shown = []
        for name, value in named_arguments(node).items():
            if self._holds_tensors(value) or (name in defaults and _equal(defaults[name], value)):
                continue
            shown.append(f"{name}={self.words.argument(value)}")
        return ", ".join(shown)

    def _holds_tensors(self, value: object) -> bool:
        return any(isinstance(leaf, torch.fx.Node) and values_of(leaf) for leaf in pytree.tree_leaves(value))


def _equal(default: object, value: object) -> bool:
    return type(default) is type(value) and bool(default == value)
