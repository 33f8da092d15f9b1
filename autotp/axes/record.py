"""One record per operator: everything that is known of it, whatever it is called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from .call import Call
from .facts import Fact, Gradient, Local

Rule: TypeAlias = Callable[[Call], Fact]


@dataclass(frozen=True)
class Operator:
    """What is known of an operator. The rest is in its schema: what it writes, whether it draws random numbers.

    Attributes:
        rule: states the equations of a call, and in which operands it is linear.
        local: how its arguments become local; `argument` is the one that has the sizes, for those that need its name.
        gradient: what its derivative reads.
        view: whether the result is always in the memory of the first operand.
    """

    rule: Rule
    local: Local = ""
    argument: str = ""
    gradient: Gradient = "operands"
    view: bool = False

    def __call__(self, call: Call) -> Fact:
        """The fact of one call: its equations, and what holds for every call."""
        fact = self.rule(call)
        return replace(fact, local=self.local, argument=self.argument, gradient=self.gradient, view=self.view)
