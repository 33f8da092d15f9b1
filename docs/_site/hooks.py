"""What mkdocs is told beside `mkdocs.yml`: the reference of everything in `autotp.__all__`, written from docstrings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import autotp
from autotp import errors

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

# Files of the repository are no part of the site: of a link to one its words are left.
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./(?:examples|tests|rules|autotp|README\.md)[^)]*\)")

NOT_RUN = re.compile(r"^(```python) no-run$", re.MULTILINE)


def home(name: str) -> str:
    """Where a public name is defined, as documentation is looked for: `autotp.api.plan`."""
    if hasattr(errors, name):
        return f"autotp.errors.{name}"
    if name == "verify":  # a folder too
        return "autotp.verify.entry.verify"
    return f"autotp{autotp.HOMES[name]}.{name}"


def pages() -> dict[str, str]:
    """The pages of the reference: the paths and the text."""
    names = [name for name in autotp.__all__ if not hasattr(errors, name)]
    groups = {
        "functions": ("Functions", [name for name in names if name[0].islower()]),
        "classes": ("Classes", [name for name in names if name[0].isupper()]),
        "errors": ("Errors", [name for name in autotp.__all__ if hasattr(errors, name)]),
    }
    return {
        f"reference/{path}.md": "\n\n".join([f"# {title}", *map(_entry, members)]) + "\n"
        for path, (title, members) in groups.items()
    }


def _entry(name: str) -> str:
    return f"::: {home(name)}\n    options:\n      heading: autotp.{name}\n      toc_label: {name}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Take out links to what the site does not have, and what only tests read: that a block is not run. In the words of an
    error, `['a']['b']` is no link."""
    return NOT_RUN.sub(r"\1", OUTSIDE.sub(r"\1", markdown)).replace("]['", "]\\['")
