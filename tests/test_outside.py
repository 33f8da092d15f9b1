"""Class methods in Python and in C are called alike."""

from __future__ import annotations

import pytest

from autotp.outside.methods import function_of, is_class_method

pytestmark = pytest.mark.matrix


class Named(dict[str, int]):
    @classmethod
    def named(cls, name: str) -> str:
        return f"{cls.__name__} {name}"


@pytest.mark.parametrize(
    ("owner", "name", "argument", "result"),
    [(Named, "named", "x", "Named x"), (dict, "fromkeys", "ab", {"a": None, "b": None})],
)
def test_a_class_method_is_a_function_of_the_class(owner: type, name: str, argument: str, result: object) -> None:
    method = vars(owner)[name]
    assert is_class_method(method)
    found = function_of(method)(Named, argument)
    assert found == result
    assert owner is Named or type(found) is Named


def test_other_methods_are_no_class_methods() -> None:
    assert not any(map(is_class_method, (staticmethod(len), len, vars(dict)["get"])))
