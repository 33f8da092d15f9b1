"""Which module each traced node was made in: its annotation says the innermost one's path. And which are a parameter's data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import traceback

from ..axes.annotation import annotate

_KEY, _DATA = "module", "data"
_TRACING = threading.RLock()  # torch keeps what nodes are marked with in one place for all threads


@contextmanager
def noting_modules(module: nn.Module) -> Iterator[None]:
    """Inside the context, nodes that are traced while a submodule runs are marked with its path, and all others with none,
    whatever somebody else has left there to mark nodes with."""
    running = [""]

    def mark() -> None:
        # Not by torch's `annotate`: it changes a dict that may be another's, and one that nobody left does so when collected.
        traceback.get_current_meta()["custom"] = {_KEY: running[-1]}

    with _TRACING, traceback.preserve_node_meta():
        hooks = [hook for path, part in module.named_modules() if path for hook in _hooks(part, path, running, mark)]
        mark()
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@contextmanager
def noting_data() -> Iterator[None]:
    """Inside the context, a `detach` that is traced is marked as a parameter's `.data`."""
    meta = traceback.get_current_meta()
    before = meta.get("custom", {})
    meta["custom"] = before | {_DATA: True}
    try:
        yield
    finally:
        meta["custom"] = before


def _hooks(module: nn.Module, path: str, running: list[str], mark: Callable[[], None]) -> Iterator[Any]:
    def enter(*_: Any) -> None:
        running.append(path)
        mark()

    def leave(*_: Any) -> None:
        running.pop()
        mark()

    yield module.register_forward_pre_hook(enter)
    yield module.register_forward_hook(leave, always_call=True)  # also where a forward fails


def keep_modules(graph: torch.fx.Graph) -> None:
    """Move the marks to the annotations, and drop what else tracing with them leaves on a node."""
    for node in graph.nodes:
        marks = node.meta.pop("custom", {})
        path = marks.get(_KEY)
        for other in ("original_aten", "seq_nr"):
            node.meta.pop(other, None)
        if path and node.op == "call_function":
            annotate(node, module=path)
        if marks.get(_DATA):
            annotate(node, data=True)
