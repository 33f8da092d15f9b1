"""Collectives through shared memory: right to the bit, in step for ever, and an error where a rank does not come."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autotp.axes.layout import Cut, Factor, Leaf
from autotp.errors import RankLostError
from autotp.runtime.collectives import single
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.processes import ProcessRanks
from autotp.runtime.transport import host, shared
from autotp.runtime.transport.shared import HostGroup

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
SLOT = 4096  # bytes, so that small tensors go through several chunks too
SHAPES = ((), (0,), (1,), (7,), (3, 5, 2), (511,), (512,), (513,), (4099,), (3, 1031))

Store = dist.TCPStore  # type: ignore[attr-defined]


def whole_world() -> ProcessRanks:
    return ProcessRanks([range(dist.get_world_size())])


def value_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype, step: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 50).to(dtype)


def in_order(values: list[torch.Tensor], op: str) -> torch.Tensor:
    """All values combined in the order of the ranks; narrow floats are rounded once."""
    wide = [v.float() if v.dtype in (torch.bfloat16, torch.float16) else v for v in values]
    total = wide[0]
    for value in wide[1:]:
        total = total + value if op == "sum" else torch.maximum(total, value)
    return total.to(values[0].dtype)


def arithmetic() -> str:
    """Runs on a rank; returns a digest of all results."""
    shared.SLOT_BYTES, shared.SPARED_BYTES = SLOT, 3 * SLOT // 4
    ranks = whole_world()
    group = ranks.host_group((Factor(ranks.size, 1),), CPU)
    assert group is not None
    results = []
    for dtype in DTYPES:
        for shape in SHAPES:
            everyone = [value_of(rank, shape, dtype) for rank in range(ranks.size)]
            for spread in (False, True):
                mine = everyone[ranks.rank]
                mine = torch.stack([mine, mine + 1], dim=-1)[..., 0] if spread else mine
                found = [group.all_reduce(mine, "sum"), group.all_reduce(mine, "max"), group.all_gather(mine)]
                expected = [in_order(everyone, "sum"), in_order(everyone, "max"), torch.stack(everyone)]
                parts = [torch.stack([value + i for i in range(ranks.size)]) for value in everyone]
                own = torch.stack([parts[ranks.rank]] * 2, dim=-1)[..., 0] if spread else parts[ranks.rank]
                scattered = group.reduce_scatter(own)
                assert torch.equal(scattered, in_order([part[ranks.rank] for part in parts], "sum")), (dtype, shape)
                for one, other in zip(found, expected, strict=True):
                    assert (one.shape, one.dtype, one.is_contiguous()) == (other.shape, dtype, True)
                    assert torch.equal(one, other), (dtype, shape, spread)
                results.extend(found)
    flags = group.all_gather(torch.tensor([ranks.rank % 2 == 0, True]))
    assert flags.tolist() == [[rank % 2 == 0, True] for rank in range(ranks.size)]
    data = [result.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for result in results if result.numel()]
    return hashlib.sha256(b"".join(data)).hexdigest()


def many_rounds(count: int) -> int:
    """Runs on a rank; returns how many results were not those of their own round."""
    ranks = whole_world()
    group = ranks.host_group((Factor(ranks.size, 1),), CPU)
    assert group is not None
    sizes, wrong = (1, 33, 256), 0
    for step in range(count):
        value = torch.full((sizes[step % 3],), step * ranks.size + ranks.rank)
        kind = step % 5
        if step % 997 == ranks.rank:
            time.sleep(0.002)  # a rank that is late for the others
        if kind == 4:
            result, expected = group.all_gather(value)[:, 0], step * ranks.size + torch.arange(ranks.size)
        else:
            result = group.all_reduce(value, "max" if kind == 3 else "sum")
            every = [step * ranks.size + rank for rank in range(ranks.size)]
            expected = torch.full_like(value, max(every) if kind == 3 else sum(every))
        wrong += not torch.equal(result, expected)
    return wrong


def scaled(weight: torch.Tensor, value: torch.Tensor, ranks: ProcessRanks) -> torch.Tensor:
    over = (Factor(ranks.size, 1),)
    value = single.enter(value, ranks, over)
    total = single.reduce(value * weight, ranks, over)
    return single.gather(total.narrow(0, ranks.rank, 1) * weight, ranks, over, 0, Leaf(2, Cut(over, 2)))


def in_graphs() -> tuple[torch.Tensor, ...]:
    """Runs on a rank: the plain and the compiled function, their gradients, and what the compiled graph holds."""
    ranks = whole_world()
    ranks.prepare([(Factor(2, 1),)], CPU)
    weight = torch.tensor([2.0, 3.0]) + ranks.rank
    held: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        held.extend(str(node.target) for node in module.graph.nodes)
        for each in module.modules():
            held.extend(str(node.target) for node in getattr(each, "graph", torch.fx.Graph()).nodes)
        return aot_eager(module, inputs)

    results = []
    for function in (scaled, torch.compile(scaled, fullgraph=True, backend=backend)):
        value = torch.tensor([[1.0, 4.0], [2.0, 8.0]], requires_grad=True)
        result = function(weight, value, ranks)
        result.square().sum().backward()
        results += [result.detach(), value.grad]
        with torch.no_grad():
            results.append(function(weight, value, ranks))
    assert any("shared_all_reduce" in name for name in held), held
    assert any("shared_all_gather" in name for name in held), held
    return tuple(results)


def without_order() -> tuple[bool, torch.Tensor]:
    """Runs on a rank of which one is on a processor that does not keep the order of stores."""
    host.KEEPS_ORDER = dist.get_rank() == 0
    own = DeviceMesh.from_group(dist.new_group([0, 1]), "cpu", mesh=[0, 1])  # the world's shares memory already
    ranks = ProcessRanks([[0, 1]], mesh=own)
    over = (Factor(ranks.size, 1),)
    result = ranks.all_reduce(torch.tensor([1.0 + ranks.rank]), over, "forward")
    return ranks.host_group(over, CPU) is None, result


def everything(rounds: int) -> tuple[Any, ...]:
    """Runs on a rank; processes that import torch cost more than all of this."""
    done = arithmetic(), many_rounds(rounds)
    return (*done, in_graphs(), without_order()) if dist.get_world_size() == 2 else done


@pytest.fixture(scope="module")
def on_two_ranks() -> list[tuple[Any, ...]]:
    return run_ranks(everything, 2, 10_000)


def check_arithmetic(outcomes: list[tuple[Any, ...]]) -> None:
    assert len({digest for digest, *_ in outcomes}) == 1
    assert [wrong for _, wrong, *_ in outcomes] == [0] * len(outcomes)


def test_every_rank_gets_what_adding_in_order_gives(on_two_ranks: list[tuple[Any, ...]]) -> None:
    check_arithmetic(on_two_ranks)


@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_get_what_adding_in_order_gives(size: int) -> None:
    check_arithmetic(run_ranks(everything, size, 500))


def test_graphs_keep_the_collectives(on_two_ranks: list[tuple[Any, ...]]) -> None:
    for _, _, results, _ in on_two_ranks:
        plain, compiled = results[:3], results[3:]
        assert all(torch.equal(one, other) for one, other in zip(plain, compiled, strict=True))
        # rows summed over ranks: value * (2 + 3, 3 + 4); then row r by rank r's weight
        assert torch.equal(plain[0], torch.tensor([[5.0 * 2, 28.0 * 3], [10.0 * 3, 56.0 * 4]]))
        assert torch.equal(plain[2], plain[0])


def test_gloo_where_memory_cannot_be_shared(on_two_ranks: list[tuple[Any, ...]]) -> None:
    for *_, (alone, result) in on_two_ranks:
        assert alone
        assert result.tolist() == [3.0]


def store_exchange(port: int, rank: int, size: int) -> Callable[[Any], list[Any]]:
    """Values of all ranks through a store, for ranks that have no process group."""
    store, count = Store(host_name(), port, is_master=False), iter(range(10**6))

    def exchange(mine: Any) -> list[Any]:
        number = next(count)
        store.set(f"{number}/{rank}", pickle.dumps(mine))
        return [pickle.loads(store.get(f"{number}/{other}")) for other in range(size)]

    return exchange


def host_name() -> str:
    return "127.0.0.1"


def form(rank: int, size: int, exchange: Callable[[Any], list[Any]], timeout_s: float) -> HostGroup:
    group = HostGroup.form(rank, size, exchange, timeout_s)
    assert group is not None
    return group


def error_of(call: Callable[[], Any]) -> tuple[str, float]:
    """The text of the RankLostError a call raises, and after how long."""
    start = time.monotonic()
    try:
        call()
    except RankLostError as error:
        return str(error), time.monotonic() - start
    return "no error", 0.0


def misfortunes(rank: int, size: int, port: int, folder: Path) -> None:
    """Runs on a rank: others come with another size, not in time, or are killed."""
    exchange = store_exchange(port, rank, size)
    notes: dict[str, Any] = {}
    group = form(rank, size, exchange, 60.0)
    assert group.all_reduce(torch.ones(3)).tolist() == [size] * 3
    notes["another"] = error_of(lambda: group.all_reduce(torch.ones(3 if rank else 4)))
    notes["again"] = error_of(lambda: group.all_reduce(torch.ones(3)))
    exchange(None)

    group = form(rank, size, exchange, 0.5)
    if rank == 0:
        time.sleep(1.5)
    notes["late"] = error_of(lambda: group.all_reduce(torch.ones(3)))
    exchange(None)

    del group
    gc.collect()
    notes["mapped"] = "/memfd:autotp (deleted)" in Path("/proc/self/maps").read_text()
    group = form(rank, size, exchange, 600.0)
    notes["mapped again"] = "/memfd:autotp (deleted)" in Path("/proc/self/maps").read_text()
    large = torch.ones(shared.SLOT_BYTES)
    for step in range(20):  # each of several chunks
        if rank == 1 and step == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        notes["killed"] = error_of(lambda: group.all_reduce(large))
        if notes["killed"][1]:
            break
    (folder / str(rank)).write_bytes(pickle.dumps(notes))


def test_a_rank_that_does_not_come_is_an_error_on_the_others(tmp_path: Path) -> None:
    size = 3
    store = Store(host_name(), 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=misfortunes, args=(rank, size, store.port, tmp_path), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        # Nobody waits for rank 1, so that the others meet one that has ended but still has its number.
        for rank in (0, 2):
            processes[rank].join(150)
            assert processes[rank].exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
    for rank in (0, 2):
        notes = pickle.loads((tmp_path / str(rank)).read_bytes())
        # Who meets the wrong first says so and gives up; to the others it is then the rank that gave up.
        assert any(text in notes["another"][0] for text in ("another size", "met an error")), notes
        assert "broke before" in notes["again"][0], notes
        assert any(text in notes["late"][0] for text in ("did not come within", "met an error")), notes
        # mapped while the group lives, by no name in the file system: there is nothing that could be left behind
        assert not notes["mapped"], notes
        assert notes["mapped again"], notes
        text, seconds = notes["killed"]
        assert text.startswith("rank 1 of 3"), notes
        assert "has ended" in text, notes
        assert seconds < 10, notes
    assert not [name for name in os.listdir("/dev/shm") if "autotp" in name]


def test_processes_are_told_apart() -> None:
    me = host.Process.this()
    assert me is not None
    assert me.is_alive()
    assert not host.Process(me.host, me.pid, "1", me.cores).is_alive()


def test_memory_is_shared_within_one_machine_only() -> None:
    me = host.Process.this()
    assert me is not None
    stranger = host.Process(("another", *me.host[1:]), me.pid, me.started, me.cores)

    def beside(other: Any) -> Any:
        """An exchange with another process, which says all else as this one does."""
        return lambda mine: [mine, (other, *mine[1:]) if isinstance(mine, tuple) else mine]

    assert host.map_together(4096, beside(stranger)) is None
    assert host.map_together(4096, beside(None)) is None
    assert host.map_together(4096, beside(me)) is not None


def test_memory_with_another_token_is_not_taken() -> None:
    def exchange(mine: Any) -> Any:
        return [(*mine[:2], bytes(16)) if isinstance(mine, tuple) else mine, mine]

    assert host.map_together(4096, exchange) is None
