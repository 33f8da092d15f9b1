"""What is garbage is collected though another thread collects."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from autotp.outside.garbage import collect


class Circle:
    def __init__(self, ends: threading.Event | None = None) -> None:
        self.me, self.ends = self, ends

    def __del__(self) -> None:
        if self.ends is not None:
            self.ends.set()
            time.sleep(0.1)


@pytest.fixture(autouse=True)
def _by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("generation", [0, 2])
def test_garbage_is_gone_though_another_thread_collects(generation: int) -> None:
    ends = threading.Event()
    Circle(ends)
    other = threading.Thread(target=gc.collect)
    other.start()
    assert ends.wait(10)
    late = weakref.ref(Circle())
    assert not gc.collect()  # the other one does
    assert late() is not None
    collect(generation)
    assert late() is None
    other.join()


def test_it_does_not_wait_for_ever_where_the_collection_is_its_own() -> None:
    took = list[float]()

    class Asking(Circle):
        def __del__(self) -> None:
            start = time.perf_counter()
            collect()
            took.append(time.perf_counter() - start)

    Asking()
    gc.collect()
    assert len(took) == 1
