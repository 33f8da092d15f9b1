"""Where a run only looks at what is called, conditions on data have one answer, and sizes of data have no number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from autotp.capture.owners import packages_within
from autotp.capture.symbols import Symbols


@pytest.mark.parametrize("guess", [True, False])
def test_a_condition_on_data_is_guessed_and_a_size_is_not(guess: bool) -> None:
    size = Symbols(guess=guess).env.create_unbacked_symint()
    assert bool(size > 3) is guess
    with pytest.raises(GuardOnDataDependentSymNode):
        int(size)


def test_what_an_object_counts_in_sizes_is_nobodys_object() -> None:
    assert packages_within(SimpleNamespace(seen=Symbols().size(5))) == frozenset()
