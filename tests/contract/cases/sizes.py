"""Strides of values that are cut: sizes of the whole are in them."""

from torch.nn import functional

from tests.contract.parts import HIDDEN, Mlp, call, case, leaf, twins


class Strides(Mlp):
    """Multiplies what is cut with a stride of something."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def middle(self, y):
        return y.relu() * self.read(y) / 48


def striding(read):
    yield twins(lambda index: Strides(read))
    for rows, length in ((2, 5), (2, 7), (3, 4), (4, 8)):
        yield call(leaf(rows, length, HIDDEN))


@case()
def stride_of_what_is_cut():
    yield from striding(lambda y: y.stride(0))


@case()
def stride_of_a_part_of_what_is_cut():
    yield from striding(lambda y: y[:, 1:].stride(0) + y[..., :12].stride(0) + y[:, 1:, :20].stride(0))


@case()
def stride_of_heads_of_what_is_cut():
    yield from striding(lambda y: y.view(*y.shape[:2], 4, 12).transpose(1, 2).contiguous().stride(0))


@case()
def stride_of_windows_of_what_is_cut():
    def read(y):
        windows = functional.pad(y, (0, 0, 1, 1)).unfold(1, 2, 1)
        return windows.stride(0) + y[:, :, None].expand(-1, -1, 3, -1).stride(0)

    yield from striding(read)
