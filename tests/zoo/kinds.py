"""Which families there are: every model type that transformers maps to a causal LM, and the base models of all others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from transformers.models.auto import modeling_auto

# One type of transformers can stand for a model of its own and for the text part of another: each is a family.
CAUSAL, BASE = "causal", "base"


@dataclass(frozen=True)
class Kind:
    """A family: its model type, and whether it is taken with a causal head or as a base model."""

    name: str
    head: str


@cache
def kinds() -> tuple[Kind, ...]:
    """All families, causal ones first, in the order of transformers."""
    causal = tuple(Kind(name, CAUSAL) for name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    taken = {kind.name for kind in causal}
    base = tuple(Kind(name, BASE) for name in modeling_auto.MODEL_MAPPING_NAMES if name not in taken)
    return causal + base
