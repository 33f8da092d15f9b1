"""Units: which modules are traced as a whole, and which of them share one trace."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from autotp.capture.units import Unit, find_units, has_matrix


class Called(nn.Module):
    """A module that can be called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Block(Called):
    """A block with an index among its siblings, and a setting that is not one."""

    def __init__(self, index: int = 0, scale: float = 1.0, width: int = 24) -> None:
        super().__init__()
        self.index, self.scale = index, scale
        self.up, self.down = nn.Linear(16, width), nn.Linear(width, 16)


class Model(Called):
    def __init__(self, blocks: nn.Module, **others: nn.Module) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 16)
        self.blocks = blocks
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)
        for name, module in others.items():
            setattr(self, name, module)


def paths(model: nn.Module, *split: str) -> list[str]:
    return [unit.path for unit in find_units(model, frozenset(split))]


def shapes(units: tuple[Unit, ...]) -> dict[str, int]:
    return {unit.path: unit.shape for unit in units}


def listed(*blocks: nn.Module) -> nn.ModuleList:
    return nn.ModuleList(blocks)


def rows(*lists: list[nn.Module]) -> nn.ModuleList:
    return nn.ModuleList(map(nn.ModuleList, lists))


# -- which modules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", [listed, nn.Sequential], ids=["list", "sequential"])
def test_the_elements_of_a_container_are_units_and_so_is_what_remains(
    container: Callable[..., nn.Module],
) -> None:
    """In the order of the modules; the norm has no matrix."""
    model = Model(container(*(Block(i) for i in range(3))))
    assert paths(model) == ["table", "blocks.0", "blocks.1", "blocks.2", "head"]


def test_a_list_of_one_block_is_a_list_of_blocks() -> None:
    assert paths(Model(listed(Block()))) == ["table", "blocks.0", "head"]


def test_a_sequential_of_one_is_a_module_like_any_other() -> None:
    assert paths(Model(nn.Sequential(Block()))) == [""]
    assert paths(Model(nn.Sequential(Block()), stack=listed(Block()))) == ["table", "blocks", "head", "stack.0"]


def held(**modules: nn.Module) -> nn.Module:
    """A module that only holds others: it has no forward."""
    module = nn.Module()
    for name, part in modules.items():
        setattr(module, name, part)
    return module


def test_what_only_holds_modules_is_never_a_unit() -> None:
    """It is not called, whatever it is made of: a bare module, or a dict."""
    stages = listed(held(block=listed(Block(0), Block(1)), down=nn.Linear(16, 16)), held(block=listed(Block(0))))
    middle = held(first=Block(), second=Block(), named=nn.ModuleDict({"one": nn.Linear(16, 16)}))
    found = paths(Model(stages, middle=middle))
    assert found[:4] == ["table", "blocks.0.block.0", "blocks.0.block.1", "blocks.0.down"]
    assert found[4:] == ["blocks.1.block.0", "head", "middle.first", "middle.second", "middle.named.one"]


def test_nested_lists_are_searched_to_the_outermost_blocks() -> None:
    stages = listed(listed(Block(0), Block(1)), listed(Block(0)))
    assert paths(Model(stages)) == ["table", "blocks.0.0", "blocks.0.1", "blocks.1.0", "head"]


class Stage(Called):
    """A block that has blocks of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = listed(Block(0), Block(1))
        self.join = nn.Linear(16, 16)


def test_blocks_inside_of_blocks_belong_to_the_outer_ones() -> None:
    assert paths(Model(listed(Stage(), Stage()))) == ["table", "blocks.0", "blocks.1", "head"]


class Wider(Called):
    """One of several stages, each of which is wider than the one before it."""

    def __init__(self, width: int, *blocks: nn.Module, container: Callable[..., nn.Module] = listed) -> None:
        super().__init__()
        self.down = nn.Linear(width // 2, width)
        self.inner = container(*blocks)


@pytest.mark.parametrize("container", [listed, nn.Sequential], ids=["list", "sequential"])
def test_of_stages_that_all_differ_the_blocks_are_units(container: Callable[..., nn.Module]) -> None:
    first, second = (
        Wider(16, Block(0), Block(1), container=container),
        Wider(32, Block(0, width=32), container=container),
    )
    model = Model(container(first, second))
    stages = ["blocks.0.down", "blocks.0.inner.0", "blocks.0.inner.1", "blocks.1.down", "blocks.1.inner.0"]
    if container is nn.Sequential:  # of one it is no list of blocks
        assert paths(model) == ["table", "blocks.0", "blocks.1", "head"]
        second.inner.append(Block(1, width=32))
        stages.append("blocks.1.inner.1")
    assert paths(model) == ["table", *stages, "head"]
    own = shapes(find_units(model))
    assert own["blocks.0.inner.0"] == own["blocks.0.inner.1"] != own["blocks.1.inner.0"]


class Other(Block):
    """A block of another class."""


STAGES: dict[str, Callable[[], nn.Module]] = {
    "two of them are alike": lambda: listed(*(Wider(width, Block(), Block()) for width in (16, 16, 32))),
    "one of them has no blocks": lambda: listed(Wider(16, Block(), Block()), Block(), Block(width=8)),
    "their blocks are of two classes": lambda: listed(Wider(16, Block(), Other()), Wider(32, Block(), Other())),
    "each has blocks of its own class": lambda: listed(Wider(16, Block(), Block()), Wider(32, Other(), Other())),
    "there is one of them": lambda: listed(Wider(16, Block(), Block())),
}


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_other_elements_with_blocks_in_them_are_blocks(stages: Callable[[], nn.Module]) -> None:
    blocks = stages()
    assert paths(Model(blocks)) == ["table", *(f"blocks.{i}" for i in range(len(list(blocks.children())))), "head"]


def test_a_list_of_layers_without_children_is_no_list_of_blocks() -> None:
    model = Called()
    model.experts = listed(nn.Linear(16, 16), nn.Linear(16, 16))
    assert paths(Model(listed(Block()), experts=model)) == ["table", "blocks.0", "head", "experts"]


class One(Called):
    """A matrix with a norm behind it."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.matrix, self.norm = nn.Linear(width, wide), nn.LayerNorm(wide)


@pytest.mark.parametrize("container", [listed, nn.Sequential], ids=["list", "sequential"])
def test_matrices_of_which_one_ends_the_cut_of_another_stay_together(container: Callable[..., nn.Module]) -> None:
    assert paths(nn.Sequential(container(One(16, 24), One(24, 16)))) == [""]
    assert paths(nn.Sequential(container(One(16, 24), One(24, 24), One(24, 24)))) == [""]


@pytest.mark.parametrize("container", [listed, nn.Sequential], ids=["list", "sequential"])
def test_equal_blocks_of_one_matrix_are_units(container: Callable[..., nn.Module]) -> None:
    assert paths(nn.Sequential(container(One(16, 16), One(16, 16)))) == ["0.0", "0.1"]


def test_a_model_without_blocks_is_one_unit() -> None:
    assert paths(Block()) == [""]
    assert paths(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == [""]


def test_a_model_without_matrices_has_no_unit() -> None:
    assert not has_matrix(nn.LayerNorm(4))
    assert paths(nn.Sequential(nn.LayerNorm(4), nn.ReLU())) == []


def test_a_unit_that_is_split_is_replaced_by_its_children() -> None:
    model = Model(listed(Block(0), Block(1)))
    assert paths(model, "blocks.0") == ["table", "blocks.0.up", "blocks.0.down", "blocks.1", "head"]
    assert paths(Block(), "") == ["up", "down"]


def test_splitting_the_only_block_leaves_its_parents_alone() -> None:
    assert paths(Model(listed(Block())), "blocks.0") == ["table", "blocks.0.up", "blocks.0.down", "head"]


def test_a_stage_that_is_split_gives_its_blocks() -> None:
    found = paths(Model(listed(Stage(), Stage())), "blocks.0", "blocks.1")
    assert found == [
        "table",
        *(f"blocks.{i}.{name}" for i in range(2) for name in ("inner.0", "inner.1", "join")),
        "head",
    ]


def test_every_matrix_is_in_exactly_one_unit() -> None:
    model = Model(listed(Stage(), Stage()), extra=nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
    units = paths(model)
    matrices = [name for name, parameter in model.named_parameters() if parameter.dim() >= 2]
    assert len(matrices) == 2 * 5 + 3
    for name in matrices:
        assert len([path for path in units if name.startswith(path + ".")]) == 1, name


# -- which share a trace -------------------------------------------------------------------------------------------


def test_blocks_that_differ_in_their_place_alone_share_a_shape() -> None:
    units = find_units(listed(*(Block(i) for i in range(4))))
    assert len({unit.shape for unit in units}) == 1
    assert all(unit.positions == (("", "index"),) for unit in units)
    model = listed(*(Block(i) for i in range(4)))
    assert [unit.position_values(unit.module(model)) for unit in find_units(model)] == [(0,), (1,), (2,), (3,)]


def test_a_place_may_be_counted_from_any_number() -> None:
    units = find_units(listed(Block(7), Block(8), Block(9)))
    assert len({unit.shape for unit in units}) == 1


@pytest.mark.parametrize("other", [None, 2.0, "2"])
def test_a_place_of_which_one_is_no_number_is_part_of_the_shape(other: object) -> None:
    model = Model(nn.ModuleList(Block(index) for index in range(4)))
    model.blocks[2].index = other  # type: ignore[union-attr, assignment]
    units = [unit for unit in find_units(model) if unit.path.startswith("blocks")]
    assert len({unit.shape for unit in units}) == 4
    assert not any(unit.positions for unit in units)


def test_a_number_that_is_no_place_is_part_of_the_shape() -> None:
    found = shapes(find_units(listed(Block(0), Block(5), Block(0))))
    assert found["0"] == found["2"] != found["1"]
    assert all(not unit.positions for unit in find_units(listed(Block(0), Block(5), Block(0))))


def test_an_index_inside_of_the_block_is_a_place_too() -> None:
    class Outer(Called):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.inner = Block(index)

    units = find_units(listed(Outer(0), Outer(1)))
    assert {unit.shape for unit in units} == {0}
    assert units[0].positions == (("inner", "index"),)


def test_a_differing_float_makes_a_shape_of_its_own() -> None:
    found = shapes(find_units(listed(Block(0, 1.0), Block(1, 0.5), Block(2, 1.0))))
    assert found["0"] == found["2"] != found["1"]


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.register_buffer("mask", torch.zeros(3)),
        lambda block: setattr(block, "extra", nn.ReLU()),
        lambda block: setattr(block, "name", "other"),
        lambda block: setattr(block, "sizes", (1, 2)),
        lambda block: setattr(block.up, "bias", None),
        lambda block: setattr(block, "up", nn.Linear(16, 32)),
        lambda block: block.up.to(torch.float16),
        lambda block: block.up.eval(),
        lambda block: setattr(block, "function", torch.tanh),
    ],
    ids=["buffer", "child", "text", "tuple", "no bias", "width", "dtype", "mode", "function"],
)
def test_anything_that_differs_makes_a_shape_of_its_own(change: Callable[[Block], object]) -> None:
    blocks = [Block(i) for i in range(3)]
    change(blocks[1])
    found = shapes(find_units(listed(*blocks)))
    assert found["0"] == found["2"] != found["1"]


def test_two_kinds_of_blocks_in_turn_have_two_shapes() -> None:
    """A place counts all siblings, not only those of the kind."""
    found = find_units(listed(Block(0), Stage(), Block(2), Stage()))
    numbers = shapes(found)
    assert numbers["0"] == numbers["2"] != numbers["1"] == numbers["3"]
    assert [unit.positions for unit in found] == [(("", "index"),), (), (("", "index"),), ()]


def test_equal_layers_elsewhere_share_a_shape() -> None:
    model = Model(listed(Block()), first=nn.Linear(16, 10), second=nn.Linear(16, 11))
    found = shapes(find_units(model))
    assert found["first"] == found["head"] != found["second"]


# -- lists within lists --------------------------------------------------------------------------------------------


def test_blocks_in_lists_within_a_list_are_units_that_share_a_shape() -> None:
    """As layers that are lists of norms (themselves a list), a block, and what joins its result."""
    lists = [
        [listed(nn.LayerNorm(16), nn.LayerNorm(16)), Block(width=24 + 8 * (i % 2)), nn.Identity()] for i in range(4)
    ]
    model = Model(rows(*lists))
    assert paths(model) == ["table", *(f"blocks.{i}.1" for i in range(4)), "head"]
    assert len({shapes(find_units(model))[f"blocks.{i}.1"] for i in (0, 2)}) == 1
    assert len({shapes(find_units(model))[f"blocks.{i}.1"] for i in (0, 1)}) == 2


def test_positions_in_lists_within_a_list_count_by_their_place_there() -> None:
    model = Model(rows(*([Block(i), Block(5 + i)] for i in range(3))))
    units = {unit.path: unit for unit in find_units(model)}
    assert [units[f"blocks.{i}.0"].positions for i in range(3)] == [(("", "index"),)] * 3
    assert len({units[f"blocks.{i}.{j}"].shape for i in range(3) for j in range(2)}) == 1


def test_a_list_with_bare_layers_in_it_is_part_of_what_is_around() -> None:
    """A product column by column and the one that sums over it belong together, whatever list they stand in."""
    model = nn.Sequential(Model(rows([Block(), nn.Linear(16, 16)], [Block(), nn.Linear(16, 16)])))
    assert paths(model) == [""]


def test_a_block_in_a_list_within_a_list_is_split_alone() -> None:
    model = Model(rows(*([nn.LayerNorm(16), Block(i)] for i in range(2))))
    assert paths(model, "blocks.1.1") == ["table", "blocks.0.1", "blocks.1.1.up", "blocks.1.1.down", "head"]


class Processor:
    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


HELD: dict[str, Callable[[], object]] = {
    "an object that is called": Processor,
    "its method": lambda: Processor().__call__,
    "a partial of it": lambda: functools.partial(Processor()),
    "a list of them": lambda: [Processor(), Processor()],
    "a lambda over one": lambda: (lambda held: lambda x: held(x))(Processor()),
}


@pytest.mark.parametrize("what", HELD)
def test_which_object_a_block_holds_is_no_structure(what: str) -> None:
    blocks = [Block() for _ in range(3)]
    for block in blocks:
        block.held = HELD[what]()
    assert len({unit.shape for unit in find_units(listed(*blocks))}) == 1


def test_of_which_class_the_object_is_and_whether_it_is_held_twice_is() -> None:
    blocks, one = [Block() for _ in range(3)], Processor()
    blocks[0].held, blocks[1].held, blocks[2].held = [one, one], [one, Processor()], [one, functools.partial(one)]
    assert len({unit.shape for unit in find_units(listed(*blocks))}) == 3
