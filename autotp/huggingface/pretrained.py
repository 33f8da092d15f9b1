"""transformers' own loading and saving, on lazy tensors: names, conversions, dtypes and tying are its business, bytes ours."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from ..capture.clone import on_meta
from ..checkpoint.folder import CANDIDATES
from ..errors import AutotpError, CheckpointError, UsageError, in_one_line
from ..runtime.cut.origin import parts_only
from .models import model_class
from .quantized import dequantizing

_NO_THREADS, _LOADING = "HF_DEACTIVATE_ASYNC_LOAD", threading.RLock()


@contextmanager
def quiet(level: int = logging.CRITICAL) -> Iterator[None]:
    """No bars of transformers, and no messages below a level: autotp raises or shows itself what they would say."""
    before, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity(level)
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
        if bars:
            transformers.logging.enable_progress_bar()


@contextmanager
def _in_this_thread() -> Iterator[None]:
    """transformers loads in this thread alone, one model at a time, since it is told so for the whole process: with nothing to
    read, threads that take turns only cost time."""
    with _LOADING:
        before = os.environ.get(_NO_THREADS)
        os.environ[_NO_THREADS] = "1"
        try:
            yield
        finally:
            os.environ.pop(_NO_THREADS, None)
            if before is not None:
                os.environ[_NO_THREADS] = before


def local_folder(source: str | Path) -> Path:
    """The folder of a checkpoint: the one given, or that of a model id in the cache, downloaded if need be.

    Raises UsageError if there is none.
    """
    if Path(source).is_dir():
        return Path(source)
    name = str(source)
    if name.count("/") != 1 or Path(source).is_absolute() or name.startswith("."):
        raise UsageError(f"{name!r} is no folder and no model id; give the folder of a checkpoint")
    try:
        found = Path(_required(name, "config.json"))
        for candidate in CANDIDATES:
            path = cached_file(name, candidate, _raise_exceptions_for_missing_entries=False)
            if path is not None:
                if candidate.endswith(".json"):
                    get_checkpoint_shard_files(name, path)
                break
        cached_file(name, "generation_config.json", _raise_exceptions_for_missing_entries=False)
    except OSError as error:
        raise UsageError(f"{name!r} is no folder, and no model of that id can be read: {error}") from error
    return found.parent


def _required(name: str, file: str) -> str:
    path = cached_file(name, file)
    if path is None:
        raise UsageError(f"the model {name!r} has no {file}")
    return path


def load_dense(
    folder: Path, config: PretrainedConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | str | None
) -> PreTrainedModel:
    """The whole model with the tensors of a checkpoint, which may be lazy: nothing of those is read.

    Raises CheckpointError naming the tensors that are missing, unexpected or of a wrong shape, and UsageError if they are
    quantized in a way that cannot be undone here.
    """
    kind, given, config = model_class(config), config, dequantizing(config, folder)
    with _in_this_thread(), quiet():
        try:
            model, info = kind.from_pretrained(
                None,
                config=config,
                state_dict=dict(tensors),
                dtype="auto" if dtype is None else dtype,
                ignore_mismatched_sizes=True,  # they are collected, and raised below
                output_loading_info=True,
            )
        except ImportError as error:
            raise UsageError(f"transformers needs more to load {folder}: {error}") from error
        except AutotpError:
            raise
        except RuntimeError as error:
            line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise CheckpointError(
                f"transformers cannot convert the checkpoint {folder} to a {kind.__name__}: {line}"
            ) from error
        except Exception as error:  # whatever the model's own code says to the configuration
            raise UsageError(
                f"transformers cannot build the {kind.__name__} of {folder / 'config.json'}: {in_one_line(error)}"
            ) from error
    _check(folder, kind.__name__, tensors, info)
    if config is not given:
        del model._weight_conversions  # saved backwards, they would give whole weights the names of quantized ones
    model.config.name_or_path = str(folder)
    if model.can_generate():
        model.generation_config = _generation_config(folder, model)
    return model


def _check(folder: Path, kind: str, tensors: Mapping[str, Any], info: Mapping[str, Any]) -> None:
    """Raises CheckpointError unless the checkpoint has exactly the tensors of the model."""
    for name, found, wanted in sorted(info["mismatched_keys"], key=str):
        raise CheckpointError(
            f"tensor {name!r} of {_file(folder, tensors, name)} has the shape {tuple(found)}, the {kind} of"
            f" {folder / 'config.json'} needs {tuple(wanted)}"
        )
    for what, names in (("lacks", info["missing_keys"]), ("has the unexpected", info["unexpected_keys"])):
        if names:
            first, more = min(names), f" and {len(names) - 1} more" if len(names) > 1 else ""
            where = _file(folder, tensors, first) if what != "lacks" else folder
            raise CheckpointError(
                f"{where} {what} tensor {first!r}{more}; a {kind} is what {folder / 'config.json'} describes"
            )


def _file(folder: Path, tensors: Mapping[str, Any], name: str) -> Path:
    """The file of a tensor, or the folder if the checkpoint calls it by another name."""
    tensor = tensors.get(name)
    return getattr(getattr(tensor, "_made_by", None), "file", folder)


def _generation_config(folder: Path, model: Any) -> GenerationConfig:
    if (folder / "generation_config.json").is_file():
        try:
            return GenerationConfig.from_pretrained(folder)
        except Exception as error:  # whatever transformers says to the settings
            raise CheckpointError(f"cannot read {folder / 'generation_config.json'}: {in_one_line(error)}") from error
    try:
        return GenerationConfig.from_pretrained(folder, config_file_name="config.json", _from_model_config=True)
    except OSError:
        return model.generation_config


def original_format(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The tensors of a model under the names and in the forms that its checkpoints have, tied ones once.

    `tensors` are whole, by the model's own names; lazy ones stay lazy.
    """
    ignored = set(model._keys_to_ignore_on_save or ())
    with parts_only():
        state = model.state_dict(keep_vars=True)
        names = {n: t.to("meta") for n, t in state.items() if n in tensors and n not in ignored}
        kept = remove_tied_weights_from_state_dict(names, model)
    with torch.no_grad():
        return revert_weight_conversion(dense_twin(model, tensors), {name: tensors[name] for name in kept})


def dense_twin(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> Any:
    """A copy of a parallel model's structure with the dense shapes, on the meta device."""
    shapes = {id(p): tensors[n].shape for n, p in model.named_parameters(remove_duplicate=False) if n in tensors}
    return on_meta(model, shapes)


def write_configs(model: PreTrainedModel, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Everything but the weights that transformers writes for a model: configurations, and the code of a custom one.

    Raises UsageError for a quantized model, whose weights autotp cannot write back.
    """
    if getattr(model, "hf_quantizer", None) is not None:
        raise UsageError("a quantized model cannot be saved; load it with dtype=... and without its quantization")
    held: dict[str, Any] = {name: vars(model)[name] for name in ("config", "generation_config") if name in vars(model)}
    vars(model).update(copy.deepcopy(held))  # transformers notes in them what it writes, and only this rank writes
    try:
        with quiet():
            type(model).save_pretrained(model, folder, state_dict={}, save_original_format=False)
    finally:
        vars(model).update(held)
    for file in folder.glob("*.safetensors"):
        file.unlink()  # the empty one that goes with no tensors
