"""Frozen records from plain data, field by field: what is of another type than a field is declared with is a PlanError."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, get_args, get_origin, get_type_hints

from ..errors import PlanError
from ..outside.data import LARGEST, brief


def read_record(kind: type[Any], data: Any, where: str) -> Any:
    """Build a frozen dataclass from plain data, field by field. Raises PlanError naming the field that is wrong."""
    if not isinstance(data, dict):
        raise PlanError(f"{where} should be an object with the fields of {kind.__name__}")
    known, hints = _fields(kind)  # type: ignore[arg-type]
    strange = data.keys() - known.keys()
    missing = {n for n, f in known.items() if f.default is dataclasses.MISSING} - data.keys()
    if strange or missing:
        raise PlanError(f"{where} has the unknown fields {brief(sorted(strange))} and lacks {sorted(missing)}")
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in data.items()})


@functools.cache
def _fields(kind: type[Any]) -> tuple[dict[str, dataclasses.Field[Any]], dict[str, Any]]:
    """The fields of a dataclass by name, and what each is declared with."""
    return {field.name: field for field in dataclasses.fields(kind)}, get_type_hints(kind)


def _value(hint: Any, value: Any, where: str) -> Any:
    """A value of the type a field is declared with: a dataclass, a tuple of one type, or a plain one."""
    if dataclasses.is_dataclass(hint):
        return read_record(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise PlanError(f"{where} should be a list, not {brief(value)}")
        return tuple(_value(get_args(hint)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if not isinstance(value, (int, float) if hint is float else hint) or isinstance(value, bool) != (hint is bool):
        raise PlanError(f"{where} should be of type {hint.__name__}, not {brief(value)}")
    if isinstance(value, (int, float)) and not 0 <= value < LARGEST:
        raise PlanError(f"{where} should be a number of at least 0 and below 2^62, not {brief(value)}")
    return value
