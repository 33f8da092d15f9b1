"""What a file of operator rules may say, as a JSON Schema; each `description` is what an error says is expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from .facts import Gradient

_TEXT = {"type": "string", "maxLength": 1000, "description": "text such as 'x: b t c, A: c -> b t c'"}
_LETTERS = {**_TEXT, "description": "text such as '... i, o i, o? -> ... o'"}
_FLAG = {"type": "boolean", "description": "true or false"}
_FUNCTION: Mapping[str, Any] = {
    **dict.fromkeys(("signature", "whole", "zeros", "writes", "unused"), _TEXT),
    "zeros_if": {
        "type": "object",
        "additionalProperties": {"type": "array", "description": "a list of constants"},
        "description": "a table such as { activation = ['silu'] }",
    },
    "zero_results": {"type": "integer", "minimum": 0, "description": "a number of results"},
}
_OPERATOR: Mapping[str, Any] = {
    **dict.fromkeys(("signature", "whole", "picks"), _LETTERS),
    **dict.fromkeys(("attends", "zero_to_zero"), _FLAG),
}
_METHOD: Mapping[str, Any] = {
    **_OPERATOR,
    "passing": _LETTERS,
    "holding": {**_TEXT, "description": "names of packages, such as 'optimum'"},
}


def operator_schema(classes: Iterable[str]) -> dict[str, Any]:
    """The schema of a file, given the classes of element-wise operators."""
    names = {
        "type": "array",
        "items": {"type": "string", "description": "the name of an operator"},
        "description": 'a list such as ["add", "sub"]',
    }
    pointwise = _table("a table such as [aten.pointwise]", dict.fromkeys(classes, names), False)
    gradient = _table("a table such as [aten.gradient]", dict.fromkeys(get_args(Gradient), names), False)
    tables = {"pointwise": pointwise, "gradient": gradient}
    namespace = _table("a table such as [aten]", tables, _entry(_OPERATOR))
    functions = _table("a table such as [function]", {}, _entry(_FUNCTION))
    methods = _table("a table such as [opaque]", {}, _entry(_METHOD))
    package = {**_TEXT, "description": 'the package of these functions and methods, such as "transformers"'}
    return _table("tables of rules", {"function": functions, "opaque": methods, "of": package}, namespace)


def _table(words: str, properties: Mapping[str, Any], others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": others, "description": words}


def _entry(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A signature, or a table with one."""
    words = f"a signature, or a table with one: {settings['signature']['description']}"
    table = _table(words, settings, False)
    return {**table, "type": ["string", "object"], "maxLength": 1000, "required": ["signature"]}
