"""What transformers records by hooks inside blocks: a block that runs as one program calls none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.utils.output_capturing import OutputRecorder

from ..dispatch.unit import UnitForward
from ..errors import UsageError

INSIDE = (
    "{name}=True records what is inside of blocks, and those of a parallel model run as one program each; leave it out, or"
    " record it on the dense model"
)


def refuse_recordings(model: nn.Module) -> None:
    """Let a forward that is to record what a program has no place for be a UsageError, where it would record nothing."""
    if not isinstance(model, PreTrainedModel):
        return
    kinds = {type(module) for unit in _programs(model) for module in unit.modules() if module is not unit}
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    names = sorted({f"output_{key}" for each in models for key, specs in _recorded(each) if _is_of(specs, kinds)})
    if not names:
        return

    def check(model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        for name in names:
            if kwargs.get(name, getattr(model.config, name, False)):
                raise UsageError(INSIDE.format(name=name))

    model.register_forward_pre_hook(check, with_kwargs=True)


def _programs(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that run as one program."""
    return (module for module in model.modules() if isinstance(module.__dict__.get("forward"), UnitForward))


def _recorded(model: PreTrainedModel) -> Iterable[tuple[str, Any]]:
    """What a model can record, and of which modules."""
    return (model._can_record_outputs or {}).items()


def _is_of(specs: Any, kinds: Iterable[type[nn.Module]]) -> bool:
    """Returns if something is recorded of modules of some classes."""
    for spec in specs if isinstance(specs, list) else [specs]:
        target: Any = spec.target_class or spec.class_name if isinstance(spec, OutputRecorder) else spec
        if any(
            kind.__name__.endswith(target) if isinstance(target, str) else issubclass(kind, target) for kind in kinds
        ):
            return True
    return False
