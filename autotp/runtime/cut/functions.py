"""What happens to a function of cut tensors: one by element, one of their sizes, one sum over everything, or any other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...errors import UsageError
from . import attributes
from .backwards import is_in_backward
from .differentiate import DIFFERENTIATING
from .kinds import (
    CASTS,
    ELEMENTWISE,
    FOREACH,
    INITIAL,
    MEMORY,
    OF_PART,
    OF_SIZES,
    OF_TYPE,
    RESHAPING,
    deleter,
    getter,
    label,
    setter,
    written_by,
)
from .lists import foreach, unscale
from .operands import computes_itself, held_for, is_whole_of, joins, note_written, result_of
from .origin import IsCut, mapped, parts_only
from .patched import meant
from .reductions import REDUCTIONS
from .saving import reduced
from .sent import COLLECTIVES, exchange
from .views import refuse_shared
from .whole import on_whole

T = torch.Tensor
MSG_NODE = (
    "the node of {name} in autograd's graph gets this rank's part of the gradient, since the parameter is cut; use"
    " register_hook of the parameter"
)

MSG_RESHAPED = (
    "{what} would change the shape or the memory of {name}, a cut tensor, in place; make a new tensor: the function without the"
    " underscore at its end, or {name}.detach().clone()"
)


def dispatched(func: Any, classes: Collection[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function of arguments of which some are cut, where arguments of these classes say what it does.

    A backward is made of what a program did with parts: torch and we compute in it with parts, everybody else with wholes.
    """
    if func in OF_PART or is_in_backward():
        with parts_only():
            return func(*args, **kwargs)
    func = meant(func)
    handler = on_whole if len(classes) > 1 and any(map(computes_itself, classes)) else _HANDLERS.get(func, on_whole)
    if handler in _COMPUTING and torch._C._functorch.peek_interpreter_stack() is not None:
        handler = on_whole  # a transform of functions gives results that have no memory to look at
    return handler(func, args, kwargs)


# -- element by element ----------------------------------------------------------------------------------------------


def _elementwise(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, T)]
    written = written_by(func, args, kwargs)
    leader: Any = _leader(leaves, written)
    if leader is None:
        return on_whole(func, args, kwargs)

    def held(value: Any) -> Any:
        if not isinstance(value, T):
            return value
        return value if any(value is one for one in written) else held_for(leader, value, func)

    with parts_only():
        if len(leaves) > 1 or (leader.autotp_origin.has_padding and not written):
            args, kwargs = pytree.tree_map(held, (tuple(args), dict(kwargs)))
        result = func(*args, **kwargs)
    for value in written:
        note_written(value)
    return result_of(leader, result, leaves)


def _leader(leaves: Sequence[Any], written: Sequence[Any]) -> Any:
    """The operand that the result is cut like; None where a function is one of whole ones.

    All others have its sizes or are broadcast to them. None that is broadcast wants a gradient: each rank would have a part, of
    which the others never hear.
    """
    leader = next((value for value in (written or leaves) if isinstance(value, IsCut)), None)
    if leader is None or not all(isinstance(value, IsCut) for value in written):
        return None
    if not written and any(is_whole_of(leader, leaf) for leaf in leaves):
        return None
    return leader if all(leaf is leader or joins(leader, leaf) for leaf in leaves) else None


def _cast(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Another dtype or device, which may be said by another tensor."""
    subject = args[0]
    if not isinstance(subject, IsCut):  # only the other one is cut
        rest = mapped(lambda v: v.local() if isinstance(v, IsCut) else v, (tuple(args), dict(kwargs)))
        return func(*rest[0], **rest[1])
    with parts_only():
        result = func(*args, **kwargs)
    return result_of(subject, result, [])


def _where(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return (_elementwise if len(args) + len(kwargs) == 3 else on_whole)(func, args, kwargs)


def _initial(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with torch.no_grad():
        return on_whole(func, args, kwargs)


def _of_itself(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A view of a tensor as itself is how others find its node of autograd, which gives this rank's part of the gradient."""
    if len(args) == 2 and args[0] is args[1]:
        with parts_only():
            if args[0].requires_grad and torch.is_grad_enabled():
                raise UsageError(MSG_NODE.format(name=args[0].autotp_origin.name))
    return on_whole(func, args, kwargs)


def _reshape_in_place(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What leaves a cut tensor as it is may be done to it: an optimizer swaps each dim of a gradient with the first one."""
    if not isinstance(args[0], IsCut):
        return on_whole(func, args, kwargs)
    like = torch.empty(args[0].autotp_origin.shape, device="meta")
    before = like.size(), like.stride(), 0
    func(like, *args[1:], **kwargs)
    if (like.size(), like.stride(), like.storage_offset()) == before:
        return args[0]
    raise UsageError(MSG_RESHAPED.format(what=label(func), name=args[0].autotp_origin.name))


def _refuse_sharing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    refuse_shared(args[0])


_COMPUTING = frozenset([_elementwise, _cast, foreach, _where, *REDUCTIONS.values()])
_HANDLERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(CASTS, _cast),
    **dict.fromkeys(FOREACH, foreach),
    **dict.fromkeys(INITIAL, _initial),
    **dict.fromkeys(OF_SIZES, attributes.of_sizes),
    **dict.fromkeys(OF_TYPE, attributes.of_type),
    **dict.fromkeys(COLLECTIVES, exchange),
    **REDUCTIONS,
    getter("data"): attributes.get_data,
    setter("data"): attributes.set_data,
    getter("grad"): attributes.get_gradient,
    setter("grad"): attributes.set_gradient,
    deleter("grad"): attributes.delete_gradient,
    T.module_load: attributes.module_load,
    T.detach_: attributes.detach_in_place,
    T.register_hook: attributes.register_hook,
    T.register_post_accumulate_grad_hook: attributes.register_after,
    T.__dlpack__: _refuse_sharing,
    T.__reduce_ex__: reduced,
    **dict.fromkeys(RESHAPING | MEMORY, _reshape_in_place),
    T.view_as: _of_itself,
    T.expand_as: _of_itself,
    T.where: _where,
    torch.where: _where,
    **DIFFERENTIATING,
    torch._amp_foreach_non_finite_check_and_unscale_: unscale,
}
