"""Names of a package that are imported when they are asked for (PEP 562): torch and transformers take seconds."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def found(package: dict[str, Any], homes: Mapping[str, str], name: str) -> Any:
    """What a package's `__getattr__` returns: the name, from the module that has it, and kept among the package's globals.

    Raises AttributeError for a name that the package does not have.
    """
    if name not in homes:
        raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
    value = package[name] = getattr(importlib.import_module(homes[name], package["__name__"]), name)
    return value
