"""Views of cut tensors that are parameters of a module: before a call they are of what is there now, on all ranks alike."""

from __future__ import annotations

import threading

from torch import nn

from ...errors import RankLostError
from ...outside.garbage import collect
from ..groups.ranks import Ranks
from .views import WholeView, trained

MSG_ONE_RANK = (
    "{error}; this rank has a parameter that is a view of {name}, as nn.Parameter({name}.data[:2]) is, which a call needs: let"
    " all ranks have the same ones"
)

_LOOKING = threading.RLock()  # whoever looks at views holds them, and nobody collects then


def refresh_trained(ranks: Ranks, model: nn.Module) -> None:
    """Before a call: views that are parameters are of what is there now. Raises RankLostError for one that not all ranks have."""
    old = _out_of_date(ranks)
    within = {id(parameter) for parameter in model.parameters()} if old else set()
    if any(id(view) not in within and "autotp_is_held" not in view.__dict__ for view in old):
        del old[:]
        with _LOOKING:
            collect()  # what nobody holds any more is gone on all ranks, and not when Python comes to it
        old = _out_of_date(ranks)
    for view in old:
        if id(view) not in within:
            view.__dict__["autotp_is_held"] = True
        try:
            view.refresh("a call")
        except RankLostError as error:
            name = view.autotp_cut.autotp_origin.name
            raise RankLostError(MSG_ONE_RANK.format(error=error, name=name)) from error


def _out_of_date(ranks: Ranks) -> list[WholeView]:
    found = []
    with _LOOKING:
        for key, each in list(trained.items()):
            view = each()
            if not isinstance(view, WholeView):  # gone, or given other data
                trained.forget(key, each)
            elif view.autotp_cut.autotp_origin.ranks is ranks and not view.is_fresh():
                found.append(view)
            del view
    return found
