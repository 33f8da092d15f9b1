"""Reading what others wrote: text, JSON and TOML that may be damaged, clumsy or hostile. It is data, or one error of one line."""

from __future__ import annotations

import functools
import json
import reprlib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import best_match

from .errors import AutotpError, in_one_line, nearest

# Larger whole numbers are no sizes of anything, and computing with them takes longer and longer.
LARGEST = 2**62
_LONGEST_NAME, _DEEPEST_NAME = 255, 16  # bytes of a file's name; folders on the way to it
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


def brief(value: object) -> str:
    """A value as one short line."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LARGEST:
        return f"a whole number of {value.bit_length()} bits"
    return _SHORT.repr(value)


def read_text(path: Path, error: type[AutotpError]) -> str:
    """A text file. Raises the error for one that cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as cause:
        raise error(f"cannot read {path}: {cause.strerror}") from cause
    except UnicodeDecodeError as cause:
        raise error(f"cannot read {path}: byte {cause.start} is not UTF-8, so it is no text") from cause


def parse_json(text: str, what: str, error: type[AutotpError], *, strict: bool = True) -> Any:
    """JSON as data. Raises the error for what is none, and unless it need not be `strict` for what readers of JSON disagree
    about: a key that is there twice, NaN and infinity."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(found)
        if len(made) < len(found):
            names = [name for name, _ in found]
            raise ValueError(f"the key {brief(next(name for name in names if names.count(name) > 1))} is there twice")
        return made

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant) if strict else json.loads(text)
    except RecursionError as cause:
        raise error(f"{what} is nested too deeply to be read") from cause
    except ValueError as cause:
        raise error(f"{what} is no JSON: {in_one_line(cause).partition(': ')[2]}") from cause


def parse_toml(path: Path, error: type[AutotpError], more: str) -> dict[str, Any]:
    """A TOML file as data, in which every number is finite; `more` says where its format is described."""
    text = read_text(path, error)
    try:
        data = tomllib.loads(text)
    except RecursionError as cause:
        raise error(f"{path} is nested too deeply to be read; {more}") from cause
    except ValueError as cause:
        raise error(f"{path}: {in_one_line(cause).partition(': ')[2]}; {more}") from cause
    for where, value in _numbers(data, ""):
        if abs(value) > LARGEST or value != value:
            raise error(f"{path}: {where} is {brief(value)}; expected a number that is finite and below 2^62")
    return data


def _numbers(value: Any, where: str) -> Iterator[tuple[str, float]]:
    """Every number in some data, and where it is. Tables that a parser could make are no deeper than it could go."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _numbers(part, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _numbers(part, f"{where}[{i}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield where, value


@functools.cache
def _validator() -> Any:
    """The newest draft of JSON Schema, to which 1.0 is no whole number, as it is none to Python."""
    whole = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return validators.extend(Draft202012Validator, type_checker=whole)


def conform(data: Any, schema: Mapping[str, Any], what: str, error: type[AutotpError]) -> None:
    """Raises the error for data that a JSON Schema does not allow: which entry, what it is, and what is expected, which the
    schema's own `description` says where it has one."""
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


def is_name_inside(name: str) -> bool:
    """Returns if a file name of an index, with `/` between folders, can be one and stays in the folder it is read against."""
    path = PurePosixPath(name)
    try:
        longest = max((len(part.encode()) for part in path.parts), default=0)
    except UnicodeEncodeError:
        return False  # half of a character
    if longest > _LONGEST_NAME or len(path.parts) > _DEEPEST_NAME:
        return False
    plain = name.strip() and "\0" not in name and "\\" not in name and not PureWindowsPath(name).drive
    return bool(plain) and not path.is_absolute() and ".." not in path.parts and bool(path.parts)
