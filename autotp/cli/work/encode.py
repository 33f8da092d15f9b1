"""What the demonstration computes: embeddings of sentences, by the whole model or by one rank of a parallel one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer, BatchEncoding

from ...api import parallelize
from ...checkpoint.full import state_of
from ...runtime.cut.origin import parts_only

PRECISIONS = (torch.float32, torch.float64)
SENTENCES = (
    "A woman plays the violin on a small stage.",
    "The musician performs in front of an audience.",
    "Share prices fell sharply on Monday morning.",
    "Investors sold their stocks as the market dropped.",
    "Heavy rain flooded the streets of the old town, and the bridge was closed.",
    "After the storm the city centre was under water.",
)


@dataclass(frozen=True)
class Encoded:
    """Embeddings by precision, the parameters held, and the collectives that ran in each forward."""

    embeddings: dict[torch.dtype, torch.Tensor]
    parameters: int
    collectives: tuple[dict[tuple[str, str], int], ...] = ()


def encode(folder: Path) -> Encoded:
    """The sentences through the whole model."""
    batch, embeddings, parameters = tokens(folder), {}, 0
    for precision in PRECISIONS:
        model = load(folder, precision)
        embeddings[precision], parameters = embed(model, batch), held(model)
    return Encoded(embeddings, parameters)


def encode_on_rank(folder: Path) -> Encoded:
    """The sentences through this rank's part of the model, together with the other ranks."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    batch, embeddings, parameters, collectives = tokens(folder), {}, 0, []
    for precision in PRECISIONS:
        model = parallelize(load(folder, precision))
        with state_of(model).ranks.logging() as log:
            embeddings[precision] = embed(model, batch)
        parameters = held(model)
        collectives.append(dict(Counter((call.kind, call.phase) for call in log.calls)))
    return Encoded(embeddings, parameters, tuple(collectives))


def tokens(folder: Path) -> BatchEncoding:
    """The sentences as one padded batch."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer(list(SENTENCES), padding=True, return_tensors="pt")


def load(folder: Path, precision: torch.dtype) -> nn.Module:
    """The model with its weights from disk."""
    return AutoModel.from_pretrained(folder, dtype=precision, local_files_only=True).eval()


@torch.no_grad()
def embed(model: nn.Module, batch: BatchEncoding) -> torch.Tensor:
    """Normalised mean over the tokens of each sentence, padding left out."""
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def held(model: nn.Module) -> int:
    """Number of parameters in memory."""
    with parts_only():
        return sum(parameter.numel() for parameter in model.parameters())
