"""Views of a cut tensor: rows, the transposed, a flat one. They are of a whole that was gathered, and behave as the dense
tensor's do: what is written into one is taken over by the part, and after a write into the part they are gathered again."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

from ...errors import UsageError
from .kinds import OF_PART, OF_SIZES, label, written_by
from .origin import IsCut, parts_only

MSG_STALE = (
    "{what} uses a view of {name} that was made with gradients before the parameter was written to; make the view again"
)
# Whoever gets the memory of a gathered whole may write there, and nobody would hear of it.
MSG_SHARED = "the memory of {name}, a cut parameter, is a part's; hand on .whole(), a copy, or .local(), this part"


class WholeView(torch.Tensor):
    """A view of the gathered whole of a cut tensor."""

    cut: Any
    root: torch.Tensor
    version: tuple[int, int]

    @staticmethod
    def of(view: torch.Tensor, cut: IsCut, root: torch.Tensor) -> WholeView:
        """What a view of a gathered whole, `root`, is to the one who asked for it."""
        made: WholeView = view.as_subclass(WholeView)
        made.__dict__.update(cut=cut, root=root, version=_version(cut))
        return made

    @staticmethod
    def shares_memory(value: torch.Tensor, root: torch.Tensor) -> bool:
        """Returns if a plain tensor has the memory of a gathered whole."""
        if torch._C._functorch.is_functorch_wrapped_tensor(value) or value.device != root.device:
            return False
        return value.layout is torch.strided and value.untyped_storage()._cdata == root.untyped_storage()._cdata

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, IsCut) for kind in types):
            return NotImplemented  # the cut tensor's own function knows of views
        views = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, WholeView)]
        if func is torch.Tensor.__dlpack__:
            raise UsageError(MSG_SHARED.format(name=views[0].cut.origin.name))
        written = written_by(func, args, kwargs)
        if func not in OF_PART and func not in OF_SIZES:
            for view in views:
                view.refresh(label(func))
        given, before = pytree.tree_map_only(WholeView, WholeView.plain, (tuple(args), dict(kwargs))), writes_of(views)
        result = func(*given[0], **given[1])
        for view, first, then in zip(views, before, writes_of(views), strict=True):
            if then != first or any(view is one for one in written):
                view.keep()
        return pytree.tree_map(lambda leaf: _given_back(leaf, views, written), result)

    def plain(self) -> torch.Tensor:
        """The view as a plain tensor with the same memory and history."""
        with parts_only():
            return self.as_subclass(torch.Tensor)

    def taken(self, what: str) -> torch.Tensor:
        """As `plain`, after a look whether the part was written to."""
        self.refresh(what)
        return self.plain()

    def keep(self) -> None:
        """After a write into the view: the cut tensor takes it over."""
        self.cut.store(self.root)
        self.version = _version(self.cut)

    def refresh(self, what: str) -> None:
        """Gather the whole again if the part was written to. All ranks come here together, as they do everywhere."""
        if self.version == _version(self.cut):
            return
        with parts_only():
            if self.requires_grad and torch.is_grad_enabled():
                raise UsageError(MSG_STALE.format(what=what, name=self.cut.origin.name))
            with torch.no_grad():
                self.root.detach().copy_(self.cut.whole(what))
        self.version = _version(self.cut)


def writes_of(views: list[WholeView]) -> list[int]:
    """How often torch has counted writes into the wholes behind some views."""
    return [0 if view.root.is_inference() else view.root._version for view in views]


def _version(cut: Any) -> tuple[int, int]:
    with parts_only():
        return cut.memory.writes, 0 if cut.is_inference() else cut._version


def _given_back(leaf: Any, views: list[WholeView], written: list[Any]) -> Any:
    if isinstance(leaf, numpy.ndarray):
        leaf.flags.writeable = False
    if type(leaf) is not torch.Tensor:
        return leaf
    for view in views:
        if WholeView.shares_memory(leaf, view.root):
            same = any(view is one for one in written)
            return view if same else WholeView.of(leaf, view.cut, view.root)
    return leaf
