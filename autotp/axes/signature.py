"""Operator signatures, einsum-like: `... i, o i, o? -> ... o`.

One group of letters per tensor operand and per result. Equal letters are one term, a letter missing on the right is
contracted, `...` is any number of leading dims (broadcast), a group ending in `?` may be absent, and a dim of size one
broadcasts against a larger one of the same letter. `*` as the last operand is any number of further ones, which are whole.

What has a letter that is summed over is a factor of a product; of the other operands those are added to it that have a
letter which need not be whole, the rest only say how (an index).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..errors import RuleError
from .call import Call
from .facts import Fact, Pick
from .term import ONE, Dims, Term, axis

_GROUP = re.compile(r"^(\.\.\.)?\s*((?:[A-Za-z]\s*)*)(\?)?$")


@dataclass(frozen=True)
class Group:
    """The letters of one operand or result."""

    letters: tuple[str, ...]
    leading: bool
    optional: bool


@dataclass(frozen=True)
class Signature:
    """A parsed signature with the letters that must stay whole, and those of which an object keeps the last few (`passing`).

    A method's has the package that defines it as `owner`; `holding` are the packages that its object may hold objects of.
    """

    operands: tuple[Group, ...]
    results: tuple[Group, ...]
    whole: frozenset[str]
    attends: bool = False
    zero_to_zero: bool = False
    picks: tuple[str, ...] = ()
    owner: str = ""
    holding: frozenset[str] = frozenset()
    takes_more: bool = False
    passing: frozenset[str] = frozenset()

    @property
    def contracted(self) -> frozenset[str]:
        """Letters that no result has, but for those that are picked and not summed over."""
        kept = {letter for group in self.results for letter in group.letters} | set(self.picks)
        return frozenset(letter for group in self.operands for letter in group.letters) - kept

    def __call__(self, call: Call) -> Fact:
        """State the equations of one call."""
        return _Application(self, call).fact()

    def fits(self, call: Call) -> bool:
        """Returns if the operands and results of a call are as many, and have as many dims, as the signature says."""
        value = call.node.meta["val"]
        results = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        operands, given = self.groups(len(call.operands)), [len(call.dims(operand)) for operand in call.operands]
        return (
            (len(operands) == len(given) or (self.takes_more and len(operands) < len(given)))
            and len(results) <= len(self.results)
            and all(map(_has_room, operands, given))
            and all(_has_room(group, result.dim()) for group, result in zip(self.results, results, strict=False))
        )

    def is_for(self, owner: str | None, holding: frozenset[str]) -> bool:
        """Returns if a method is the one that this tells of: by the package that defines it, and by those that define what its
        object holds."""
        return self.owner == owner and holding <= {self.owner, *self.holding}

    def is_of_operand(self, result: int, dim: int) -> bool:
        """Returns if a dim of a result, counted from the end, is one of an operand."""
        letters = self.results[result].letters[dim:][:1] if result < len(self.results) else ()
        return any(letters[0] in group.letters for group in self.operands) if letters else False

    def groups(self, count: int) -> list[Group]:
        """The groups of so many operands: an optional one is dropped when there are fewer operands than groups."""
        groups = list(self.operands)
        for group in reversed(self.operands):
            if len(groups) > count and group.optional:
                groups.remove(group)
        return groups


def _has_room(group: Group, dims: int) -> bool:
    return dims == len(group.letters) or (group.leading and dims > len(group.letters))


def parse_signature(
    text: str, whole: str = "", *, attends: bool = False, zero_to_zero: bool = False, picks: str = "", passing: str = ""
) -> Signature:
    """Read a signature; with `zero_to_zero` results are zero where all operands are.

    `picks` are three letters: rows, the parts of a table of which each row takes one, and where the rows of each part end.

    Raises RuleError with the group it cannot read or the letter it does not know.
    """
    if text.count("->") != 1:
        raise RuleError(f"the signature {text!r} needs exactly one '->', as in '... i, o i, o? -> ... o'")
    left, right = text.split("->")
    named, takes_more = left.split(","), left.split(",")[-1].strip() == "*"
    operands = tuple(_group(part, text) for part in (named[:-1] if takes_more else named))
    results = tuple(_group(part, text) for part in right.split(","))
    known = {letter for group in operands for letter in group.letters}
    for name, letters in (("whole", whole), ("passing", passing)):
        for letter in letters.split():
            if letter not in known:
                raise RuleError(f"'{name}' names {letter!r}, which the signature {text!r} does not have")
    if any(group.optional for group in results):
        raise RuleError(f"a result of the signature {text!r} cannot be optional")
    if picks and not _can_pick(picks.split(), operands, results):
        raise RuleError(
            f"'picks' of the signature {text!r} is {picks!r}; name three of its letters: rows, which the only result has, the "
            "parts of a table, and where the rows of each part end, which is all that some operand has"
        )
    held, chosen, few = frozenset(whole.split()), tuple(picks.split()), frozenset(passing.split())
    return Signature(operands, results, held, attends, zero_to_zero, chosen, takes_more=takes_more, passing=few)


def _can_pick(letters: list[str], operands: tuple[Group, ...], results: tuple[Group, ...]) -> bool:
    if len(letters) != 3 or len(results) != 1 or results[0].leading:
        return False
    rows, parts, ends = letters
    tables = [group for group in operands if parts in group.letters]
    says = [group for group in operands if ends in group.letters]
    fits = rows in results[0].letters and not {parts, ends} & set(results[0].letters)
    return fits and len(tables) == 1 and [group.letters for group in says] == [(ends,)]


def _group(part: str, text: str) -> Group:
    match = _GROUP.match(part.strip())
    if match is None:
        raise RuleError(f"cannot read {part.strip()!r} in the signature {text!r}; write single letters, '...' and '?'")
    return Group(tuple(match[2].split()), bool(match[1]), bool(match[3]))


class _Application:
    """A signature applied to a call: one term a letter, filled in operand by operand."""

    def __init__(self, signature: Signature, call: Call) -> None:
        self.signature, self.call = signature, call
        self.terms: dict[str, Term] = {}
        self.leading: list[Dims] = []

    def fact(self) -> Fact:
        operands = self._match_operands()
        for dims, group in operands:
            self._bind(dims, group)
        leading = self.call.broadcast(self.leading) if self.leading else ()
        whole = [self.terms[letter] for letter in self.signature.whole if letter in self.terms]
        self.call.pin(whole, "the operator needs this dimension whole")
        contracted = [self.terms[letter] for letter in sorted(self.signature.contracted) if letter in self.terms]
        value = self.call.node.meta["val"]
        results = self.signature.results[: len(value)] if isinstance(value, (list, tuple)) else self.signature.results
        outputs = [self._result(group, leading, number) for number, group in enumerate(results)]
        factors, added = self._roles([group for _, group in operands])
        found = self.call.fact(
            *outputs,
            contracts=contracted,
            linear=[[i] for i in factors] if not added else (),
            zeros=[range(len(operands))] if self.signature.zero_to_zero else [[i, *added] for i in factors],
            attends=self.signature.attends,
            pick=self._pick(operands) if self.signature.picks else None,
        )
        return replace(found, passing=tuple(self.terms[letter] for letter in sorted(self.signature.passing)))

    def _pick(self, operands: list[tuple[Dims, Group]]) -> Pick:
        rows, parts, ends = self.signature.picks
        place = next(i for i, (_, group) in enumerate(operands) if group.letters == (ends,))
        dim = self.signature.results[0].letters.index(rows)
        return self.call.pick(self.terms[rows], dim, self.terms[parts], self.call.operands[place], ends=True)

    def _roles(self, groups: list[Group]) -> tuple[list[int], list[int]]:
        """The operands that are multiplied, and those that are added to their product."""
        whole = self.signature.whole
        summed = self.signature.contracted - whole
        factors = [i for i, group in enumerate(groups) if summed & set(group.letters)]
        if len(factors) < 2:
            return [], []
        return factors, [i for i, group in enumerate(groups) if i not in factors and not set(group.letters) <= whole]

    def _match_operands(self) -> list[tuple[Dims, Group]]:
        """Operands in schema order, with their groups."""
        dims = [self.call.dims(operand) for operand in self.call.operands]
        groups = self.signature.groups(len(dims))
        if self.signature.takes_more:
            for more in dims[len(groups) :]:
                self.call.pin(more, "the operator needs this operand whole")
            dims = dims[: len(groups)]
        if len(groups) != len(dims):
            raise RuleError(
                f"{self.call.name} has {len(dims)} tensor operands at {self.call.node.name}, its signature {len(groups)}"
            )
        return list(zip(dims, groups, strict=True))

    def _bind(self, dims: Dims, group: Group) -> None:
        count = len(dims) - len(group.letters)
        if not _has_room(group, len(dims)):
            raise RuleError(
                f"an operand of {self.call.name} at {self.call.node.name} has {len(dims)} dims, not {group}"
            )
        if group.leading:
            self.leading.append(dims[:count])
        for letter, term in zip(group.letters, dims[count:], strict=True):
            known = self.terms.get(letter, ONE)
            if known.size == 1:
                self.terms[letter] = term
            elif term.size != 1:
                self.call.equal(known, term)

    def _result(self, group: Group, leading: Dims, number: int) -> Dims:
        several = isinstance(self.call.node.meta["val"], (list, tuple))
        shape = self.call.shape(number if several else None)
        letters = shape[len(shape) - len(group.letters) :] if group.letters else []
        for letter, size in zip(group.letters, letters, strict=True):
            self.terms.setdefault(letter, axis(size))
        return (leading if group.leading else ()) + tuple(self.terms[letter] for letter in group.letters)
