"""Every text that autotp raises on purpose, read from its source: what is filled in is `…`."""

from __future__ import annotations

import ast
import functools
import string
from collections.abc import Iterator
from pathlib import Path

from autotp import errors

PACKAGE = Path(errors.__file__).parent
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.AutotpError)}
# What stands for one of them: a parameter that says which one a reader of files raises, or a function that makes one.
MAKERS = {"error", "fail", "refusal", "truncated", "CannotUnify", "CaptureError", "Illegal", "UnsuitableError"}


def text_of(node: ast.expr, constants: dict[str, str]) -> str | None:
    """The text of an expression, with `…` for what is filled in; None where it is not written here."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return (text_of(left, constants) or "…") + (text_of(right, constants) or "…")
        case ast.IfExp(body=body, orelse=other):
            return text_of(body, constants) or text_of(other, constants)
        case ast.Call(func=ast.Attribute(value=inner, attr="format")):
            return text_of(inner, constants)
        case ast.Name(id=name) if name in constants:
            return constants[name]
    return None


def _filled(text: str) -> str:
    return "".join(before + ("" if field is None else "…") for before, field, *_ in string.Formatter().parse(text))


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module keeps under a name, their fields filled in."""
    return {
        target.id: _filled(text)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id.startswith("MSG_")
        if (text := text_of(statement.value, {})) is not None
    }


def texts(path: Path) -> Iterator[str]:
    """The texts that one file raises, and those that it keeps for that."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = _constants(tree)
    yield from constants.values()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in KINDS | MAKERS
            and node.args
        ):
            found = text_of(node.args[0], constants)
            if found is not None and found.strip("… :"):
                yield found


@functools.cache
def all_texts() -> dict[str, list[str]]:
    """Of every file that raises something: the texts, each in one line and once."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = list(dict.fromkeys(" ".join(text.split()) for text in texts(path)))
        if lines:
            found[path.relative_to(PACKAGE).as_posix()] = lines
    return found
