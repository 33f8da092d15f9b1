"""The pages on errors: a section for each kind, with what to do and the texts themselves."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

from .texts import all_texts

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "troubleshooting"
REMEDIES = Path(__file__).with_name("remedies.toml")
HEAD = "Look for the message; `…` stands for what is filled in. Above the messages it says what to do.\n"


@functools.cache
def remedies() -> dict[str, Any]:
    """The pages as they are described."""
    return tomllib.loads(REMEDIES.read_text(encoding="utf-8"))


def sections_of(file: str) -> list[str]:
    """The headings of the sections that a file's texts stand in: those that name it, else its nearest folder."""
    places = {
        place: section for page in remedies().values() for section in page["sections"] for place in section["files"]
    }
    near = [place for place in places if file == place or file.startswith(f"{place}/")]
    return [places[place]["heading"] for place in near if len(place) == max(map(len, near))]


def pages() -> dict[str, str]:
    """All pages by name."""
    found, written = all_texts(), {}
    for name, page in remedies().items():
        parts = [f"# {page['title']}\n", HEAD]
        for section in page["sections"]:
            lines = [text for file, texts in found.items() if section["heading"] in sections_of(file) for text in texts]
            listed = "\n".join(f"    {line}" for line in dict.fromkeys(lines))
            parts.append(f"## {section['heading']}\n\n{section['remedy']}\n\n{listed}\n")
        written[f"{name}.md"] = "\n".join(parts)
    return written
