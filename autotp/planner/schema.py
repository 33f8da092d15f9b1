"""The JSON Schema of plan files, made from the records that they hold; docs/plan.schema.json is what this gives."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin, get_type_hints

from .plan import VERSION, Plan

ADDRESS = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {bool: "boolean", str: "string", int: "integer", float: "number"}
_WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("ParameterPlan", "placement"): ("column", "row", "vocabulary", "expert", "replicated"),
    ("CollectivePlan", "kind"): ("all_reduce", "all_gather", "reduce_scatter"),
    ("CollectivePlan", "phase"): ("forward", "backward"),
    ("CollectivePlan", "of"): ("activation", "parameter", "buffer"),
}


def plan_schema() -> dict[str, Any]:
    """The schema as plain data. What it cannot say, that layouts fit their shapes and each other, `Plan.from_json` checks."""
    definitions: dict[str, Any] = {}
    root = _object(Plan, definitions)
    root["properties"]["version"] = {"const": VERSION}
    root["properties"]["tp"]["minimum"] = 1
    title = {"$schema": ADDRESS, "title": "autotp plan", "description": f"A tensor-parallel plan, version {VERSION}."}
    return {**title, **root, "$defs": definitions}


def _object(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties = {f.name: _type(kind, f.name, hints[f.name], definitions) for f in dataclasses.fields(kind)}
    required = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _type(kind: type[Any], name: str, hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {
                "description": (hint.__doc__ or "").split("\n\n")[0],
                **_object(hint, definitions),
            }
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _type(kind, "", get_args(hint)[0], definitions)}
    words = _WORDS.get((kind.__name__, name))
    return {"enum": list(words)} if words else {"type": _PLAIN[hint]}
