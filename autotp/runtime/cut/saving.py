"""Cut tensors and views of them in a file: whole tensors, which have one memory in the file where the dense model's have."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn, serialization

from .memories import like
from .origin import IsCut, IsView, form_of, parts_only

_running = threading.local()
_WRITERS = ("_save", "_legacy_save")  # what `torch.save` calls, once for a file


def share_in_files() -> None:
    """From now on, what shares memory shares it in a file too. A pickle of tensors alone shares none, as torch's does not."""
    for name in _WRITERS:
        setattr(serialization, name, _as_one(getattr(serialization, name)))


def _as_one(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def writing(*args: Any, **kwargs: Any) -> Any:
        before, _running.roots = getattr(_running, "roots", None), {}
        try:
            return write(*args, **kwargs)
        finally:
            _running.roots = before

    return writing


def reduced(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a pickle is made of: of a whole tensor, with what others have given it as attributes."""
    value, *rest = args
    with parts_only():
        wanted = value.requires_grad
    made = (_of_view(value) if isinstance(value, IsView) else _whole(value)).requires_grad_(wanted)
    if isinstance(value, nn.Parameter):
        made = nn.Parameter(made.detach(), wanted)
    made.__dict__.update(
        {key: own for key, own in value.__dict__.items() if not key.startswith(("autotp_", "_is_param"))}
    )
    return made.__reduce_ex__(*rest, **kwargs)


def _roots() -> dict[Any, tuple[Any, torch.Tensor]]:
    """The wholes that are in the file, by the memory of which they are, which lives as long."""
    roots: dict[Any, tuple[Any, torch.Tensor]] | None = getattr(_running, "roots", None)
    return {} if roots is None else roots


def _whole(cut: IsCut) -> torch.Tensor:
    roots, key = _roots(), form_of(cut)
    if key not in roots:
        roots[key] = cut.autotp_memory, cut.whole("a copy in a file").detach()
    return roots[key][1].detach()


def _of_view(view: Any) -> torch.Tensor:
    own: torch.Tensor = view.taken("a copy in a file").detach()
    cut = view.autotp_cut
    root = _roots().setdefault(form_of(cut), (cut.autotp_memory, view.autotp_root.detach()))[1]
    return like(own, root)
