"""In which order the dims of a result lie in memory: that of the tensors which it is made of, the first of which says most.

The order is the one that torch finds (`compute_elementwise_output_logical_to_physical_perm`), where no comparison depends on the
call.
"""

from __future__ import annotations

from collections.abc import Sequence

from .lengths import Lengths, Size, same


def order_of(lengths: Lengths, sizes: Sequence[Size], strides: Sequence[Sequence[Size]]) -> list[int] | None:
    """The dims from the outermost to the innermost, of what is made of tensors with these strides, which are all of one size;
    None where that is not plain."""
    order = list(reversed(range(len(sizes))))
    for last in range(1, len(order)):
        place = last
        for before in reversed(range(last)):
            inner = _compared(lengths, sizes, strides, order[before], order[place])
            if inner is None:
                return None
            if inner > 0:
                order[before], order[place] = order[place], order[before]
                place = before
            elif inner < 0:
                break
    return order[::-1]


def _compared(
    lengths: Lengths, sizes: Sequence[Size], strides: Sequence[Sequence[Size]], one: int, other: int
) -> int | None:
    """Which of two dims is further inside: the first (-1), the other (1), or any (0); None where that is not plain."""
    for each in strides:
        if same(each[one], 0) or same(each[other], 0):
            continue
        order = lengths.compared(each[one], each[other])
        if order is None:
            return None
        if order:
            return order
        larger = lengths.compared(sizes[one], sizes[other])
        if larger is None or larger > 0:
            return larger
    return 0
