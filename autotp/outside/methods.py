"""Class methods of classes that are not ours, taken out of the class's namespace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ClassMethodDescriptorType
from typing import Any, TypeAlias, TypeGuard

ClassMethod: TypeAlias = "classmethod[Any, ..., Any] | ClassMethodDescriptorType"


def is_class_method(value: object) -> TypeGuard[ClassMethod]:
    """Returns if a value in a class's namespace is a class method, in Python or in C."""
    return isinstance(value, (classmethod, ClassMethodDescriptorType))


def function_of(method: ClassMethod) -> Callable[..., Any]:
    """A class method as a function whose first argument is the class. One that is written in C, as `Function.apply` is from
    torch 2.15 on, has no function within."""
    if isinstance(method, classmethod):
        return method.__func__

    @functools.wraps(method)
    def bound(kind: type, /, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(None, kind)(*args, **kwargs)

    return bound
