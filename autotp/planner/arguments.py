"""The arguments of one forward, said plainly."""

from __future__ import annotations

from typing import Any


class Arguments:
    """What a model is called with: `Arguments(x, mask=m)` stands for `model(x, mask=m)`, whatever x and m are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs
