"""What `torch.mock` is, as `torch.cuda` is for CUDA, and how the device is made known to torch."""

from __future__ import annotations

import importlib.util
import types
from contextlib import contextmanager
from typing import Any

import torch

from .build import NAME, library

DEVICE, BACKEND = "mock", "mockccl"


class Stream:
    """Work is done when it is asked for, so there is nothing to wait for."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device(DEVICE, extension().current())

    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...

    def record_event(self, event: Any = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True


class Event:
    """A moment that has passed."""

    def __init__(self, *settings: Any, **others: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Chosen:
    """The device of this number is the current one inside the context."""

    def __init__(self, device: Any) -> None:
        self.index = _index(device)

    def __enter__(self) -> None:
        self.before = extension().current()
        extension().select(self.index)

    def __exit__(self, *_: object) -> None:
        extension().select(self.before)


class Mock(types.ModuleType):
    """The functions that torch looks for in a device's module."""

    Stream, Event, device = Stream, Event, Chosen
    _initialized = False

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self._initialized

    def _lazy_init(self) -> None:
        self._initialized = True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return int(extension().COUNT)

    def current_device(self) -> int:
        return int(extension().current())

    def set_device(self, device: Any) -> None:
        self._lazy_init()
        extension().select(_index(device))

    def synchronize(self, device: Any = None) -> None: ...

    def empty_cache(self) -> None: ...

    def current_stream(self, device: Any = None) -> Stream:
        return Stream()

    default_stream = current_stream

    def set_stream(self, stream: Any) -> None: ...

    @contextmanager
    def stream(self, stream: Any) -> Any:
        yield

    @property
    def default_generators(self) -> tuple[torch.Generator, ...]:
        return tuple(extension().generator(i) for i in range(self.device_count()))

    def manual_seed(self, seed: int) -> None:
        extension().generator(self.current_device()).manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for generator in self.default_generators:
            generator.manual_seed(seed)

    def initial_seed(self) -> int:
        return int(extension().generator(self.current_device()).initial_seed())

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return extension().generator(_index(device)).get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        extension().generator(_index(device)).set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def memory_allocated(self, device: Any = None) -> int:
        return 0

    max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated

    def reset_peak_memory_stats(self, device: Any = None) -> None: ...


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    found = None if device is None else torch.device(device).index
    return int(extension().current()) if found is None else found


_loaded: list[Any] = []


def extension() -> Any:
    """The library, once it is loaded."""
    return _loaded[0]


def register() -> None:
    """Make the device this process's accelerator, and its backend the one of process groups for it. Nothing undoes it."""
    if _loaded:
        return
    import torch.distributed as dist

    spec = importlib.util.spec_from_file_location(NAME, library())
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    _loaded.append(found)
    torch.utils.rename_privateuse1_backend(DEVICE)
    torch._register_device_module(DEVICE, Mock(DEVICE))
    found.install()
    torch.utils.generate_methods_for_privateuse1_backend()
    dist.Backend.register_backend(BACKEND, _backend, devices=[DEVICE])


def _backend(store: Any, rank: int, size: int, timeout: Any) -> Any:
    import torch.distributed as dist

    gloo = dist.ProcessGroupGloo(dist.PrefixStore(BACKEND, store), rank, size, timeout=timeout)
    return extension().MockCCL(gloo, rank, size, int(timeout.total_seconds() * 1000))
