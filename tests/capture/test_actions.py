"""What instructions do to state that outlives their call, read from code."""

from __future__ import annotations

from typing import Any

from autotp.capture.contract.actions import actions_of, past_access


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


class Reader:
    name = "width"

    def by_words(self) -> Any:
        return super().__getattribute__("name"), super().__getattribute__("other")

    def by_a_variable(self, name: str) -> Any:
        return super().__getattribute__("name"), super().__getattribute__(name)

    def by_one_of_two(self, first: bool) -> Any:
        return super().__getattribute__("name" if first else "other")

    def of_something_else(self, other: Any) -> Any:
        return object.__getattribute__(other, "name")

    def of_its_class(self) -> Any:
        return type(self).__getattribute__(self, "name")

    def kept(self) -> Any:
        return super().__getattribute__

    def not_at_all(self) -> Any:
        return self.name


def test_what_is_read_past_the_access_of_a_class_is_found_where_words_name_it() -> None:
    assert past_access(Reader.by_words.__code__) == {"name", "other"}
    others = vars(Reader).keys() - vars(type("Empty", (), {})).keys() - {"name", "by_words"}
    assert len(others) == 6
    assert {name: past_access(vars(Reader)[name].__code__) for name in others} == dict.fromkeys(others)
