"""Comparing data with a JSON Schema. jsonschema is imported by the first comparison: a command's help needs none."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ..errors import AutotpError, nearest
from .data import brief


@functools.cache
def _validator() -> Any:
    """The newest draft of JSON Schema, to which 1.0 is no whole number, as it is none to Python."""
    from jsonschema import Draft202012Validator, validators

    whole = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return validators.extend(Draft202012Validator, type_checker=whole)


def conform(data: Any, schema: Mapping[str, Any], what: str, error: type[AutotpError]) -> None:
    """Raises the error for data that a JSON Schema does not allow: which entry, what it is, and what is expected, which the
    schema's own `description` says where it has one."""
    from jsonschema.exceptions import best_match

    found = best_match(_validator()(schema).iter_errors(data))
    if found is None:
        return
    where = _place(found.absolute_path)
    inside = f" in {where}" if where else ""
    known = found.schema.get("properties", {})
    if found.validator == "additionalProperties":
        key = min(found.instance.keys() - known.keys(), key=str)
        raise error(f"{what}: unknown key {brief(key)}{inside}{nearest(str(key), known)}")
    if found.validator == "required":
        key = next(name for name in found.validator_value if name not in found.instance)
        words = known.get(key, {}).get("description")
        raise error(f"{what}: {where or 'it'} lacks {key!r}" + (f"; expected {words}" if words else ""))
    words = found.schema.get("description") or f"{found.validator} {brief(found.validator_value)}"
    raise error(f"{what}: {where or 'it'} is {brief(found.instance)}; expected {words}")


def _place(path: Any) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return " ".join(text.removeprefix(".").split())[:200]
