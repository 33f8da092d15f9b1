"""Lets torchvision, which timm needs, be imported beside a build of torch that its compiled part is not made for."""

from __future__ import annotations

import importlib.util
from functools import cache

import torch

# What torchvision's compiled part declares and its Python part expects at its import. No model here calls them.
_EXPECTED = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


@cache
def declare_operators() -> torch.library.Library | None:
    """Declare them where there is a torchvision; they last as long as the result, which is kept."""
    if importlib.util.find_spec("torchvision") is None or torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _EXPECTED.values():
        library.define(schema)
    return library
