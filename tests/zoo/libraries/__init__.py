"""Models of libraries other than transformers, tiny and with two calls each: a file for each library."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache

from .made import Made

# A library's name, which is what `--head` takes, and the file here that has its models.
LIBRARIES = {
    "diffusers": "diffusion",
    "timm": "images",
    "x_transformers": "options",
    "litgpt": "texts",
    "torchvision": "vision",
    "torch.nn": "modules",
}


@cache
def cases(library: str) -> Mapping[str, Callable[[], Made]]:
    """What makes each model of a library. Raises ImportError or RuntimeError where the library cannot be imported."""
    return importlib.import_module(f"{__name__}.{LIBRARIES[library]}").CASES


@cache
def missing() -> dict[str, str]:
    """The libraries that cannot be imported here, and why."""
    found = {}
    for library in LIBRARIES:
        try:
            cases(library)
        except (ImportError, RuntimeError, OSError) as error:  # a compiled part may be of another build of torch
            found[library] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found
