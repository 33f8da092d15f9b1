"""Functions of torch that somebody has put another in the place of."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

_HERE = Path(__file__).parent
# On the way from torch's function to here.
_ASKING = (
    torch.overrides.__file__,
    *map(str, (Path(__file__), _HERE / "functions.py", _HERE / "tensor.py", _HERE.with_name("results") / "tensor.py")),
)


def meant(func: Any) -> Any:
    """The function of torch's own that asks what to do, where somebody's function has taken its place: torch looks itself up by
    its name, and finds that one, which would run twice."""
    if type(func) is not types.FunctionType or str(func.__module__).partition(".")[0] == "torch":
        return func
    asking: types.FrameType | None = sys._getframe(1)
    while asking is not None and asking.f_code.co_filename in _ASKING:
        asking = asking.f_back
    if asking is None or asking.f_code is func.__code__ or asking.f_code.co_filename != functional.__file__:
        return func
    return types.FunctionType(asking.f_code, asking.f_globals)
