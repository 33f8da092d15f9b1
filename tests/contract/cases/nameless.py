"""Classes and Python modules that call themselves like those of Python, and are a user's."""

import dataclasses
import types

from tests.contract.parts import Mlp, case, reading, twins

Scale = dataclasses.make_dataclass(
    "Scale", [("factor", float)], namespace={"__call__": lambda self, y: y * self.factor}
)
OLD = Scale.__call__


class Scales(Mlp):
    def __init__(self, index):
        super().__init__()
        self.scale = Scale(2.0)

    def middle(self, y):
        return self.scale(y.relu())


@case()
def method_of_a_class_that_was_made_by_a_function():
    yield twins(Scales)
    yield
    Scale.__call__ = lambda self, y: y * self.factor * 3
    yield
    yield
    Scale.__call__ = OLD
    yield


SPACE = {}
exec("class Held: factor = 2.0", SPACE)
KINDS = {"a": SPACE["Held"]}


@case()
def class_that_no_module_has():
    def put(factor):
        return lambda net: setattr(KINDS["a"], "factor", factor)

    yield from reading(lambda b: next(iter(KINDS.values())).factor, put(5.0), put(3.0), put(2.0))


NEW = types.new_class("New", exec_body=lambda names: names.update(factor=2.0))


@case()
def class_that_is_called_one_of_types():
    def put(factor):
        return lambda net: setattr(NEW, "factor", factor)

    yield from reading(lambda b: (lambda kind: getattr(kind, "fac" + "tor"))(NEW), put(5.0), put(3.0), put(2.0))


@case()
def module_that_is_called_like_one_of_python():
    settings = types.ModuleType("profile.settings")
    settings.factor = 2.0

    def put(factor):
        return lambda net: setattr(settings, "factor", factor)

    yield from reading(lambda b: getattr(b.held, "fac" + "tor"), put(5.0), put(3.0), put(2.0), held=settings)
