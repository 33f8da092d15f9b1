"""Boxes say what local indices say, in pieces that ranks share whole or not at all."""

import itertools

import pytest
import torch

from autotp.axes.layout import local_indices
from autotp.axes.layout_text import parse_layout
from autotp.checkpoint.boxes import boxes, elements, runs
from autotp.runtime.collectives.slices import take

LAYOUTS = {
    "12": 4,
    "12/4@1": 4,
    "7>8/2@2": 4,
    "5>8/4@1": 4,
    "(2/2@2 · 3>4/2@1 · 4)": 4,
    "[8/4@1 + 4/2@2 + 2]": 4,
    "(4/4@1 · [2 + 3])": 4,
    "(2 · [4/2@1 + 1] · 3/3@2)": 6,
    "(3 · 1>2/2@1)": 2,
    "[(2/2@2 · 2/2@1 · 3) + (2/2@2 · 3)]": 4,
}


@pytest.mark.parametrize(("text", "size"), LAYOUTS.items())
def test_runs_are_the_local_indices(text: str, size: int) -> None:
    layout = parse_layout(text)
    for rank in range(size):
        expected = {(i, j) for i, j in enumerate(local_indices(layout, rank)) if j >= 0}
        found = [(run.local + i, run.whole + i) for run in runs(layout, rank) for i in range(run.length)]
        assert set(found) == expected
        assert len(found) == len(expected) == elements([layout], rank)


@pytest.mark.parametrize(("text", "size"), LAYOUTS.items())
def test_two_ranks_share_a_run_or_nothing_of_it(text: str, size: int) -> None:
    found = {(run.whole, run.length) for rank in range(size) for run in runs(parse_layout(text), rank)}
    for (start, length), (other, _) in itertools.permutations(found, 2):
        assert not start <= other < start + length
    assert sum(length for _, length in found) == parse_layout(text).size


@pytest.mark.parametrize("columns", [text for text, size in LAYOUTS.items() if size == 4])
def test_boxes_rebuild_the_whole_tensor(columns: str) -> None:
    layouts = [parse_layout("6"), parse_layout(columns)]
    whole = torch.arange(6 * layouts[1].size).reshape(6, -1) + 1
    rebuilt = torch.zeros_like(whole)
    for rank in range(4):
        part = take(whole, layouts, rank)
        for box in boxes(layouts, rank):
            box.in_whole(rebuilt).copy_(box.of(part))
        assert int((part != 0).sum()) == elements(layouts, rank)
    assert torch.equal(rebuilt, whole)
