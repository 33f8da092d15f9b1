"""All names of a model's parameters: the model is walked for them once."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from torch import nn

# A module, and the name of one of its parameters. A module that is in a model twice has two names for each of them.
Holder: TypeAlias = tuple[int, str]


class Parameters:
    """The parameters of a model by name, a tied one by each of its names, and who holds it under that name."""

    def __init__(self, model: nn.Module) -> None:
        self.named: dict[str, nn.Parameter] = {}
        self.holders: dict[str, Holder] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    full = f"{path}.{name}" if path else name
                    self.named[full], self.holders[full] = parameter, (id(module), name)

    def tied(self) -> list[list[str]]:
        """The names of each parameter that has several."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.named.items():
            names.setdefault(id(parameter), []).append(name)
        return [each for each in names.values() if len(each) > 1]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter."""
        return {name: tuple(parameter.shape) for name, parameter in self.named.items()}

    def fingerprint(self) -> str:
        """A hash of all names and shapes: a plan fits exactly the models with its fingerprint."""
        text = "\n".join(f"{name} {shape}" for name, shape in self.shapes().items())
        return hashlib.sha256(text.encode()).hexdigest()[:16]
