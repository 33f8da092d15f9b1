"""A function that is not known to work on parts: it is given whole tensors, and computes the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from ...errors import UsageError
from .kinds import counts_writes, label, written_by
from .memories import is_written, state_of
from .origin import IsCut, form_of, mapped, parts_only
from .views import MSG_RECORDED, WholeView

MSG_IN_PLACE = (
    "{what} would write into {name}, a cut parameter that wants a gradient; write inside torch.no_grad(), or into .data"
)


class Lent:
    """Whole tensors that a function is given in place of cut ones. What it has written into them is taken over, whether it says
    so or not. One that is not `counted` may have written where torch does not count, through `.data`: its wholes are compared,
    which all ranks have. Tensors and views of one memory are lent one whole, so that a write into one is there in the others."""

    def __init__(self, what: str, *, counted: bool = True) -> None:
        self.what, self.counted = what, counted
        self._roots: dict[tuple[int, bool], torch.Tensor] = {}
        self._wholes: dict[int, tuple[IsCut | WholeView, torch.Tensor, int | torch.Tensor]] = {}

    def __call__(self, value: Any) -> Any:
        """The whole of a cut tensor, the view itself of a view of one; anything else as it is."""
        if not isinstance(value, (IsCut, WholeView)):
            return value
        if id(value) not in self._wholes:
            whole = self._there(value)
            if whole is None:
                whole = _counted(value, self.what) if isinstance(value, IsCut) else value.taken(self.what)
                self._roots.setdefault(form_of(value), whole if isinstance(value, IsCut) else value.autotp_root)
            self._wholes[id(value)] = value, whole, state_of(whole, self.counted)
        return self._wholes[id(value)][1]

    def _there(self, value: IsCut | WholeView) -> torch.Tensor | None:
        """What a tensor or a view is on a whole of the same memory that was lent already."""
        root = self._roots.get(form_of(value))
        if root is None or isinstance(value, WholeView):
            return None if root is None else value.on(root)  # type: ignore[union-attr]
        with parts_only():
            recorded = torch.is_grad_enabled() and value.requires_grad  # type: ignore[attr-defined]
        return None if recorded else root.detach()

    def root_of(self, view: WholeView) -> torch.Tensor | None:
        """The whole on which a view was lent, if it is not its own."""
        root = self._roots[form_of(view)]
        moved = root is not view.autotp_root and WholeView.shares_memory(self(view), root)
        return root if moved else None

    def sources(self) -> list[tuple[IsCut | WholeView, torch.Tensor, torch.Tensor]]:
        """The cut tensors and the views, what was lent for each, and the whole of which that is a view."""
        return [
            (value, lent, self._root_under(value) if isinstance(value, WholeView) else lent)
            for value, lent, _ in self._wholes.values()
        ]

    def _root_under(self, view: WholeView) -> torch.Tensor:
        moved = self.root_of(view)
        return view.autotp_root if moved is None else moved

    def take_over(self) -> None:
        """Keep this rank's part of what was written. Raises UsageError where autograd would have to know of that."""
        for value, whole, before in self._wholes.values():
            if not is_written(whole, before):
                continue
            if isinstance(value, WholeView):
                value.keep(self.what, self.root_of(value))
            else:
                refuse_recorded_write(value, self.what, whole)
                value.store(whole)


def memory_of(value: IsCut | WholeView) -> int:
    """What tells the memory of a cut tensor, or of that which a view is of, from others."""
    return id((value.autotp_cut if isinstance(value, WholeView) else value).autotp_memory)


def _counted(value: Any, what: str) -> torch.Tensor:
    """The whole of a cut tensor, in which torch counts writes in inference mode too, unless it counts none in the tensor."""
    if not torch.is_inference_mode_enabled() or value.is_inference():
        whole: torch.Tensor = value.whole(what)
        return whole
    with torch.inference_mode(False), torch.no_grad():
        return value.whole(what)


def on_whole(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function of whole tensors in place of cut ones. What it writes into them is taken over.

    What it gives that shares memory with a whole one is a view of that; see `WholeView`.
    """
    written, lent = written_by(func, args, kwargs), Lent(label(func), counted=counts_writes(func))
    for value in written:
        refuse_recorded_write(value, lent.what)
    args, kwargs = mapped(lent, (tuple(args), dict(kwargs)))
    result = func(*args, **kwargs)
    for value in written:
        if isinstance(value, IsCut):
            refuse_recorded_write(value, lent.what, lent(value))
            value.store(lent(value))
        elif isinstance(value, WholeView):
            value.keep(lent.what, lent.root_of(value))
    lent.take_over()
    sources = lent.sources()
    return mapped(lambda leaf: _given_back(leaf, sources), result)


def _given_back(leaf: Any, sources: Sequence[tuple[IsCut | WholeView, torch.Tensor, torch.Tensor]]) -> Any:
    """What a function of whole tensors gives: a cut one itself, a view of a whole one, or something of its own."""
    if isinstance(leaf, numpy.ndarray):
        leaf.flags.writeable = False  # a copy here, where the dense model's shares its memory
    if type(leaf) is not torch.Tensor:
        return leaf
    for value, lent, _ in sources:
        if leaf is lent:
            return value
    for value, _, root in sources:
        if WholeView.shares_memory(leaf, root):
            cut = value.autotp_cut if isinstance(value, WholeView) else value
            return WholeView.of(leaf, cut.same_memory(based=leaf._is_view()), root)
    return leaf


def refuse_recorded_write(value: Any, what: str, whole: torch.Tensor | None = None) -> None:
    """Raises UsageError if autograd would have to know of a write into a cut tensor, whose whole has been written to already."""
    if not isinstance(value, IsCut) or not torch.is_grad_enabled():
        return
    with parts_only():
        wanted = value.requires_grad  # type: ignore[attr-defined]
    if wanted:
        raise UsageError(MSG_IN_PLACE.format(what=what, name=value.autotp_origin.name))
    if whole is not None and whole.requires_grad:
        raise UsageError(MSG_RECORDED.format(what=what, name=value.autotp_origin.name))
