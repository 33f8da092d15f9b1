"""A model that is cut at its first call: what that is given is the example that the plan is made from."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from ..dispatch.held import ATTRIBUTE
from ..errors import UsageError
from ..planner.arguments import Arguments
from ..runtime.groups.ranks import Ranks
from .misuse import digest
from .pipeline import Session

MSG_GRADIENTS = (
    "{name} was to be cut at its first call, and that one wants gradients; give the arguments of a forward when you make it"
    " parallel: autotp.parallelize(model, example=autotp.Arguments(...))"
)
MSG_OPTIMIZER = (
    "{name} is cut at this call, and a {optimizer} has its whole parameters, which are nobody's afterwards; make the optimizer"
    " after the first call, or give the arguments of a forward to autotp.parallelize(model, example=autotp.Arguments(...))"
)
MSG_COPIED = (
    "{name} is cut at its first call, and there was none yet; copy or save the dense model before autotp.parallelize, or call the"
    " parallel one first"
)


def cut_at_first_call(
    model: nn.Module, ranks: Ranks, begin: Callable[[Arguments], Session], cut: Callable[[Session], None]
) -> None:
    """Let the first call of a model cut it, and then compute as the parallel model: `begin` makes a session of its arguments,
    which `cut` uses.

    The call raises UsageError, and changes nothing, if it wants gradients or if an optimizer has the parameters: what is made of
    them before they are cut has nothing to do with the parallel model. It raises PlacementError if ranks are given other inputs.
    A call that the dense model cannot run is none: it raises what the dense model does.
    """
    waiting = model.__dict__.get("forward")
    own = waiting.own if isinstance(waiting, _FirstCall) else waiting
    model.__dict__["forward"] = _FirstCall(model, ranks, begin, cut, own)


@contextlib.contextmanager
def _plain(device: torch.device) -> Iterator[None]:
    """The modes in which a model is cut that is cut before it is called: parameters made here are no tensors of inference."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in {"cpu", device.type}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class _FirstCall:
    """Stands in the place of a model's forward until it is called."""

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        begin: Callable[[Arguments], Session],
        cut: Callable[[Session], None],
        own: Any,
    ) -> None:
        self._model, self._ranks, self._begin, self._cut, self.own = model, ranks, begin, cut, own
        self.__signature__ = inspect.signature(model.forward)
        self.__doc__ = model.forward.__doc__

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._check()
        self._ranks.check_agreement(digest((args, kwargs)), "inputs")
        self._remove()
        try:
            return self._first(args, kwargs)
        except BaseException:
            if ATTRIBUTE not in self._model.__dict__:
                self._model.__dict__["forward"] = self
            raise

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _plain(self._ranks.device):
            session = self._begin(Arguments(*args, **kwargs))
            traced = bool(session.found.problems)
        if not traced:  # this raises what keeps the model from being called, if it is that
            self._model.forward(*args, **kwargs)
        with _plain(self._ranks.device):
            self._cut(session)
        return self._model.forward(*args, **kwargs)

    def _check(self) -> None:
        """Raises UsageError if somebody has the whole parameters, or this call would give them gradients."""
        name, parameters = type(self._model).__name__, list(self._model.parameters())
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
            raise UsageError(MSG_GRADIENTS.format(name=name))
        own = set(map(id, parameters))
        for optimizer in [found for found in gc.get_objects() if isinstance(found, torch.optim.Optimizer)]:
            if any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
                raise UsageError(MSG_OPTIMIZER.format(name=name, optimizer=type(optimizer).__name__))

    def _remove(self) -> None:
        del self._model.__dict__["forward"]
        if self.own is not None:
            self._model.__dict__["forward"] = self.own

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise UsageError(MSG_COPIED.format(name=type(self._model).__name__))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(MSG_COPIED.format(name=type(self._model).__name__))
