"""Reading text, JSON and TOML as data."""

from __future__ import annotations

import json
import reprlib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ..errors import AutotpError, in_one_line

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
