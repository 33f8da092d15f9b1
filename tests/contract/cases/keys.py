"""Keys of dicts and items of sets, which change into equal ones, or into another order."""

from collections import OrderedDict

from tests.contract.parts import case, reading


def refilled(held, *items):
    """Takes everything out of a set, and puts other items in."""

    def change(net):
        held.clear()
        for item in items:
            held.add(item)

    return change


@case()
def order_of_a_set():
    held = {8}
    held.add(16)
    yield from reading(
        lambda b: float(next(iter(b.held))), refilled(held, 16, 8), refilled(held, 8, 16), lambda net: None, held=held
    )


@case()
def items_of_a_set_that_are_equal():
    held = {1}
    yield from reading(
        lambda b: float(len(str(*b.held))),
        refilled(held, True),
        refilled(held, 1.0),
        refilled(held, 1),
        held=held,
    )


@case()
def zeros_in_a_set():
    held = {0.0}
    yield from reading(
        lambda b: 2.0 if str(*b.held)[0] == "-" else 3.0, refilled(held, -0.0), refilled(held, 0.0), held=held
    )


@case()
def frozen_sets_that_are_equal():
    def put(*items):
        return lambda net: [setattr(block, "held", frozenset(items)) for block in net.blocks]

    yield from reading(lambda b: float(len(str(*b.held))), put(True), put(1), put(1.0), held=frozenset([1]))


@case()
def keys_that_are_equal():
    held = {1: 2.0}

    def key(old, new):
        return lambda net: held.__setitem__(new, held.pop(old))

    yield from reading(
        lambda b: sum(len(str(k)) * v for k, v in b.held.items()), key(1, True), key(True, 1.0), key(1.0, 1), held=held
    )


@case()
def pairs_as_keys_that_are_equal():
    held = {(1, "a"): 2.0}

    def key(old, new):
        return lambda net: held.__setitem__((new, "a"), held.pop((old, "a")))

    yield from reading(
        lambda b: sum(len(str(k)) * v for k, v in b.held.items()), key(1, True), key(True, 1.0), key(1.0, 1), held=held
    )


@case()
def key_that_a_block_puts_in_the_place_of_an_equal_one():
    held = {1: 2.0}

    def write(block):
        held[True] = held.pop(1)
        return 2.0

    yield from reading(write, *[lambda net: held.__setitem__(1, held.pop(True))] * 3, held=held)


@case()
def order_of_an_ordered_dict_whose_entries_move():
    held = OrderedDict(a=2.0, b=5.0)

    def move(name):
        return lambda net: held.move_to_end(name)

    yield from reading(
        lambda b: next(iter(b.held.values())),
        lambda net: None,
        move("a"),
        lambda net: None,
        move("b"),
        held=held,
    )
