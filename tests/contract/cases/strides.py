"""How what a block keeps lies in memory, where the block asks for it or makes use of it."""

from torch import nn

from tests.contract.parts import Mlp, case, twins, values


class Keeps(Mlp):
    """Multiplies with what it reads of a table, which is a buffer or not."""

    def __init__(self, read, buffer, table=None):
        super().__init__()
        self.read, table = read, values(3, 4) if table is None else table()
        if buffer:
            self.register_buffer("table", table)
        else:
            self.table = table

    def middle(self, y):
        return y.relu() * self.read(self.table)


def transposed():
    return values(4, 3, seed=1).t()


def keeping(read, buffer, table=None):
    net = twins(lambda index: Keeps(read, buffer, table))
    yield net
    yield
    net.blocks[0].table = transposed()
    yield
    net.blocks[1].table.data = transposed()
    yield
    net.blocks[0].table = values(3, 8, seed=2)[:, ::2]
    yield
    net.blocks[0].table = values(3, 4, seed=3)
    yield


@case()
def whether_a_buffer_is_contiguous():
    yield from keeping(lambda table: 2.0 if table.is_contiguous() else 3.0, True)


@case()
def whether_a_plain_tensor_is_contiguous():
    yield from keeping(lambda table: 2.0 if table.is_contiguous() else 3.0, False)


@case()
def whether_a_part_of_a_plain_tensor_is_contiguous():
    yield from keeping(lambda table: 2.0 if table[1:].is_contiguous() else 3.0, False)


@case()
def whether_a_result_of_a_buffer_is_contiguous():
    yield from keeping(lambda table: 2.0 if (table * 2).is_contiguous() else 3.0, True)


@case()
def strides_of_a_buffer():
    yield from keeping(lambda table: float(table.stride(0)), True)


@case()
def buffer_that_lies_otherwise_from_the_first():
    yield from keeping(lambda table: 2.0 if table.is_contiguous() else 3.0, True, transposed)


def written(table):
    table.contiguous().add_(1.0)
    return table.sum()


@case()
def buffer_that_is_written_where_it_lies_in_order():
    yield from keeping(written, True)


@case()
def plain_tensor_that_is_written_where_it_lies_in_order():
    yield from keeping(written, False)


class HasParameter(Mlp):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(values(3, 4))

    def middle(self, y):
        factor = 2.0 if self.table.is_contiguous() and self.up.weight.is_contiguous() else 3.0
        return y.relu() * self.table.sum() * factor


@case()
def whether_a_parameter_is_contiguous():
    net = twins(lambda index: HasParameter())
    yield net
    yield
    net.blocks[0].table = nn.Parameter(transposed())
    yield
    net.blocks[1].table.data = transposed()
    yield
    net.blocks[0].table = nn.Parameter(values(3, 4, seed=3))
    yield
