"""`autotp.save_pretrained`: a parallel transformers model as an ordinary checkpoint."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from ..checkpoint import save
from ..checkpoint.agree import together
from ..checkpoint.full import state_of
from ..checkpoint.target import Target
from ..errors import UsageError
from ..runtime.groups.ranks import Ranks
from . import adapters, models, pretrained

SAVE = "autotp.save_pretrained"


def save_pretrained(
    model: nn.Module, folder: str | Path, *, max_shard_size: int | str = "50GB", overwrite: bool = True
) -> None:
    """Write a parallel transformers model as an ordinary checkpoint, which `AutoModel.from_pretrained` opens. Of a model of
    peft only the adapters are written, which `PeftModel.from_pretrained` opens.

    Every rank must call it. Rank 0 assembles and writes one tensor after the other. The folder is replaced in one step at the
    end, so an error or a killed process leaves the old one. Only files that an earlier call wrote are replaced: other files,
    such as those of a tokenizer, stay, and if the folder has weights that something else wrote, it is refused.

    Args:
        model: what `from_pretrained` or `parallelize` returned.
        folder: where to write.
        max_shard_size: size of the largest file, such as "5GB".
        overwrite: whether to replace what an earlier call wrote.

    Raises:
        CheckpointError: a file cannot be written, or somebody else's would be replaced; the message names it and the tensor,
            and is the same on all ranks.
        UsageError: some rank did not call it, or the model is not parallel or not from transformers.
    """
    ranks = state_of(model).ranks
    if adapters.is_adapted(model):
        _save_adapters(model, Target(Path(folder), SAVE, overwrite, True, adapters.is_adapters), ranks)
        return
    if not models.is_transformers_model(model):
        raise UsageError(
            f"{type(model).__name__} is no transformers model, so it has no checkpoint format of its own; save what"
            " autotp.full_state_dict(model) returns"
        )
    tensors = save.gathered(model)
    files = pretrained.original_format(model, tensors)
    metadata = {"total_parameters": pretrained.dense_twin(model, tensors).num_parameters()}

    def write_configs(new: Path) -> None:
        pretrained.write_configs(model, new)  # type: ignore[arg-type]

    target = Target(Path(folder), SAVE, overwrite, True, save.is_weights)
    save.save(files, target, ranks, max_shard_size, metadata, write_configs)


def _save_adapters(model: nn.Module, target: Target, ranks: Ranks) -> None:
    ranks.exchange("", SAVE, save.PATIENCE_S)
    tensors = adapters.whole_adapters(model)

    def write() -> None:
        if ranks.rank == 0 and ranks.replica == 0:
            with target.written() as new:
                adapters.write_adapters(model, new, tensors)

    together(ranks, SAVE, write)
