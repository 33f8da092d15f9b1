"""What instructions do to state that outlives their call, read from code."""

from __future__ import annotations

from typing import Any

from autotp.capture.contract.actions import actions_of


def takes_from_an_import() -> Any:
    """Loads constants of all kinds between the import and its uses."""
    import math
    from os import path as held

    nothing = ()
    some = ("math", "held")
    word = "math"
    return nothing, some, word, math.inf, held.sep


def test_what_is_read_off_an_import_is_found_beside_constants() -> None:
    imports = [a for a in actions_of(takes_from_an_import.__code__).values() if a.operation == "IMPORT_NAME"]
    assert [(action.name, set(action.chains)) for action in imports] == [
        ("math", {("inf",)}),
        ("os", {("path",), ("path", "sep")}),
    ]
