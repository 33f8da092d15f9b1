"""Views of a cut tensor: rows, the transposed, a flat one. They are of a whole that was gathered, and behave as the dense
tensor's do: what is written into one is taken over by the part, and after a write into the part they are gathered again."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...errors import UsageError
from .differentiate import DIFFERENTIATING
from .kinds import MEMORY, OF_OBJECT, OF_PART, OF_SIZES, RESHAPING, counts_writes, label, setter, written_by
from .known import Known
from .memories import is_written, like, state_of
from .origin import IsCut, IsView, form_of, mapped, parts_only
from .saving import reduced

MSG_STALE = (
    "{what} uses a view of {name} that was made with gradients before the parameter was written to; make the view again"
)
MSG_RECORDED = (
    "{what} would write what wants a gradient into {name}, a cut tensor, and the gradient would be lost; make a new tensor of"
    " both in place of a write (q = q * a, torch.where, torch.cat), or write inside torch.no_grad()"
)
MSG_MEMORY = "{what} would give {name}, a cut tensor, or a view of it, another memory; make a new tensor, {name}.detach().clone()"
# Whoever gets the memory of a gathered whole may write there, and nobody would hear of it.
MSG_SHARED = (
    "the memory of {name}, which is cut over ranks, would become another tensor's too; hand on .whole(), a copy, or .local(),"
    " this rank's part"
)
MSG_CLASS = (
    "as_subclass would make a {kind} of the memory of {name}, which is cut over ranks, and writes there would be lost;"
    " make it of .whole(), a tensor of its own"
)

# Views that are parameters of a module: programs take their memory without asking.
trained: Known[weakref.ref[Any]] = Known()


class WholeView(IsView, torch.Tensor):
    """A view of the gathered whole of a cut tensor."""

    autotp_cut: Any
    autotp_root: torch.Tensor
    autotp_node: Any  # of the root in autograd's graph, which a recorded write changes
    autotp_version: tuple[int, int, int]
    autotp_is_whole = True  # what it says of itself is true of a whole

    @staticmethod
    def of(view: torch.Tensor, cut: IsCut, root: torch.Tensor) -> WholeView:
        """What a view of a gathered whole, `root`, is to the one who asked for it."""
        made: WholeView = view.as_subclass(WholeView)
        made.__dict__.update(autotp_cut=cut, autotp_root=root, autotp_node=root.grad_fn, autotp_version=_version(cut))
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_is_param":
            trained.note(id(self), weakref.ref(self))
        super().__setattr__(name, value)

    @staticmethod
    def shares_memory(value: torch.Tensor, root: torch.Tensor) -> bool:
        """Returns if a plain tensor has the memory of a gathered whole."""
        if torch._C._functorch.is_functorch_wrapped_tensor(value) or value.device != root.device:
            return False
        return value.layout is torch.strided and value.untyped_storage()._cdata == root.untyped_storage()._cdata

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _OF_OBJECT and args and isinstance(args[0], WholeView):
            return _OF_OBJECT[func](func, args, kwargs)
        if any(issubclass(kind, IsCut) for kind in types):
            return NotImplemented  # the cut tensor's own function knows of views
        if func in DIFFERENTIATING:
            return DIFFERENTIATING[func](func, args, kwargs)
        views = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, WholeView)]
        if func is torch.Tensor.__dlpack__:
            refuse_shared(views[0])
        written, what = written_by(func, args, kwargs), label(func)
        if func not in OF_SIZES:
            for view in views:
                view.refresh(what)
        on_one = _on_one_root(views) if len(views) > 1 else {}
        lent = [on_one[id(view)][1] if id(view) in on_one else view.plain() for view in views]
        plain = {id(view): own for view, own in zip(views, lent, strict=True)}
        given = mapped(lambda v: plain.get(id(v), v), (tuple(args), dict(kwargs)))
        before = [state_of(view.autotp_root, counts_writes(func)) for view in views]
        result = func(*given[0], **given[1])
        changed = [is_written(view.autotp_root, state) for view, state in zip(views, before, strict=True)]
        for view, is_changed in zip(views, changed, strict=True):
            if is_changed or any(view is one for one in written):
                view.keep(what, on_one[id(view)][0] if id(view) in on_one else None)
        return mapped(lambda leaf: _given_back(leaf, views, lent), result)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """A parameter of its own if this is one; else a view of the copied tensor, as copies of other views are."""
        own = self.taken("a copy").detach()
        copied = own.clone().requires_grad_(self.requires_grad)
        if "_is_param" in self.__dict__:
            copied = nn.Parameter(copied, copied.requires_grad)
        elif not self.requires_grad:
            copied = self._copied(own, memo)
        elif self.grad is not None:
            copied.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = copied
        return copied

    def _copied(self, own: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        """A view as this one of a copy of the cut tensor, on a copy of the whole."""
        cut, key = copy.deepcopy(self.autotp_cut, memo), (WholeView, id(self.autotp_root))
        roots: dict[Any, torch.Tensor] = memo
        root = roots.setdefault(key, self.autotp_root.detach().clone())
        return WholeView.of(like(own, root), cut, root)

    def as_subclass(self, cls: Any) -> Any:
        """Raises UsageError for a class that is not torch's own."""
        return as_class(self, cls) if torch._C._is_torch_function_enabled() else super().as_subclass(cls)

    def plain(self) -> torch.Tensor:
        """The view as a plain tensor with the same memory and history."""
        with parts_only():
            return self.as_subclass(torch.Tensor)

    def taken(self, what: str) -> torch.Tensor:
        """As `plain`, after a look whether the part was written to."""
        self.refresh(what)
        return self.plain()

    def on(self, root: torch.Tensor) -> torch.Tensor | None:
        """What the view is on another whole of the same tensor; None where that would not be the same to autograd."""
        plain = self.plain()
        return None if torch.is_grad_enabled() and plain.requires_grad else like(plain, root.detach())

    def keep(self, what: str, root: torch.Tensor | None = None) -> None:
        """After a write into the view, or into what it is on another root: the cut tensor takes it over. Raises UsageError where
        autograd has recorded the write: the part has a history of its own."""
        if root is not None:
            self.autotp_cut.store(root)
            return  # its own root is out of date
        if self.autotp_root.grad_fn is not self.autotp_node:
            self.autotp_version = (-1, -1, -1)
            raise UsageError(MSG_RECORDED.format(what=what, name=self.autotp_cut.autotp_origin.name))
        self.autotp_cut.store(self.autotp_root)
        self.autotp_version = _version(self.autotp_cut)

    def is_fresh(self) -> bool:
        """Returns if nobody has written to the part since the whole was gathered."""
        return self.autotp_version == _version(self.autotp_cut)

    def refresh(self, what: str) -> None:
        """Gather the whole again if the part was written to. All ranks come here together, as they do everywhere."""
        if self.is_fresh():
            return
        with parts_only():
            if torch.is_grad_enabled() and self.requires_grad and not self.is_leaf:
                raise UsageError(MSG_STALE.format(what=what, name=self.autotp_cut.autotp_origin.name))
            with torch.no_grad():
                self.autotp_root.detach().copy_(self.autotp_cut.whole(what))
        self.autotp_version = _version(self.autotp_cut)


def _on_one_root(views: Sequence[WholeView]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Views of one cut tensor, by identity, that were made of wholes of their own, on the root of the first of them. What a
    function writes into one, whether it says so or not, is there in the others, and the tensor takes over all of it."""
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    roots: dict[tuple[int, bool], torch.Tensor] = {}
    for view in views:
        root = roots.setdefault(form_of(view), view.autotp_root)
        moved = None if root is view.autotp_root else view.on(root)
        if moved is not None:
            found[id(view)] = root, moved
    return found


def refuse_shared(value: Any) -> None:
    """Raises UsageError for a cut tensor or a view of one, where its memory would become another tensor's too."""
    if isinstance(value, (IsCut, WholeView)) and torch._C._is_torch_function_enabled():
        cut = value if isinstance(value, IsCut) else value.autotp_cut
        raise UsageError(MSG_SHARED.format(name=cut.autotp_origin.name))


def as_class(value: Any, kind: type) -> Any:
    """A cut tensor, or a view of one, as a plain tensor, which it is to everybody. Raises UsageError for another class."""
    if kind is torch.Tensor:
        return value
    name = (value.autotp_cut if isinstance(value, WholeView) else value).autotp_origin.name
    raise UsageError(MSG_CLASS.format(kind=kind.__name__, name=name))


def _version(cut: Any) -> tuple[int, int, int]:
    with parts_only():
        memory, counted = cut.autotp_memory, cut.autotp_memory.counted
        own = 0 if cut.is_inference() else cut._version
        return memory.writes, own, 0 if counted is None else counted._version


def _given_back(leaf: Any, views: Sequence[WholeView], lent: Sequence[torch.Tensor]) -> Any:
    """What a function of views gives: one of them, where it gives what was lent for that, another view, or anything else."""
    if isinstance(leaf, numpy.ndarray):
        leaf.flags.writeable = False
    if type(leaf) is not torch.Tensor:
        return leaf
    for view, own in zip(views, lent, strict=True):
        if leaf is own:
            return view
    for view in views:
        if WholeView.shares_memory(leaf, view.autotp_root):
            cut = view.autotp_cut
            return WholeView.of(leaf, cut if leaf._is_view() else cut.same_memory(), view.autotp_root)
    return leaf


# -- what concerns the view itself, and not what is in its memory --------------------------------------------------------


def _on_itself(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What others see of the view, and autograd's part of it: a second tensor over the memory would have that for itself."""
    views = [args[0]]
    with parts_only():
        result = func(*args, **kwargs)
    return _given_back(result, views, views)


def _set_data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Given other memory it is a view no more."""
    view, value = args
    refuse_shared(value)
    with parts_only():
        func(view, value)
    for name in ("autotp_cut", "autotp_root", "autotp_node", "autotp_version"):
        del view.__dict__[name]
    view.__class__ = nn.Parameter if "_is_param" in view.__dict__ else torch.Tensor


def _set_gradient(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    view, value = args
    value = value.whole(".grad") if isinstance(value, IsCut) else value
    with parts_only():
        func(view, value)


def _refuse_memory(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    raise UsageError(MSG_MEMORY.format(what=label(func), name=args[0].autotp_cut.autotp_origin.name))


_OF_OBJECT: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys([*OF_PART, *OF_OBJECT, *RESHAPING], _on_itself),
    **dict.fromkeys(MEMORY, _refuse_memory),
    setter("data"): _set_data,
    setter("grad"): _set_gradient,
    torch.Tensor.__reduce_ex__: reduced,
}
del _OF_OBJECT[torch.Tensor.__format__]  # a number, as text
