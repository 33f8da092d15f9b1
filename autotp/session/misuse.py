"""What a parallel model refuses to compute, since the numbers would be wrong and nobody would see it."""

from __future__ import annotations

import hashlib
import os
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from ..errors import UsageError
from ..runtime.cut.given import check_given, given, gradients
from ..runtime.cut.refresh import refresh_trained
from ..runtime.cut.views import trained
from ..runtime.devices.devices import CPU
from ..runtime.devices.randomness import state_of
from ..runtime.groups.processes import ProcessRanks
from ..runtime.groups.ranks import Ranks

MSG_AVERAGED = (
    "DistributedDataParallel would average the gradients of different slices: its process group has ranks {others} of this"
    " rank's tensor-parallel group; give it the group of the replicas, process_group=mesh['dp'].get_group(), or train with"
    " autotp.ParallelTrainer"
)
MSG_CAPTURED = (
    "torch.export and torch.jit.trace would keep the programs of one call, and nothing of what a parallel model checks at every"
    " call; use torch.compile, or capture the dense model"
)
MSG_FORWARD = "forward-mode differentiation of a parallel model is not supported; use backward, or the dense model"
CHECK_INPUTS = "AUTOTP_CHECK_INPUTS"  # a variable of the environment: "0" compares the inputs of the first call only
_STATES = "random states, from which dropout draws: seed all alike"
_EVERY = 64  # how many calls there are from one check to the next where it takes a collective of its own
_ENTRIES = {0: 1, 1: 4096, 2: 64, 3: 16}  # of each dim, by the number of dims; of more dims 8
_WORD = 0xFFFFFFFF  # hashes of numbers, unlike those of text, are the same in every process
_OF_NUMPY = frozenset((torch.bool, torch.int64, torch.int32, torch.float32, torch.float64, torch.uint8))
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def refuse_misuse(model: nn.Module, ranks: Ranks) -> None:
    """Let calls of a parallel model raise an error where they would give wrong numbers.

    UsageError inside a DDP over its own group, from a second thread, in a forked process and in captures that keep no guards;
    where the ranks have different inputs, or draw different random numbers, PlacementError in the first call, RankLostError in a
    later one.
    """
    if ranks.size > 1:
        draws = _Draws(ranks)
        ranks.watch(model)
        model.register_forward_pre_hook(_Check(ranks, draws), with_kwargs=True)
        model.register_forward_hook(_End(ranks, draws), always_call=True)


class _Check:
    def __init__(self, ranks: Ranks, draws: _Draws) -> None:
        self.ranks, self.draws, self.calls = ranks, draws, 0
        self.always = os.environ.get(CHECK_INPUTS, "1") != "0"

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler._is_exporting_flag:  # for dynamo of torch 2.11 the function that reads it is always true
            raise UsageError(MSG_CAPTURED)
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return  # what such inputs hold cannot be read
        if torch._C._get_tracing_state() is not None:  # of torch.jit
            raise UsageError(MSG_CAPTURED)
        if forward_ad._current_level >= 0:
            raise UsageError(MSG_FORWARD)
        if given or gradients:
            check_given(model)
        if trained:
            refresh_trained(self.ranks, model)
        _check_average(self.ranks)
        state = self.draws.begin(model) if self.always else 0
        on_host = self.always and self.ranks.device.type == "cpu"
        compared = self.ranks.begin_call(model, _sample((args, kwargs)) ^ state if on_host and self.calls else 0)
        if not self.calls:
            self.ranks.check_agreement(digest((args, kwargs)), "inputs")
        elif self.always and not (on_host and compared) and self.calls % _EVERY == 0:
            self.ranks.check_agreement(str(_sample((args, kwargs)) ^ state), "inputs, or random states")
        self.calls += 1


class _Draws:
    """Whether calls draw random numbers: then the ranks' generators must be in the same state when a call begins."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.begun, self.drawn, self.checked = ranks, 0, False, False

    def begin(self, model: nn.Module) -> int:
        """A number for the state of the generators; 0 where nothing is known to draw from them.

        Before the first call that trains, modules say that they will. Raises PlacementError if the states differ then.
        """
        self.begun = self._state() if model.training and self.ranks.are_processes else 0
        if self.begun and not self.checked:
            self.checked = True
            if any(isinstance(part, _DropoutNd) and part.training and part.p for part in model.modules()):
                self.drawn = True
                self.ranks.check_agreement(str(self.begun), _STATES)
        return self.begun if self.drawn else 0

    def end(self, *, by_error: bool) -> None:
        """A call has ended: the state says if it has drawn. Raises PlacementError if nothing had said so before, and the states
        differed when it began."""
        if self.drawn or not self.begun or self.begun == self._state():
            return
        self.drawn = True
        if not by_error:  # which the other ranks may not have had
            self.ranks.check_agreement(str(self.begun), _STATES)

    def _state(self) -> int:
        devices = dict.fromkeys((CPU, self.ranks.device))
        return crc32(b"".join([state_of(device).numpy().tobytes() for device in devices]))


class _End:
    def __init__(self, ranks: Ranks, draws: _Draws) -> None:
        self.ranks, self.draws = ranks, draws

    def __call__(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not torch.compiler.is_compiling():
            try:
                self.draws.end(by_error=output is None)  # what a hook is given then
            finally:
                self.ranks.end_call(model)


def _sample(inputs: Any) -> int:
    """A number for the call's own tensors: their shapes, and entries that lie evenly in them. What they hold in objects, as a
    cache does, may differ between ranks."""
    if isinstance(inputs, (list, tuple)):
        return hash(tuple([_sample(value) for value in inputs])) & _WORD
    if isinstance(inputs, dict):
        return hash(tuple([_sample(value) for value in inputs.values()])) & _WORD
    if type(inputs) is not torch.Tensor or inputs.layout is not torch.strided or inputs.device.type == "meta":
        return 0
    if inputs.is_nested:
        return _sample(inputs.unbind())
    found, entries = _array(inputs), _ENTRIES.get(inputs.dim(), 8)
    if found.size > entries:
        found = found[tuple([slice(None, None, -(-size // entries) or 1) for size in found.shape])]
    return crc32(found.tobytes(), hash((*inputs.shape, inputs.element_size())) & _WORD)


def _array(value: torch.Tensor) -> Any:
    """The same bytes as an array of numpy, which has no narrow floats."""
    try:
        return value.numpy()
    except (TypeError, RuntimeError):  # nor gradients, nor devices
        value = value.detach().cpu().resolve_conj().resolve_neg()
        value = torch.view_as_real(value) if value.is_complex() else value
        return (value if value.dtype in _OF_NUMPY else value.view(_INTEGERS[value.element_size()])).numpy()


def _stored(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The numbers that are in memory: of a sparse tensor where its entries are, and these."""
    if value.layout is torch.sparse_coo:
        return value._indices(), value._values()
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return value.crow_indices(), value.col_indices(), value.values()
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return value.ccol_indices(), value.row_indices(), value.values()
    return (value,)


def _check_average(ranks: Ranks) -> None:
    around = DistributedDataParallel._get_active_ddp_module()
    if around is not None and isinstance(ranks, ProcessRanks):
        others = sorted(set(dist.get_process_group_ranks(around.process_group)) & set(ranks.line) - {dist.get_rank()})
        if others:
            raise UsageError(MSG_AVERAGED.format(others=others))


def digest(inputs: Any) -> str:
    """The same for equal inputs: tensors by their bytes, everything else not at all."""
    found = hashlib.sha256()
    leaves = pytree.tree_leaves(inputs)
    for value in [part for leaf in leaves for part in (leaf.unbind() if _is_nested(leaf) else [leaf])]:
        if type(value) is torch.Tensor and value.device.type != "meta":
            found.update(f"{value.dtype}{tuple(value.shape)}".encode())
            for part in _stored(value.detach()):
                found.update(_array(part).tobytes())
    return found.hexdigest()


def _is_nested(value: Any) -> bool:
    return type(value) is torch.Tensor and value.is_nested
