"""The records of operators: signatures and element-wise classes from `rules/ops/*.toml`, the rest from `axes.operators`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import RuleError
from ..outside.rule_files import RULES, read_rules
from .annotation import annotation
from .call import Call, is_tensor
from .facts import Fact, Gradient
from .function import FunctionRule, parse_function
from .record import Operator, Rule
from .rule_schema import operator_schema
from .signature import Signature, parse_signature


@dataclass(frozen=True)
class Pointwise:
    """An element-wise operator: all operands' dims are equal where they do not broadcast.

    `linear` and `zeros` say in which groups of operands (see `Fact`), `nonzero` which operands must not be zero.
    """

    linear: str = ""
    zeros: str = ""
    nonzero: str = ""

    def __call__(self, call: Call) -> Fact:
        value = call.node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return unruled(call)
        dims = call.broadcast([call.dims(operand) for operand in call.operands])
        if [term.size for term in dims] != call.shape():
            return unruled(call)
        if "first" in (self.linear, self.zeros) and not is_tensor(call.get("self")):
            return SINGULAR(call)
        groups: dict[str, list[list[int]]] = {
            "": [],
            "jointly": [list(range(len(call.operands)))],
            "each": [[i] for i in range(len(call.operands))],
            "first": [[0]],
        }
        affine = self.linear == "jointly" and any(_is_shift(call.get(name)) for name in ("other", "self"))
        return call.fact(
            dims,
            linear=() if affine or _rounds(call) else groups[self.linear],
            zeros=() if affine else groups[self.zeros],
            nonzero={"": (), "rest": range(1, len(call.operands)), "all": range(len(call.operands))}[self.nonzero],
        )


def _is_shift(value: Any) -> bool:
    """Returns if an operand of a sum is a number: `x + 1` is neither linear nor zero where x is zero."""
    return not (value is None or is_tensor(value) or (isinstance(value, (int, float)) and value == 0))


def _rounds(call: Call) -> bool:
    """Returns if the result is a whole number where the operands need not be, by its type or on request."""
    to_whole = _is_whole(call.node.meta["val"]) and not all(_is_whole(operand.meta["val"]) for operand in call.operands)
    return to_whole or call.get("rounding_mode") is not None


def _is_whole(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


@dataclass(frozen=True)
class Power:
    """`x ** n` is zero where x is for a number n of at least one; any other power is not even finite there."""

    def __call__(self, call: Call) -> Fact:
        exponent = call.get("exponent")
        smooth = isinstance(exponent, (int, float)) and exponent >= 1
        return (CLASSES["zero_to_zero"] if smooth else SINGULAR)(call)


SINGULAR = Pointwise(nonzero="all")
# The classes a rule file may put element-wise operators into.
CLASSES: Mapping[str, Rule] = {
    "linear_jointly": Pointwise("jointly", "jointly"),
    "linear_each": Pointwise("each", "each"),
    "quotient": Pointwise("first", "first", "rest"),
    "remainder": Pointwise("", "first", "rest"),
    "zero_to_zero": Pointwise("", "jointly"),
    "power": Power(),
    "singular": SINGULAR,
    "other": Pointwise(),
}


def unruled(call: Call) -> Fact:
    """An operator without a rule: every axis it touches stays whole."""
    for operand in call.operands:
        call.pin(call.fact_of(operand).dims, "there is no rule for this operator")
    value = call.node.meta.get("val")
    outputs = [value] if isinstance(value, torch.Tensor) else [v for v in value or () if isinstance(v, torch.Tensor)]
    dims = [call.fresh(call.sizes(size) for size in output.shape) for output in outputs]
    for result in dims:
        call.pin(result, "there is no rule for this operator")
    return call.fact(*dims)


@functools.cache
def operator_rules(folders: tuple[Path, ...] = ()) -> Mapping[str, Operator]:
    """All operators by name. A later folder's rule takes the place of an earlier one; what else is known of the operator stays.

    Raises RuleError naming file, entry and nearest known word for anything a file says that has no meaning.
    """
    from .operators import CODE

    known: dict[str, Operator] = dict(CODE)
    paths = [path for folder in (RULES, *folders) for path in sorted((folder / "ops").glob("*.toml"))]
    for path in paths:
        tables = dict(read_rules(path, operator_schema(CLASSES)))
        for name, rule in _rules(path, tables).items():
            known[name] = replace(known[name], rule=rule) if name in known else Operator(rule)
        for gradient, name in _gradients(tables):
            if name not in known:
                raise RuleError(MSG_WITHOUT_RULE.format(path=path, name=name))
            known[name] = replace(known[name], gradient=gradient)
    return known


def rule_for(call: Call, rules: Mapping[str, Operator]) -> Rule:
    """The rule of a call: by name, else PyTorch's own element-wise tag, else none.

    Other objects may have a method of the same name that is something else: a rule is for those of its package that it fits.
    """
    target, known = call.node.target, rules.get(call.name)
    if known is not None:
        other = (
            annotation(call.node).opaque is not None
            and isinstance(known.rule, Signature)
            and not _is_for(known.rule, call)
        )
        by_data = known.local == "count" and isinstance(call.get(known.argument), torch.fx.Node)  # as many as a size is
        return unruled if other or by_data else known
    if isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags:
        return SINGULAR
    return unruled


def rule_for_write(call: Call, rules: Mapping[str, Operator]) -> Rule | None:
    """The rule of `x.op_(..)` that works element by element and writes into a parameter's own data, and nowhere else: each rank
    writes its part. None for all other writes."""
    target, shared = call.node.target, annotation(call.node).writes or ()
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if not all(annotation(each).parameter or annotation(each).data or _is_written_whole(each) for each in shared):
        return None
    known = rules.get(call.name.removesuffix("_"))
    return known if known is not None and isinstance(known.rule, Pointwise | Power) else None


def _is_written_whole(node: torch.fx.Node) -> bool:
    """Returns if a node writes all elements of its first operand in place, and gives that back."""
    written: Any = node.args[:1]
    return annotation(node).writes is not None and all(node.meta["val"].shape == w.meta["val"].shape for w in written)


def _is_for(rule: Signature, call: Call) -> bool:
    """Returns if a rule is for the method of a Python object: an object of another package in it may do anything."""
    of = annotation(call.node)
    return rule.fits(call) and rule.is_for(of.owner, of.holding)


def _rules(path: Path, tables: Mapping[str, Any]) -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    owner = tables.get("of", "")
    for namespace, entries in tables.items():
        for name, entry in entries.items() if namespace != "of" else ():
            if namespace not in _PYTHON and name == "gradient":
                continue
            if namespace != "function" and name == "pointwise":
                rules |= {f"{namespace}.{each}": CLASSES[kind] for kind, names in entry.items() for each in names}
                continue
            options = {"signature": entry} if isinstance(entry, str) else dict(entry)
            parse = parse_function if namespace == "function" else parse_signature
            try:
                whose = {"owner": owner} | (
                    {"holding": frozenset(options.pop("holding", "").split())} if namespace == "opaque" else {}
                )
                rules[f"{namespace}.{name}"] = replace(parse(options.pop("signature"), **options), **whose)
            except RuleError as error:
                raise RuleError(f"{path}: {namespace}.{name}: {error}") from error
    if not owner and (python := _PYTHON & tables.keys()):
        raise RuleError(MSG_OF.format(path=path, table=sorted(python)[0]))
    return rules


def _gradients(tables: Mapping[str, Any]) -> Iterator[tuple[Gradient, str]]:
    """What a file says of derivatives: what they read, and the operator."""
    for namespace in tables.keys() - {*_PYTHON, "of"}:
        for kind, names in tables[namespace].get("gradient", {}).items():
            yield from ((kind, f"{namespace}.{name}") for name in names)


# Tables of what is Python's: a name alone says nothing, since anybody may call something else by it.
_PYTHON = frozenset({"function", "opaque"})
MSG_OF = (
    '{path}: [{table}] needs the package that defines what it names, in a line before it such as of = "transformers"'
)


MSG_WITHOUT_RULE = "{path}: the table of gradients names {name}, which has no rule in this file or an earlier one"


def function_rules(folders: tuple[Path, ...] = ()) -> dict[str, FunctionRule]:
    """The rules of Python functions, by the functions' names."""
    named = {name: known.rule for name, known in operator_rules(folders).items()}
    return {name.partition(".")[2]: rule for name, rule in named.items() if isinstance(rule, FunctionRule)}
