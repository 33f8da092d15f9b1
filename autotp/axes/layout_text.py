"""Layouts read from text, as they are written in plans; layout.py says how."""

from __future__ import annotations

import functools
import re

from ..errors import PlanError
from ..outside.data import brief
from .layout import Cut, Factor, Layout, Leaf, ProductLayout, SumLayout, parts_of

# Larger, longer or deeper than any layout is that a dimension has.
_LONGEST, _DEEPEST = 20_000, 40
_NUMBER = r"\d{1,16}"
_FACTOR = rf"{_NUMBER}@{_NUMBER}"
_TOKEN = re.compile(rf"\s*(?:({_NUMBER})(?:>({_NUMBER}))?(/{_FACTOR}(?:,{_FACTOR})*)?|([()\[\]·*+]))", re.ASCII)


@functools.lru_cache(maxsize=4096)
def parse_layout(text: str) -> Layout:
    """Read a layout from its text. Raises PlanError with the position of what it cannot read."""
    position = 0

    def fail() -> PlanError:
        return PlanError(
            f"cannot read the layout {brief(text)} at {brief(text[position:])}; write it as '(2/2@4 · 4/4@1 · 64)'"
        )

    def take() -> re.Match[str]:
        nonlocal position
        match = _TOKEN.match(text, position)
        if match is None:
            raise fail()
        position = match.end()
        return match

    def parse(depth: int = 0) -> Layout:
        match = take()
        if match[1]:
            return _leaf(match)
        closing, joiners = {"(": (")", "·*"), "[": ("]", "+")}.get(match[4], ("", ""))
        if not closing or depth > _DEEPEST:
            raise fail()
        parts = [parse(depth + 1)]
        while (joint := take()[4]) != closing:
            if not joint or joint not in joiners:
                raise fail()
            parts.append(parse(depth + 1))
        return (ProductLayout if closing == ")" else SumLayout)(tuple(parts))

    if len(text) > _LONGEST:
        raise fail()
    layout = parse()
    if text[position:].strip():
        raise fail()
    return layout


def _leaf(match: re.Match[str]) -> Leaf:
    size = int(match[1])
    if not match[3]:
        if match[2]:
            raise PlanError(f"the layout {match[0]!r} pads an axis that is not cut")
        return Leaf(size)
    over = tuple(Factor(*map(int, part.split("@"))) for part in match[3].lstrip("/").split(","))
    padded = int(match[2] or size)
    if not all(factor.size and factor.stride for factor in over):
        raise PlanError(
            f"the layout {match[0]!r} has a mesh factor of no ranks; write it as size@stride, both at least 1"
        )
    if padded < size or padded % parts_of(over):
        raise PlanError(f"the layout {match[0]!r} does not divide: {padded} into {parts_of(over)} parts")
    if padded >= size + max(size, parts_of(over)):
        raise PlanError(
            f"the layout {match[0]!r} pads more than there is; pad {size} to a multiple of {parts_of(over)}"
        )
    return Leaf(size, Cut(over, padded))
