"""Sizes and numbers as text: keys of tables, names of attributes, what a block gives back."""

import string

from tests.contract.parts import HIDDEN, Mlp, Net, call, case, leaf, twins


class Texts(Mlp):
    """Multiplies with what it finds by a text that has sizes in it."""

    def __init__(self, read):
        super().__init__()
        self.read = read
        self.table = {
            "5": 2.0,
            "7": 3.0,
            "2x5": 5.0,
            "2x7": 6.0,
            "3.5": 7.0,
            "torch.Size([2, 7, 48])": 8.0,
            "True": 9.0,
        }
        self.scale_5, self.scale_7 = 4.0, 6.0

    def middle(self, y):
        return y.relu() * self.read(self, y)


def lengths(read):
    yield twins(lambda index: Texts(read))
    for rows, length in ((2, 5), (2, 7), (3, 4), (4, 8), (2, 5)):
        yield call(leaf(rows, length, HIDDEN))


@case()
def size_as_a_word_of_a_table():
    yield from lengths(lambda block, y: block.table.get(f"{y.shape[1]}", 1.0))


@case()
def sizes_as_one_word_of_a_table():
    yield from lengths(lambda block, y: block.table.get("x".join(map(str, y.shape[:2])), 1.0))


@case()
def shape_as_a_word_of_a_table():
    yield from lengths(lambda block, y: block.table.get(str(y.shape), 1.0))


@case()
def part_of_a_size_as_a_word_of_a_table():
    yield from lengths(lambda block, y: block.table.get(f"{y.shape[1] / 2:.1f}", 1.0))


@case()
def question_of_a_size_as_a_word_of_a_table():
    yield from lengths(lambda block, y: block.table.get(str(y.shape[1] > 5), 1.0))


@case()
def size_in_the_name_of_an_attribute():
    yield from lengths(lambda block, y: getattr(block, f"scale_{y.shape[1]:d}", 1.0))


@case()
def size_in_a_text_of_other_makers():
    def read(block, y):
        texts = ("%s" % y.shape[1], string.Template("$n").substitute(n=y.shape[1]))  # noqa: UP031
        return sum(block.table.get(text, 1.0) for text in texts)

    yield from lengths(read)


@case()
def number_as_a_word_of_a_table():
    class Numbered(Texts):
        def forward(self, x, number=1):
            return super().forward(x) * self.table.get(str(number), 1.0)

    yield twins(lambda index: Numbered(lambda block, y: 1.0)), (leaf(2, 5, HIDDEN), 5)
    for number in (5, 6, 7, 9, 5):
        yield call(leaf(2, 5, HIDDEN), number)


class Says(Mlp):
    def forward(self, x):
        y = super().forward(x)
        return y, f"{y.shape[1]}", {f"rows {y.shape[0]}": y * 2}


class Hears(Net):
    def forward(self, x):
        for block in self.blocks:
            y, text, named = block(x)
            (name,) = named
            x = y * len(text) + named[name] * len(name)
        return x


@case()
def size_in_a_text_that_a_block_gives():
    yield Hears(Says(), Says())
    for rows, length in ((2, 5), (2, 7), (30, 4), (4, 18)):
        yield call(leaf(rows, length, HIDDEN))
