"""The Python that runs while a unit is traced, instruction by instruction: which globals it reads, and what it writes.

torch's own Python is left out, but for its modules, which read a model's state like a model's code does.
"""

from __future__ import annotations

import abc
import functools
import importlib
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Container
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from ..whereabouts import noting_data
from .actions import Action, actions_of

Callback = TypeVar("Callback", bound=Callable[..., Any])

_TORCH = Path(torch.__file__).parent


def _inside(*folders: Path | str) -> tuple[str, ...]:
    """How the paths of files in folders begin: those of another folder, whose name begins the same, do not."""
    return tuple(os.path.join(folder, "") for folder in folders)


# With torch comes what writes its code; what it computes sizes with is its own, too.
OWN = _inside(Path(__file__).parents[2])
_MACHINERY = OWN + _inside(_TORCH, *(_TORCH.parent / n for n in ("torchgen", "sympy", "mpmath")))
_OF_MODULES = _inside(_TORCH / "nn" / "modules")
_MODULES = _OF_MODULES + _inside(_TORCH / "nn" / "utils")
_REPORTING = frozenset(str(sys.modules[name].__file__) for name in ("logging", "warnings"))
_LIBRARY = _inside(sysconfig.get_path("stdlib"))
# What torch is written with, and models may be as well.
_TOOLS = (*_inside(_TORCH.parent / "numpy", _TORCH.parent / "networkx"), str(_TORCH.parent / "typing_extensions.py"))


class Observer(Protocol):
    """Whoever is told of what runs. One that is `lenient` hears nothing of how torch's own modules do what they do."""

    lenient: bool

    def enter(self, frame: types.FrameType) -> None:
        """A function begins."""

    def act(self, frame: types.FrameType, action: Action) -> None:
        """An instruction is about to run."""

    def call(self, function: Any, args: Any, kwargs: Any) -> None:
        """A function of torch is about to run."""

    @property
    def keeping(self) -> Container[types.CodeType]:
        """Code of functions whose results are kept."""

    def returned(self, result: Any, name: str) -> None:
        """One of these gives a result."""

    def data_of(self, tensor: torch.Tensor) -> None:
        """A tensor's `data` was read: writing there is hidden from what is kept for the backward."""

    def ask(self, frame: types.FrameType) -> None:
        """A function of the environment's begins: its variables are read one by one. Or one that imports by name."""


_MUTE = frozenset({type(None), bool, int, float, complex, str, torch.Tensor, torch.nn.Parameter, slice, type(...)})
_NOT_OF_A_MODEL = frozenset({"torch", "autotp", "numpy", "sympy"})
_between: set[types.CodeType] = set()


def between(function: Callback) -> Callback:
    """Marks a function of ours that stands between code and the attribute that it asks for: what that runs, the code runs."""
    _between.add(function.__code__)
    return function


def _caller(frame: types.FrameType) -> types.FrameType | None:
    """Who has called, behind what stands between."""
    found = frame.f_back
    while found is not None and found.f_code in _between:
        found = found.f_back
    return found


def is_observed(frame: types.FrameType | None) -> bool:
    """Returns if the reads of what runs in a frame count: not those of torch's machinery and ours, nor of reports to the user.
    Libraries that both use read for whoever has called them."""
    while frame is not None:
        side = _sides.get(frame.f_code.co_filename) or _side(frame)
        if side != "library":
            return side == "model"
        frame = _caller(frame)
    return False


def is_of_machinery(file: str) -> bool:
    """Returns if a file's code is known to be torch's machinery or ours. It may be asked within any of our code."""
    return _sides.get(file) == "machinery" or file.startswith(OWN)


@functools.cache
def is_of_torch_modules(file: str) -> bool:
    """Returns if a file's code is that of torch's own modules. All that it writes is in the modules themselves."""
    return file.startswith(_OF_MODULES)


def is_read_by_torch(frame: types.FrameType | None) -> bool:
    """Returns if torch's own Python, or the reports', runs in a frame for the model: what that was given, it reads for the
    model."""
    while frame is not None:
        if (_sides.get(frame.f_code.co_filename) or _side(frame)) == "model":
            return True
        if frame.f_code.co_filename.startswith(OWN) and frame.f_code is not _ON_THE_WAY:
            return False
        frame = _caller(frame)
    return False


def _is_mute(value: Any, depth: int = 4) -> bool:
    """Returns if nothing that torch is given has Python of the model's, which torch may run."""
    kind = type(value)
    if kind in _MUTE or kind.__module__.partition(".")[0] in _NOT_OF_A_MODEL:
        return True
    if kind in (list, tuple):
        return depth > 0 and all(_is_mute(each, depth - 1) for each in value)
    return kind is dict and depth > 0 and all(_is_mute(each, depth - 1) for each in value.values())


def _side(frame: types.FrameType) -> str:
    """Whose code runs: torch's or our own ("machinery"), a library's that these use too, or the model's.

    A file's code is all of one side. Equal code in two files is equal for Python, so it says nothing of this."""
    name = file = frame.f_code.co_filename
    if frame.f_code in _ENVIRONMENT:
        return "machinery"
    if made := file.startswith("<") and not file.startswith(("<frozen importlib", "<autotp")):
        # Made by exec, as a dataclass's methods are: it belongs where its globals do, or to whoever evaluates it.
        module = sys.modules.get(str(frame.f_globals.get("__name__")))
        caller = _caller(frame)
        if module is None and caller is not None:
            return _sides.get(caller.f_code.co_filename) or _side(caller)
        file = str(getattr(module, "__file__", file))
    inner = file.startswith(_MACHINERY) and not file.startswith(_MODULES)
    if inner or file in _REPORTING or file.startswith(("<frozen importlib", "<autotp")):
        side = "machinery"
    else:
        inside = file.startswith(_LIBRARY) and "site-packages" not in file
        side = "library" if inside or file.startswith(_TOOLS) else "model"
    if not made and name != os.__file__:  # which has the environment's code in it
        _sides[name] = side
    return side


MSG_HIDDEN = "it writes into the data of a tensor behind autograd's back"
PARAMETER = "_autotp_is_parameter"  # an attribute of the tensors that stand for parameters
_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_ENVIRONMENT = frozenset(
    method.__code__ for method in vars(type(os.environ)).values() if isinstance(method, types.FunctionType)
)
IMPORTS = importlib.import_module.__code__
_ABC = abc.ABCMeta.__instancecheck__.__code__.co_filename
_sides: dict[str, str] = {}  # of files


class Tracing(TorchFunctionMode):
    """Tells an observer of everything that runs in this thread inside the context, but for what torch's functions do."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer
        self.previous: Any = None
        self.steps: dict[types.CodeType, Any] = {}

    def __enter__(self) -> Tracing:
        super().__enter__()
        self.previous = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(self.previous)
        super().__exit__(*error)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.observer.call(function, args, kwargs or {})
        # An operator that a graph can have gives the same tensor.
        plain = torch.Tensor.detach if function == _DATA else function
        of_parameter = function == _DATA and PARAMETER in vars(args[0])
        if _is_mute(args) and _is_mute(kwargs):
            sys.settrace(None)  # following Python's every step takes as long again as the steps
        try:
            with noting_data() if of_parameter else nullcontext():
                result = plain(*args, **(kwargs or {}))
        finally:
            sys.settrace(self._enter)
        if function == _DATA and not of_parameter:
            self.observer.data_of(result)
        return result

    def _enter(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if _sides.get(code.co_filename) == "machinery":  # most of what runs
            return None
        if self.observer.lenient and is_of_torch_modules(code.co_filename):
            return None
        if (code in _ENVIRONMENT or code is IMPORTS) and is_observed(frame.f_back):
            self.observer.ask(frame)
        if not is_observed(frame):
            return None
        if frame.f_back is not None and frame.f_back.f_code.co_filename == _ABC and not is_observed(frame.f_back):
            return None  # a class says for whoever asks what is one of its objects
        self.observer.enter(frame)
        if not actions_of(code) and code not in self.observer.keeping:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if code not in self.steps:
            self.steps[code] = self._step_of(code)
        return self.steps[code]

    def _step_of(self, code: types.CodeType) -> Callable[[types.FrameType, str, Any], Any]:
        """What Python calls before every instruction of a piece of code, and as it ends. It is found once: to look something
        up by a piece of code takes longer than all the rest."""
        observer, action_at = self.observer, actions_of(code).get

        def step(frame: types.FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                action = action_at(frame.f_lasti)
                if action is not None:
                    observer.act(frame, action)
            elif event == "return" and code in observer.keeping:
                observer.returned(argument, code.co_name)
            return step

        return step


_ON_THE_WAY = Tracing.__torch_function__.__code__  # to a function of torch, which the model has called
