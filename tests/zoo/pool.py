"""Workers that measure families, each killed and replaced when one takes too long or brings it down."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
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
WAIT = 6  # times the limit of processor seconds, for one that waits for something


@dataclass
class Task:
    """A family with the sizes that are still to be measured."""

    kind: Kind
    sizes: tuple[int, ...]


class _Worker:
    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.connection, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_work, args=(there, limit_s, os.getpid()), daemon=True)
        self.process.start()
        there.close()
        self.task: Task | None = None
        self.since, self.ended = 0.0, False

    def give(self, task: Task) -> None:
        self.task, self.since = task, time.monotonic()
        self.connection.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _end_with(parent: int) -> None:
    """End this process once its parent has, whatever ended that one."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(connection: Connection, limit_s: float, parent: int) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # as in the tests: looking through all objects takes a tenth of the time
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)  # torch reports what a trace gives up, with a stack
    transformers.logging.set_verbosity_error()
    while True:
        task: Task = connection.recv()
        records = measure(task.kind, task.sizes)
        for _ in task.sizes:
            signal.setitimer(signal.ITIMER_PROF, limit_s)  # ends the process after so many seconds of work
            record = next(records)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(record)
        del records
        gc.collect()  # models are parts of cycles, and gigabytes


def run(tasks: Sequence[Task], workers: int, limit_s: float) -> Iterator[Record]:
    """Measure all tasks, each record within the limit of processor seconds; records come as they are ready."""
    waiting = deque(tasks)
    pool = [_Worker(limit_s) for _ in range(min(workers, len(tasks)))]
    try:
        while waiting or any(worker.task for worker in pool):
            for i, worker in enumerate(pool):
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
                elif (record := _lost(worker)) is not None:
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
            worker.ended = True
            continue
        _advance(worker)
        yield record


def _advance(worker: _Worker) -> None:
    """A record came: the next size of the task begins now."""
    assert worker.task is not None
    rest = worker.task.sizes[1:]
    worker.task, worker.since = (Task(worker.task.kind, rest) if rest else None), time.monotonic()


def _lost(worker: _Worker) -> Record | None:
    """The record of a family that took too long or ended its process."""
    if worker.task is None or (worker.connection.poll() and not worker.ended):
        return None
    if worker.ended:
        worker.process.join()
    kind, tp, seconds = worker.task.kind, worker.task.sizes[0], round(time.monotonic() - worker.since, 2)
    code = worker.process.exitcode
    if code == -signal.SIGPROF or (code is None and seconds > WAIT * worker.limit_s):
        return Record(kind.name, kind.head, tp, TIMEOUT, reason=f"more than {worker.limit_s:.0f} s", seconds=seconds)
    if code is not None:
        return Record(kind.name, kind.head, tp, ERROR, reason=f"the process ended with {code}", seconds=seconds)
    return None


def _replaced(worker: _Worker, waiting: deque[Task]) -> _Worker:
    assert worker.task is not None
    worker.end()
    if rest := worker.task.sizes[1:]:
        waiting.appendleft(Task(worker.task.kind, rest))
    return _Worker(worker.limit_s)
