"""What every test runs under: no network, one thread a process (many ranks share few cores), no terminal's width, and
nothing that another test has kept on disk."""

import builtins
import gc
import itertools
import json.encoder
import os
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("COLUMNS", None)

import pytest
import torch

torch.set_num_threads(1)
# Tracing makes many objects, and looking through all of them takes a sixth of its time; never to do so, gigabytes.
gc.set_threshold(100_000, 50, 5)


@pytest.fixture(autouse=True)
def _nothing_kept(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTP_CACHE", str(tmp_path_factory.getbasetemp() / "kept" / str(next(_numbers))))


_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sweep", action="store_true", help="only what `make test` has a sample of, and all of that")
    parser.addoption("--long", action="store_true", help="only what takes hours, and what is known to fail")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A sweep is what is marked so and what it makes more of. Long files first: at the end, no worker waits for another that
    has just begun one."""
    sweeping, long = bool(config.getoption("--sweep")), bool(config.getoption("--long"))
    beyond, far_beyond = _beyond_samples(items)
    if long:
        kept = [item for item in items if item in far_beyond]
    elif sweeping:
        kept = [item for item in items if item not in far_beyond and (item in beyond or _grows(item))]
    else:
        kept = [item for item in items if item not in beyond | far_beyond]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
    first = ("tests/axes", "tests/contract", "tests/exact", "tests/checkpoint", "tests/cli")
    items.sort(key=lambda item: not item.nodeid.startswith(first))


def _beyond_samples(items: list[pytest.Item]) -> tuple[set[pytest.Item], set[pytest.Item]]:
    """What only a sweep runs, and what only `make long` does.

    Marks say so; and of a test that is marked `sample(n)` the cases beyond n that lie evenly among all. With others="long" a
    sweep has as many of these as `sweep` says, and `make long` the rest.
    """
    beyond = {item for item in items if _is_marked(item, "sweep")}
    far_beyond = {item for item in items if _is_marked(item, "long")}
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item not in beyond | far_beyond and _is_marked(item, "sample"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for every in cases.values():
        mark = every[0].get_closest_marker("sample")
        assert mark is not None
        sample, swept = _evenly(mark.args[0], every), _evenly(mark.kwargs.get("sweep", 0), every)
        others = far_beyond if mark.kwargs.get("others") == "long" else beyond
        beyond |= swept - sample
        others |= set(every) - sample - swept
    return beyond, far_beyond


def _evenly(count: int, every: list[pytest.Item]) -> set[pytest.Item]:
    return {every[i * len(every) // count] for i in range(count)}


def _is_marked(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None


def _grows(item: pytest.Item) -> bool:
    return "sweep" in getattr(item, "fixturenames", ())


@pytest.fixture
def sweep(request: pytest.FixtureRequest) -> bool:
    """Whether everything is run, and not what differs most."""
    return bool(request.config.getoption("--sweep"))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a process has once is after a test what it was before: a trace puts others in its place."""
    before = _process_wide()
    yield
    assert _process_wide() == before


def _process_wide() -> list[object]:
    encoder, builtin = json.encoder.c_make_encoder, (builtins.isinstance, builtins.callable, builtins.round)
    return [*builtin, encoder, torch.Tensor.__setattr__, torch.SymInt.__repr__]
