"""Workers that measure families, each killed and replaced when one takes too long or brings it down."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import transformers

from .kinds import Kind
from .measure import ERROR, TIMEOUT, Record, measure

CONTEXT = multiprocessing.get_context("fork")


@dataclass
class Task:
    """A family with the sizes that are still to be measured."""

    kind: Kind
    sizes: tuple[int, ...]


class _Worker:
    def __init__(self) -> None:
        self.connection, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_work, args=(there,), daemon=True)
        self.process.start()
        there.close()
        self.task: Task | None = None
        self.since = 0.0

    def give(self, task: Task) -> None:
        self.task, self.since = task, time.monotonic()
        self.connection.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _work(connection: Connection) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    while True:
        task: Task = connection.recv()
        for record in measure(task.kind, task.sizes):
            connection.send(record)


def run(tasks: Sequence[Task], workers: int, limit_s: float) -> Iterator[Record]:
    """Measure all tasks, each record within the limit of seconds; records come as they are ready."""
    waiting = deque(tasks)
    pool = [_Worker() for _ in range(min(workers, len(tasks)))]
    try:
        while waiting or any(worker.task for worker in pool):
            for i, worker in enumerate(pool):
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
                elif (record := _lost(worker, limit_s)) is not None:
                    yield record
                    pool[i] = _replaced(worker, waiting)
            yield from _ready(pool)
    finally:
        for worker in pool:
            worker.end()


def _ready(pool: Sequence[_Worker]) -> Iterator[Record]:
    busy: dict[Any, _Worker] = {worker.connection: worker for worker in pool if worker.task}
    for connection in wait(list(busy), timeout=1.0):
        worker = busy[connection]
        try:
            record = worker.connection.recv()
        except EOFError:
            continue  # the process has ended, which `_lost` finds
        _advance(worker)
        yield record


def _advance(worker: _Worker) -> None:
    """A record came: the next size of the task begins now."""
    assert worker.task is not None
    rest = worker.task.sizes[1:]
    worker.task, worker.since = (Task(worker.task.kind, rest) if rest else None), time.monotonic()


def _lost(worker: _Worker, limit_s: float) -> Record | None:
    """The record of a family that took too long or ended its process."""
    if worker.task is None or worker.connection.poll():
        return None
    kind, tp, seconds = worker.task.kind, worker.task.sizes[0], time.monotonic() - worker.since
    if not worker.process.is_alive():
        reason = f"the process ended with {worker.process.exitcode}"
        return Record(kind.name, kind.head, tp, ERROR, reason=reason, seconds=round(seconds, 2))
    if seconds > limit_s:
        reason = f"more than {limit_s:.0f} s"
        return Record(kind.name, kind.head, tp, TIMEOUT, reason=reason, seconds=round(seconds, 2))
    return None


def _replaced(worker: _Worker, waiting: deque[Task]) -> _Worker:
    assert worker.task is not None
    worker.end()
    if rest := worker.task.sizes[1:]:
        waiting.appendleft(Task(worker.task.kind, rest))
    return _Worker()
