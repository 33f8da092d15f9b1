"""Which families there are: every model type that transformers maps to a causal LM, the base models of all others, and models of
other libraries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from transformers.models.auto import modeling_auto

from .libraries import LIBRARIES, cases, missing

# One type of transformers can stand for a model of its own and for the text part of another: each is a family.
CAUSAL, BASE = "causal", "base"


@dataclass(frozen=True)
class Kind:
    """A family: its model type, and whether it is taken with a causal head or as a base model; or the library that has it."""

    name: str
    head: str


@cache
def kinds() -> tuple[Kind, ...]:
    """All families, causal ones first, in the order of transformers; then those of the libraries that are installed."""
    causal = tuple(Kind(name, CAUSAL) for name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    taken = {kind.name for kind in causal}
    base = tuple(Kind(name, BASE) for name in modeling_auto.MODEL_MAPPING_NAMES if name not in taken)
    others = tuple(Kind(name, library) for library in LIBRARIES if library not in missing() for name in cases(library))
    return causal + base + others
