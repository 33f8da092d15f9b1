"""What a rank tells the others when its computation breaks off, by the store that they met at, and what it hears of theirs.

A process that ends is missed by itself. One that raises in the middle of a call or a backward and lives on would let the others
wait for as long as a collective may take; and if it went on with its next call, that would meet the others in the wrong place.
An error that all ranks have in the same place is none of this: they all go on.
"""

from __future__ import annotations

import atexit
import inspect
import json
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import graph as autograd_graph

from ...errors import RankLostError
from .host import Process
from .store import PrefixStore

LOOK_S = 1.0  # how long a rank waits for others before it asks, again and again, whether they broke off
GRACE_S = 2.0  # how long after that it might break off itself, by an error that all ranks have
PATIENCE_S = 10.0  # how long a rank that broke off waits for the others to have done so too
_WATCH_S = 0.5
_AGAIN_S = 0.05  # before a second look: to end the work of all ranks for nothing is worse than to be a moment late

MSG_LOST = "rank {rank} broke off and left the others waiting: {reason}"
MSG_ENDED = "rank {rank} has ended while others waited for it; {reason}"
MSG_BEFORE = "this group of ranks broke before ({reason}); start all of them again"
MSG_LEFT = (
    "this rank broke off by itself ({reason}), and the others wait for it in another place; start all ranks again"
)
_UNKNOWN = "an error that its program went on after; its own output may say more"
_CALL = nn.Module._call_impl.__code__
_BACKWARD = autograd_graph._engine_run_backward.__code__
# How many calls and backwards have begun, and how often all ranks went on after something broke off.
_Place: TypeAlias = list[int]
_FOR_EVER = 1 << 60
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_unseen: list[None] = []


@contextmanager
def unseen() -> Iterator[None]:
    """Inside, no thread of this module reads a stack: whoever does holds what the functions on it have in their variables, and
    torch copies a new tensor that somebody else holds."""
    _unseen.append(None)
    try:
        yield
    finally:
        _unseen.pop()


class Alarm:
    """One rank's side: what it is in the middle of, and what broke off on the ranks of its line."""

    def __init__(self, line: Sequence[int]) -> None:
        """`line` are the global ranks that compute together, this process's among them."""
        self.line = tuple(line)
        self._calls: list[int] = []  # ids of the models whose calls have begun and not ended
        self._backwards: set[int] = set()  # graph tasks, likewise
        self._begun = [0, 0, 0]
        self._thread = 0
        self._told: tuple[_Place, str] | None = None
        self._lost: str | None = None
        self._seen_s: dict[int, float] = {}
        self._store: Any = None
        self._processes: dict[int, Process | None] = {}

    def join(self) -> None:
        """Let the others know this rank's process, and that nothing has broken off yet."""
        if not self._processes:
            me = self._processes[dist.get_rank()] = Process.this()
            if me is not None:
                self._keep(f"process/{dist.get_rank()}", me.to_text())
            self._publish()

    def begin_call(self, model: nn.Module) -> None:
        """Raises RankLostError if the computation before broke off on this rank alone."""
        self.go_on(model)
        self._watch()
        self._calls.append(id(model))
        self._begun[0] += 1
        self._thread = threading.get_ident()

    def end_call(self, model: nn.Module) -> None:
        """A call has ended; where it raises, Python's current error came through it."""
        if id(model) not in self._calls or threading.get_ident() != self._thread:
            return  # it was refused before it began
        error = sys.exc_info()[1]
        if error is not None and _came_through(error, model):
            self.tell(error)
        while self._calls and self._calls.pop() != id(model):
            pass

    def begin_collective(self) -> None:
        """Something is to be sent. Raises RankLostError if the computation before broke off on this rank alone."""
        task = torch._C._current_graph_task_id()
        if task == -1:
            if self._backwards or self._told is not None:
                self.go_on()
        elif task not in self._backwards:
            self.go_on()
            self._backwards.add(task)
            self._begun[1] += 1
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._backwards.discard(task))

    def go_on(self, beginning: nn.Module | None = None) -> None:
        """Where the computation before broke off: go on if it did so on all ranks, else raise RankLostError.

        `beginning` is a model whose call is on the stack and has not been counted.
        """
        if (self._calls or self._backwards) and self._is_broken(beginning):
            self.tell(None)
        if self._told is None:
            return
        place, reason = self._told
        end = time.monotonic() + PATIENCE_S
        while not all(self._place_of(rank) == place for rank in self._others()):
            if time.monotonic() > end:
                raise RankLostError(MSG_LEFT.format(reason=reason))
            time.sleep(0.02)
        self.settle()

    def settle(self) -> None:
        """All ranks know that the computation broke off, and go on."""
        self._told = None
        self._begun[2] += 1

    def tell(self, error: BaseException | None) -> None:
        """Tell the others that this rank's computation broke off."""
        self._calls.clear()
        self._backwards.clear()
        if self._told is not None or isinstance(error, RankLostError):
            return
        reason = _UNKNOWN if error is None else f"{type(error).__name__}: {error}"
        self._told = list(self._begun), reason
        self._publish()

    def _publish(self) -> None:
        self._keep(str(dist.get_rank()), json.dumps(self._told))

    def _keep(self, key: str, text: str) -> None:
        with suppress(RuntimeError):  # the store is lost, or keeps nothing, as that of a fake process group
            self._known_store().set(key, text)

    def look(self) -> None:
        """Called by a rank that waits. Raises RankLostError if another one broke off, and this one will not."""
        for rank in self._others():
            found = self.heard(rank)
            if found is not None and time.monotonic() - self._seen_s.setdefault(rank, time.monotonic()) >= GRACE_S:
                raise RankLostError(MSG_LOST.format(rank=rank, reason=found))

    def miss(self, ranks: Sequence[int]) -> None:
        """Called by a rank that waits for these. Raises RankLostError if one has ended, too."""
        self.look()
        for rank in ranks:
            if rank not in self._processes and self._known_store().check([f"process/{rank}"]):
                self._processes[rank] = Process.from_text(self._known_store().get(f"process/{rank}").decode())
            process = self._processes.get(rank)
            if process is not None and process.is_gone():
                reason = self.heard(rank) or "its own output says why"
                raise RankLostError(MSG_ENDED.format(rank=rank, reason=reason))

    def lose(self, reason: str) -> None:
        """This rank left a collective that it had begun: no other one will find its partners."""
        self._lost = reason

    def check(self) -> None:
        """Raises RankLostError if this rank has left a collective, and lets the others hear of it."""
        if self._lost is not None:
            self._told = [*self._begun[:2], _FOR_EVER], self._lost
            self._publish()
            raise RankLostError(MSG_BEFORE.format(reason=self._lost))

    def heard(self, rank: int) -> str | None:
        """By which error a rank broke off; None if it did not."""
        place = self._place_of(rank)
        if place is None or place[2] < self._begun[2]:
            self._seen_s.pop(rank, None)
            return None
        reason: str = json.loads(self._known_store().get(str(rank)))[1]
        return reason

    def why(self, otherwise: str) -> str:
        """How another rank broke off, or what else there is to say."""
        found = {rank: self.heard(rank) for rank in self._others()}
        return next((MSG_LOST.format(rank=rank, reason=text) for rank, text in found.items() if text), otherwise)

    def _others(self) -> Iterator[int]:
        me = dist.get_rank()
        return (rank for rank in self.line if rank != me)

    def _place_of(self, rank: int) -> _Place | None:
        store = self._known_store()
        try:
            if not store.check([str(rank)]):
                return None
            told = json.loads(store.get(str(rank)))
        except dist.DistError:  # the store is lost: nothing can be heard
            return None
        place: _Place | None = told and told[0]
        return place

    def _known_store(self) -> Any:
        if self._store is None:
            name = f"autotp/broken/{'-'.join(map(str, self.line))}"
            self._store = PrefixStore(name, dist.distributed_c10d._get_default_store())
        return self._store

    def _is_broken(self, beginning: nn.Module | None = None) -> bool:
        """Returns if a call or backward that has begun is on no thread's stack any more, and did not end."""
        stacks = {thread: list(_frames(frame)) for thread, frame in sys._current_frames().items()}
        if any(stack[-1].f_code.co_flags & _SUSPENDED for stack in stacks.values()):
            return False  # it went on while its frames were read: who has called the last one is not known any more
        if self._backwards and not any(frame.f_code is _BACKWARD for stack in stacks.values() for frame in stack):
            return True
        known, own = {*self._calls, id(beginning)}, stacks.get(self._thread, [])
        running = sum(frame.f_code is _CALL and id(frame.f_locals["self"]) in known for frame in own)
        return running - (beginning is not None) < len(self._calls)

    def _watch(self) -> None:
        """Have a thread look from time to time whether this rank broke off and does nothing about it."""
        if not self._begun[0]:
            ending = threading.Event()
            thread = threading.Thread(target=_watch, args=(weakref.ref(self), ending), name="autotp", daemon=True)
            thread.start()
            atexit.register(_end, thread, ending)
            atexit.register(_tell_at_exit, weakref.ref(self))


def _watch(alarm: weakref.ref[Alarm], ending: threading.Event) -> None:
    before: Any = None
    while not ending.wait(_WATCH_S):
        found = alarm()
        if found is None or not dist.is_initialized():
            return
        calls, begun = list(found._calls), list(found._begun)
        goes_on, before = (calls, begun) != before, (calls, begun)
        if _unseen or goes_on:
            continue  # stacks are read of a rank that does nothing new alone: its thread may run while they are
        looks = (found._is_broken() and not ending.wait(_AGAIN_S) for _ in range(2))
        if (calls or found._backwards) and all(looks) and (calls, begun) == (found._calls, found._begun):
            handled: Any = sys._current_exceptions().get(found._thread)
            found.tell(handled[1] if isinstance(handled, tuple) else handled)  # a tuple until Python 3.12


def _end(thread: threading.Thread, ending: threading.Event) -> None:
    """Let a thread end before the interpreter does, which aborts the process if it finds one inside of the store's code."""
    ending.set()
    thread.join(_WATCH_S)


def _tell_at_exit(alarm: weakref.ref[Alarm]) -> None:
    """A process that ends by an error says which."""
    found, error = alarm(), getattr(sys, "last_value", None)
    if found is not None and error is not None and dist.is_initialized():
        found.tell(error)


def _frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _came_through(error: BaseException, model: nn.Module) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is _CALL and trace.tb_frame.f_locals.get("self") is model:
            return True
        trace = trace.tb_next
    return False
