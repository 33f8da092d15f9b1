"""Formulas as numbers, at sizes where they would divide by nothing as well."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv

from autotp.planner.sizing import number_at

B, S = sympy.symbols("b s", positive=True, integer=True)
CHUNKS = FloorDiv(8 * FloorDiv(S, 8), FloorDiv(S, 128))  # of 8 tokens, in those of 128


def test_a_formula_is_what_it_is_at_its_sizes() -> None:
    assert number_at(B * S + 1, {"b": 2, "s": 3}) == 7
    assert number_at(sympy.Integer(7), {"b": 1}) == 7


@pytest.mark.parametrize(("sequence", "chunks"), [(1, 128), (7, 128), (128, 128), (300, 148)])
def test_what_would_divide_by_nothing_is_what_it_is_at_the_largest_size(sequence: int, chunks: int) -> None:
    """A single token has no chunks of either size; the batch and the sequence stay what they are."""
    assert number_at(96 * B * S * CHUNKS, {"b": 8, "s": sequence, "k": 4096}) == 96 * 8 * sequence * chunks
    assert number_at(B + CHUNKS, {"b": 8, "s": sequence, "k": 4096}) == 8 + chunks
