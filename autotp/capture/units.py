"""Units: what is traced. Each repeated block, and each remaining module with matrices of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from .description import describe

_NUMBER = re.compile(r"\b\d+\b")  # in a path: which element of a list


@dataclass(frozen=True)
class Unit:
    """One module that is traced as a whole.

    `shape` is equal for units that have the same structure and so share one trace; `positions` are the integer
    attributes (module path, name) that hold the unit's place among its siblings and are not part of the structure.
    """

    path: str
    shape: int
    positions: tuple[tuple[str, str], ...] = ()

    def module(self, model: nn.Module) -> nn.Module:
        return _part(model, self.path)

    def position_places(self, module: nn.Module) -> tuple[tuple[dict[str, Any], str], ...]:
        """Where the position attributes of the unit's module are: whose they are, and their names there."""
        return tuple((vars(module.get_submodule(path)), name) for path, name in self.positions)

    def position_values(self, module: nn.Module) -> tuple[int, ...]:
        """The values of the position attributes in the unit's module."""
        return tuple(held[name] for held, name in self.position_places(module))


def find_units(model: nn.Module, split: frozenset[str] = frozenset()) -> tuple[Unit, ...]:
    """All units of a model in module order; paths in `split` are replaced by units of their children."""
    rows = list(_blocks(model, "", split))
    blocks = [path for row in rows for path in row]
    others = list(_others(model, "", set(blocks), split))
    # Siblings are in one list, or in the same place of several: of those that blocks have which are taken apart, say.
    units = _classified(model, [*rows, *_alike(others)], _in_one_place([*blocks, *others]))
    order = {path: i for i, (path, _) in enumerate(model.named_modules())}  # a module with two names has the first
    return tuple(sorted((unit for path, unit in units.items() if path in order), key=lambda unit: order[unit.path]))


def _alike(paths: Iterable[str]) -> Iterable[list[str]]:
    """Paths that differ in numbers only: the same part of several elements of a list, say of blocks that are taken apart."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(_NUMBER.sub("*", path), []).append(path)
    return groups.values()


def _in_one_place(paths: Iterable[str]) -> Iterator[list[str]]:
    """Paths that differ in one of their numbers alone."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        for number in _NUMBER.finditer(path):
            groups.setdefault(f"{path[: number.start()]}*{path[number.end() :]}", []).append(path)
    return (group for group in groups.values() if len(group) > 1)


def has_matrix(module: nn.Module) -> bool:
    """Returns if a module owns, itself or below, a parameter of two or more dims."""
    return any(True for _ in _matrices(module))


def _blocks(module: nn.Module, path: str, split: frozenset[str]) -> Iterator[list[str]]:
    """Groups of sibling blocks: the outermost containers whose elements all have children of their own."""
    is_list = _is_list(module) and path not in split and not _are_stages(list(module.children()))
    rows = _rows(module) if is_list else []
    if rows:
        for place in dict.fromkeys(place for row in rows for place in row):
            siblings = [_join(path, row[place]) for row in rows if place in row]
            yield [sibling for sibling in siblings if sibling not in split]
            for sibling in siblings:
                if sibling in split:
                    inner = module.get_submodule(sibling.removeprefix(path).lstrip("."))
                    yield from _blocks(inner, sibling, split)
        return
    for name, child in module.named_children():
        yield from _blocks(child, _join(path, name), split)


def _is_list(module: nn.Module) -> bool:
    """Returns if a module may be a list of blocks."""
    return isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and len(module) > 1)


def _rows(module: nn.Module) -> list[dict[str, str]]:
    """The blocks of each element of a container, by where they are in it: the element is one, or a list of such and of modules
    without matrices. Nothing if there is anything else."""
    rows, blocks = [], list[nn.Module]()
    for name, element in module.named_children():
        row = {}
        for place, leaf in _leaves(element, ""):
            if _is_block(leaf):
                row[place] = _join(name, place) if place else name
                blocks.append(leaf)
            elif not place or has_matrix(leaf):
                return []
        rows.append(row)
    return rows if any(rows) and _are_apart(blocks) else []


def _are_stages(elements: Sequence[nn.Module]) -> bool:
    """Returns if no two modules are alike, and each has a list of blocks of its own, all of one class: these are what repeats."""
    seen = set[tuple[torch.Size, ...]]()
    for element in elements:
        sizes = tuple(matrix.shape for matrix in _matrices(element))
        if sizes in seen:
            return False
        seen.add(sizes)
    lists = [[child for child in each.children() if _is_list(child) and _rows(child)] for each in elements]
    kinds = {type(block) for own in lists for child in own for block in child.children()}
    return len(elements) > 1 and all(lists) and len(kinds) == 1


def _are_apart(blocks: Sequence[nn.Module]) -> bool:
    """Returns if blocks are of use one by one: there are two matrices to cut along one dimension in each, or others like it."""
    matrices = [(type(block), list(islice(_matrices(block), 2))) for block in blocks]
    alike = Counter((kind, first.shape) for kind, (first, *others) in matrices if not others)
    return all(number > 1 for number in alike.values())


def _matrices(module: nn.Module) -> Iterator[nn.Parameter]:
    return (parameter for parameter in parameters_of(module) if parameter.dim() >= 2)


def parameters_of(module: nn.Module) -> Iterator[nn.Parameter]:
    """Each parameter of a module once, in the order of `module.parameters()`, which takes several times as long for the first."""
    waiting: list[nn.Module | None] = [module]
    seen = set[int]()
    while waiting:
        part = waiting.pop()
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            for parameter in part._parameters.values():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter
            waiting += reversed(list(part._modules.values()))


def _leaves(module: nn.Module, place: str) -> Iterator[tuple[str, nn.Module]]:
    """What lists within lists hold in the end, a module that is no list by itself."""
    if not only_holds(module):
        yield place, module
        return
    for name, child in module.named_children():
        yield from _leaves(child, _join(place, name))


def _is_block(module: nn.Module) -> bool:
    return has_matrix(module) and any(True for _ in module.children()) and not only_holds(module)


def _others(module: nn.Module, path: str, blocks: set[str], split: frozenset[str]) -> Iterator[str]:
    """Maximal modules with matrices that hold no block, and nothing that is split."""
    if path in blocks or not has_matrix(module):
        return
    prefix = path + "." if path else ""
    holds = any(inner.startswith(prefix) for inner in (*blocks, *split) if inner != path)
    if path not in split and not holds and not only_holds(module):
        yield path
        return
    for name, child in module.named_children():
        yield from _others(child, _join(path, name), blocks, split)


def only_holds(module: nn.Module) -> bool:
    """Returns if a module holds others and cannot be called: a list of modules, a dict, a bare `nn.Module()`."""
    return getattr(module.forward, "__func__", None) is nn.Module.forward


def _part(module: nn.Module, path: str) -> nn.Module:
    found: Any = module
    for name in path.split(".") if path else ():
        found = found._modules[name]
    return found


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _classified(model: nn.Module, lists: Sequence[Sequence[str]], further: Iterable[Sequence[str]]) -> dict[str, Unit]:
    """The units of lists of siblings, by path: equal facts about all attributes of all submodules are one number, but for those
    that say where among its siblings a unit is. `further` siblings are so only where they differ in nothing else."""
    described = {path: describe(_part(model, path)) for siblings in lists for path in siblings}
    places = dict[str, set[tuple[str, str]]]()
    for siblings in lists:
        found = _positions([described[path] for path in siblings], _places(siblings))
        places |= dict.fromkeys(siblings, found)
    looked_at = set(map(tuple, lists))
    for siblings in [each for each in further if tuple(each) not in looked_at]:
        if found := _positions([described[path] for path in siblings], _places(siblings)):
            rest = {path: _without(described[path], found | places[path]) for path in siblings}
            like = Counter(rest.values())
            places |= {path: places[path] | found for path in siblings if like[rest[path]] > 1}
    numbers, units = dict[Any, int](), dict[str, Unit]()
    for path, own in described.items():
        positions = tuple(sorted(places[path] & own.keys()))
        for name in positions:
            del own[name]
        units[path] = Unit(path, numbers.setdefault(tuple(own.items()), len(numbers)), positions)
    return units


def _without(facts: Mapping[tuple[str, str], Any], names: Set[tuple[str, str]]) -> tuple[Any, ...]:
    return tuple(fact for fact in facts.items() if fact[0] not in names)


def _places(siblings: Sequence[str]) -> Sequence[int]:
    """Where each of the siblings is: the number in its path, if they differ in one."""
    columns = zip(*([int(number) for number in _NUMBER.findall(path)] for path in siblings), strict=False)
    differing = [column for column in columns if len(set(column)) > 1]
    return differing[0] if len(differing) == 1 else range(len(siblings))


def _positions(described: Sequence[Mapping[tuple[str, str], Any]], places: Sequence[int]) -> set[tuple[str, str]]:
    """Integer attributes that differ between the siblings that have them exactly as these siblings' places do."""
    found = set()
    for name in {name for facts in described for name, value in facts.items() if type(value) is int}:
        values = [(place, facts[name]) for place, facts in zip(places, described, strict=True) if name in facts]
        if len(values) > 1 and all(type(value) is int for _, value in values) and _are_in_step(values):
            found.add(name)
    return found


def _are_in_step(values: Sequence[tuple[int, int]]) -> bool:
    """Returns if numbers grow as places do, or by more at each, as those of blocks that have several: of two numbers by one."""
    (place, first), (other, second) = values[0], values[-1]
    step, rest = divmod(second - first, other - place) if other != place else (0, 0)
    if rest or step < 1 or (len(values) == 2 and step > 1):
        return False
    return all(value - first == step * (at - place) for at, value in values)
