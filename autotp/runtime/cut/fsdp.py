"""FSDP around a parallel model: it cuts and gathers the parts, and what it puts in their place is cut as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from typing_extensions import override

from ...outside.overrides import standing_in
from .origin import IsCut, Origin, parts_only
from .tensor import as_cut

_MENTIONS = {
    FSDPParam: ("sharded_param", "_unsharded_param", "_get_grad_inner_tensor"),
    FSDPParamGroup: ("FSDPParam", "init_unsharded_param"),
}


@standing_in(FSDPParam, "torch 2.11 to 2.15", _MENTIONS)
class PartParam(FSDPParam):
    """FSDP's own record of a parameter, of which it sees the part that this rank holds."""

    origin: Origin | None

    def __init__(self, param: Any, *args: Any, **kwargs: Any) -> None:
        self.origin = param.autotp_origin if isinstance(param, IsCut) else None
        with parts_only():
            super().__init__(param, *args, **kwargs)
        if self.origin is not None:
            as_cut(self.sharded_param, self.origin)

    @override
    def init_unsharded_param(self) -> None:
        """The parameter that is there while a module computes: the part again."""
        with parts_only():
            super().init_unsharded_param()
        if self.origin is not None:
            as_cut(self._unsharded_param, self.origin)

    @override
    def _get_grad_inner_tensor(self, grad: torch.Tensor) -> torch.Tensor:
        return super()._get_grad_inner_tensor(grad.local() if isinstance(grad, IsCut) else grad)


_fsdp_param_group.FSDPParam = PartParam  # type: ignore[attr-defined]
