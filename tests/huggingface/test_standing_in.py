"""What ours takes the place of in other packages is there, under these names: a rename is an error when our class is made."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from transformers import GenerationConfig, PreTrainedModel, Trainer

from autotp.errors import UsageError
from autotp.huggingface import checkpointing
from autotp.outside.overrides import names_in
from autotp.runtime.cut import fsdp

try:
    from autotp.huggingface import trainer
except UsageError as refusal:  # an older transformers than it is known to work with
    pytest.skip(str(refusal), allow_module_level=True)

pytestmark = pytest.mark.matrix

OVERRIDDEN = """get_tp_size create_accelerator_and_postprocess _sync_replicated_trainable_parameters _save
 _defer_fsdp_gradient_reduction is_distributed_loading_by_transformers""".split()


def renamed_code(code: types.CodeType, old: str, new: str) -> types.CodeType:
    inner = (renamed_code(c, old, new) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_names=tuple(new if n == old else n for n in code.co_names), co_consts=tuple(inner))


def renamed(base: type, old: str, new: str) -> type:
    """The class as it would be after a rename in its package."""
    held = {new if name == old else name: value for name, value in vars(base).items() if name != "__dict__"}
    for name, value in held.items():
        plain = inspect.unwrap(value) if inspect.isfunction(value) else None
        if plain is not None:
            code = renamed_code(plain.__code__, old, new)
            held[name] = types.FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__)
    return type(base.__name__, (), {name: value for name, value in held.items() if name != "__weakref__"})


def made_again(module: Any) -> Any:
    """The module, executed once more."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_again", Path(module.__file__))
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    return again


def give_trainer(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Let `from transformers import Trainer` give a class; the lazy module there may not be the one that was imported first."""
    monkeypatch.setattr(sys.modules["transformers"], "Trainer", kind)


@pytest.mark.parametrize("name", [*OVERRIDDEN, "gather_function", "gather_for_metrics"])
def test_a_trainer_without_one_of_the_names_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give_trainer(monkeypatch, renamed(Trainer, name, f"{name}_of_tomorrow"))
    with pytest.raises(UsageError, match=rf"ParallelTrainer stands in for Trainer, .*has no {name}\b.*transformers 5"):
        made_again(trainer)


def test_a_trainer_that_calls_with_other_arguments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def saving(self: Any, output_dir: str, step: int) -> None: ...

    give_trainer(monkeypatch, type("Trainer", (Trainer,), {"_save": saving}))
    with pytest.raises(
        UsageError, match=r"_save takes \(self, output_dir, step\) and not \(self, output_dir, state_dict"
    ):
        made_again(trainer)


def test_a_trainer_that_has_a_name_which_was_ours_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    give_trainer(monkeypatch, type("Trainer", (Trainer,), {"_first_of_groups": lambda self: None}))
    with pytest.raises(UsageError, match="it has a _first_of_groups of its own"):
        made_again(trainer)


@pytest.mark.parametrize("name", ["init_unsharded_param", "_get_grad_inner_tensor"])
def test_an_fsdp_without_one_of_the_names_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fsdp_param, "FSDPParam", renamed(_fsdp_param.FSDPParam, name, f"{name}_of_tomorrow"))
    monkeypatch.setattr(_fsdp_param_group, "FSDPParam", _fsdp_param_group.FSDPParam)  # put back afterwards
    with pytest.raises(UsageError, match=rf"PartParam stands in for FSDPParam, .*has no {name}\b"):
        made_again(fsdp)


def test_the_trainer_and_fsdp_that_are_here_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fsdp_param_group, "FSDPParam", _fsdp_param_group.FSDPParam)
    marked = {
        name
        for name, own in vars(made_again(trainer).ParallelTrainer).items()
        if getattr(own.fget if isinstance(own, property) else own, "__override__", False)
    }
    assert marked == {*OVERRIDDEN}
    assert made_again(fsdp).PartParam is _fsdp_param_group.FSDPParam


def test_names_that_are_asked_for_with_a_default_are_still_those() -> None:
    """Where they were others, the default would be taken, and nobody would hear of it."""
    assert GenerationConfig().max_time is None
    assert {"hf_quantizer", "_tp_plan"} <= names_in(PreTrainedModel)
    assert "forward" in vars(checkpointing._StandIn)
    assert (
        inspect.unwrap(checkpointing._StandIn.forward) is not checkpointing._StandIn.forward
    )  # with checkpoints around it
    lora = pytest.importorskip("peft.tuners.lora.layer")
    assert '"ds_shape"' in inspect.getsource(lora)
