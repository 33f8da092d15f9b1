"""Slots of objects that are private to their class, or read through their class."""

from tests.contract.parts import Mlp, case, reading, twins


class Counter:
    __slots__ = ("__n",)

    def __init__(self):
        self.__n = 0

    def put(self, n):
        self.__n = n

    def count(self):
        self.__n += 1

    def get(self):
        return self.__n


class _Counter(Counter):
    """Has a slot of its own, which is written like the other's: Python takes the first line off the name of the class."""

    __slots__ = ("__n", "__wrapped__")

    def __init__(self):
        super().__init__()
        self.__n = self.__wrapped__ = 3.0

    def times(self, factor):
        self.__n *= factor
        return self.__n


class Counts(Mlp):
    def __init__(self, index):
        super().__init__()
        self.counter = Counter()

    def middle(self, y):
        self.counter.count()
        return y.relu()


@case()
def private_slot_that_a_block_counts_with():
    net = twins(Counts)
    yield net
    for _ in range(4):
        yield
    for block in net.blocks:
        block.down.weight.data *= block.counter.get()
    yield


@case()
def private_slot_that_a_block_writes():
    counter = Counter()

    def write(block):
        counter.put(7)
        return 2.0

    def check(net):
        assert counter.get() == 7
        counter.put(0)

    yield from reading(write, check, check, check)


@case()
def private_slot_that_changes():
    counter = Counter()
    yield from reading(
        lambda b: 2.0 + counter.get(), lambda net: counter.put(3), lambda net: None, lambda net: counter.put(0)
    )


@case()
def private_slots_of_a_class_and_its_base():
    counter = _Counter()

    def put(value):
        return lambda net: setattr(counter, "_Counter__n", value)

    yield from reading(lambda b: counter.times(2.0), put(1.0), put(2.0), put(1.0))
