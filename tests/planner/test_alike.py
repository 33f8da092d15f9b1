"""Units whose graphs say the same to a planner are one problem, and are chosen for once; all that a plan depends on tells them
apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import autotp
from autotp.planner import choose
from autotp.planner.survey import Survey, survey
from autotp.session.study import Study
from autotp.verify import verify

WIDTH = 8
X = torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True)


class Block(nn.Module):
    """An MLP; what it notes is read and handed to a function that has no use for it."""

    def __init__(self, note: object = None, scale: float = 1.0, width: int = 4 * WIDTH) -> None:
        super().__init__()
        self.note, self.scale = note, scale
        self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.hidden(self.up(x), self.note) * self.scale)

    def hidden(self, y: torch.Tensor, note: object) -> torch.Tensor:
        return torch.tanh(y) if note == "tanh" else torch.relu(y)


class Kept:
    """What blocks keep, by name."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}

    def keep(self, name: str, value: torch.Tensor) -> torch.Tensor:
        self.values[name] = value
        return value


class Keeping(Block):
    """Lets an object keep what it computes, under a name."""

    def forward(self, x: torch.Tensor, kept: Kept) -> torch.Tensor:  # type: ignore[override]
        return x + self.down(kept.keep(str(self.note), self.hidden(self.up(x), None)))


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module, keeping: bool = False) -> None:
        super().__init__()
        self.blocks, self.keeping = nn.ModuleList(blocks), keeping

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (Kept(),) if self.keeping else ()
        for block in self.blocks:
            x = block(x, *kept)
        return x


def found(model: nn.Module) -> Survey:
    return survey(model.double(), [((X,), {}), ((torch.cat((X, X)),), {})])


def problems(model: nn.Module) -> tuple[int, int]:
    """How many structures of units a model has, and as how many they are planned."""
    made = found(model).problems
    return len(made), len({id(problem) for problem in made.values()})


def test_what_is_read_and_not_used_makes_no_problem_of_its_own() -> None:
    assert problems(Stack(Block(512), Block(None), Block(512))) == (2, 1)


@pytest.mark.parametrize(
    "other",
    [lambda: Block("tanh"), lambda: Block(scale=2.0), lambda: Block(width=2 * WIDTH)],
    ids=["operator", "number", "size"],
)
def test_another_graph_is_another_problem(other: Callable[[], nn.Module]) -> None:
    assert problems(Stack(Block(), other())) == (2, 2)


def test_the_name_under_which_an_object_keeps_something_says_nothing() -> None:
    assert problems(Stack(Keeping("one"), Keeping("other"), keeping=True)) == (2, 1)


def test_a_parameter_that_others_use_makes_another_problem() -> None:
    class Scaling(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight: torch.Tensor = self.blocks[1].up.weight  # type: ignore[union-attr, assignment]
            return super().forward(x) * weight.mean()

    assert problems(Scaling(Block(512), Block())) == (2, 2)


def test_units_of_one_problem_are_chosen_for_once_and_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    placed, seen = vars(choose)["place"], list[int]()

    def counted(*args: object, **options: object) -> object:
        seen.append(1)
        made: object = placed(*args, **options)
        return made

    monkeypatch.setattr(choose, "place", counted)

    def plan(*blocks: nn.Module) -> tuple[int, autotp.Plan]:
        seen.clear()
        model = Stack(*blocks).double()
        made = Study(model, example=(X,)).plan(2)
        return len(seen), made

    alone, _ = plan(Block(512), Block(512))
    together, made = plan(Block(512), Block(None))
    assert together == alone
    assert len(made.units) == 2
    assert made.units[0].layouts() == made.units[1].layouts() != {}
    model = Stack(Block(512), Block(None)).double()
    verify(model, 2, example=(X,)).raise_for_failure()
