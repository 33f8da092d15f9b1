"""What torch's own Python asks of tensors before it decides what to do: here, where dynamo may follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def answering(asked: Callable[[Any], bool], *kinds: type) -> Callable[[Any], bool]:
    """Torch's question whether tensors compute themselves, which decides on what its modules of attention do. Those of these
    kinds stand for ordinary ones, so that the answer is the dense model's."""

    def has_torch_function(values: Iterable[Any]) -> bool:
        if torch.compiler.is_compiling():  # dynamo knows torch's own only by other names, where another has its place
            return torch.overrides.has_torch_function_variadic(*values)
        return asked([value for value in values if not isinstance(value, kinds)])

    return has_torch_function
