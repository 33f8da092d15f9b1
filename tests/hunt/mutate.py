"""Small changes to good input, as clumsy or hostile hands make them: to its bytes, to its lines, to one place of its data."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 64, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308, "", " ", "x", "é\n\0",
    "../x", "/etc/passwd", "a" * 5000, "9" * 400, [], {}, [[]], [None], {"": 0}, [1, 2], "2", "NaN", "(" * 300, "[" * 60 + "1",
)  # fmt: skip
WRITTEN = ("-1", "0", "nan", "inf", "-inf", "1e400", '""', "'x'", "[]", "{}", "[1, 2]", "true", "9" * 30)
LAYOUTS = (
    "1",
    "2/2@1",
    "4/2@1,2@2",
    "(2/2@1 · 32/2@1)",
    "[80/2@1 + 80]",
    "64>128/2@1",
    "160/2@1,2@1",
    "(1)",
    "[1]",
    "0",
)


def mutated_bytes(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, left out, doubled or moved, or the end cut off."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        start = chance.randrange(len(found) + 1)
        end = min(len(found), start + chance.choice((1, 1, 2, 8, 64)))
        how = chance.randrange(6)
        if how == 0 and found:
            found[start % len(found)] = chance.randrange(256)
        elif how == 1:
            del found[start:end]
        elif how == 2:
            found[start:start] = found[start:end]
        elif how == 3:
            found[start:start] = bytes(chance.choices(b'0123456789-+eE.,:{}[]"\\ nul\n\xff', k=chance.randrange(1, 9)))
        elif how == 4:
            part, place = bytes(found[start:end]), chance.randrange(len(found) + 1)
            found[place : place + len(part)] = part
        else:
            del found[start:]
    return bytes(found)


def mutated_lines(text: str, chance: random.Random) -> str:
    """Lines left out, doubled or changed places; or a value replaced by a hostile one."""
    lines = text.splitlines()
    for _ in range(chance.choice((1, 1, 2))):
        i, j = chance.randrange(len(lines)), chance.randrange(len(lines))
        how = chance.randrange(4)
        if how == 0:
            del lines[i]
        elif how == 1:
            lines.insert(i, lines[j])
        elif how == 2:
            lines[i], lines[j] = lines[j], lines[i]
        else:
            name, equals, value = lines[i].partition("=")
            written = chance.choice((*WRITTEN, value.strip() + "0", value.strip()[1:]))
            lines[i] = f"{name}= {written}" if equals else name[:-1]
        lines = lines or [""]
    return "\n".join(lines) + "\n"


def mutated_data(data: Any, chance: random.Random) -> Any:
    """A copy in which one place, or a few, is another value, is gone, is there twice or has another's name."""
    made = copy.deepcopy(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(_places(made))
        if not places:
            return made
        holder, key = chance.choice(places)
        _change(holder, key, chance, places)
    return made


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    keys = data.keys() if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in list(keys):
        yield data, key
        yield from _places(data[key])


def _change(holder: Any, key: Any, chance: random.Random, places: list[tuple[Any, Any]]) -> None:
    value, how = holder[key], chance.randrange(7)
    if how == 0:
        del holder[key]
    elif how == 1:
        holder[key] = chance.choice(HOSTILE)
    elif how == 2:
        other, place = chance.choice(places)
        holder[key] = copy.deepcopy(other[place]) if place in _keys(other) else chance.choice(HOSTILE)
    elif how == 3 and isinstance(holder, list):
        holder.insert(chance.randrange(len(holder) + 1), copy.deepcopy(value))
    elif how == 3:
        holder[f"{key}{chance.choice('x 0')}"] = holder.pop(key)
    elif how == 4 and isinstance(holder, list) and len(holder) > 1:
        other = chance.randrange(len(holder))
        holder[key], holder[other] = holder[other], value
    elif isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, (int, float)):
        holder[key] = chance.choice((value + 1, value - 1, value * 2, value // 2, -value, str(value)))
    elif isinstance(value, str):
        holder[key] = chance.choice((_letters(value, chance), chance.choice(LAYOUTS)))
    else:
        holder[key] = chance.choice(HOSTILE)


def _keys(holder: Any) -> Any:
    return holder.keys() if isinstance(holder, dict) else range(len(holder))


def _letters(text: str, chance: random.Random) -> str:
    place = chance.randrange(len(text) + 1)
    put = chance.choice(("", "0", "1", "2", "/2@1", ",2@1", ">", "·", ".", " ", "x"))
    return text[:place] + put + text[place + chance.randrange(2) :]
