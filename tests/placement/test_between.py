"""What a gathered value is for, in graphs longer than Python's stack: recurrent loops that are written out, deep convolutions."""

from __future__ import annotations

import torch

from autotp.axes.annotation import annotate
from autotp.placement.between import _is_written

LENGTH = 3000


def chain(graph: torch.fx.Graph) -> tuple[torch.fx.Node, torch.fx.Node]:
    first = last = graph.placeholder("x")
    for _ in range(LENGTH):
        last = graph.call_function(torch.neg, (last,))
    return first, last


def test_a_long_way_to_a_result_is_no_write() -> None:
    graph = torch.fx.Graph()
    first, last = chain(graph)
    graph.output([last])
    assert not _is_written(first)


def test_a_long_way_to_what_is_written_is_one() -> None:
    graph = torch.fx.Graph()
    first, last = chain(graph)
    write = graph.call_function(torch.ops.aten.copy_.default, (last, last))
    annotate(write, writes=())
    assert _is_written(first)
    graph.call_function(torch.neg, (last,))  # that nobody reads
    assert not _is_written(first)
