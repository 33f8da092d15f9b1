"""The types of models that transformers knows, read from its files: importing it takes seconds, and a name is checked first."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError, nearest

TABLE = "CONFIG_MAPPING_NAMES"
FILES = ("auto_mappings.py", "configuration_auto.py")
MOST_NAMED = 5
MSG_UNKNOWN = "{name!r} is no folder, no config.json and no model type{nearest}"


@functools.cache
def names_in_files() -> frozenset[str]:
    """The types in the table of transformers as its files write it; none where they cannot be read."""
    spec = importlib.util.find_spec("transformers")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    files = [file for folder in folders for name in FILES if (file := folder / "models" / "auto" / name).is_file()]
    try:
        return frozenset(name for file in files for name in _entries(ast.parse(file.read_text(encoding="utf-8"))))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return frozenset()


def _entries(tree: ast.Module) -> Iterator[str]:
    """The keys of every dict, and of every list of pairs, that a statement about the table has."""
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=table)], value=value) if table == TABLE:
                yield from _keys(value)
            case ast.AnnAssign(target=ast.Name(id=table), value=ast.expr() as value) if table == TABLE:
                yield from _keys(value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=table)), args=[value])) if table == TABLE:
                yield from _keys(value)


def _keys(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        match node:
            case ast.Dict(keys=keys):
                yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
            case ast.Tuple(elts=[ast.Constant(value=str(name)), ast.Constant()]):
                yield name


def unknown_type(name: str, known: frozenset[str]) -> UsageError:
    """The error for a name that is nothing known."""
    return UsageError(MSG_UNKNOWN.format(name=name, nearest=nearest(name, known, MOST_NAMED)))


def check_named(source: str) -> None:
    """Raises UsageError for what can be no model: neither a path that exists, nor an id, nor a type that the files name."""
    known = names_in_files()
    if known and source not in known and "/" not in source and not Path(source).exists():
        raise unknown_type(source, known)


def names_a_type(source: str) -> bool:
    """Returns if a source is a model type such as `gpt2`, and no file or folder of that name."""
    return source in names_in_files() and not Path(source).exists()
