"""Sparse and complex tensors in a call, and sparse ones that a block keeps: as of a network over a graph."""

import torch

from tests.contract.parts import HIDDEN, Mlp, call, case, leaf, twins, values

NODES = 6


def edges(seed=0, layout=torch.sparse_coo, nodes=NODES):
    numbers = values(nodes, nodes, seed=seed)
    whole = torch.where(numbers > 0.3, numbers, 0.0)
    return whole if layout is torch.strided else whole.to_sparse(layout=layout)


class OverEdges(Mlp):
    def forward(self, x, edges):
        return x + self.down((edges @ self.up(self.norm(x))).relu()) * self.factor(edges)

    def factor(self, edges):
        return 1.0


class AsksForLayout(OverEdges):
    def factor(self, edges):
        return 2.0 if edges.is_sparse else 3.0 if edges.layout == torch.sparse_csr else 5.0


class MakesDense(OverEdges):
    def factor(self, edges):
        return edges.to_dense().mean(0).sum()


def given(kind, *layouts):
    yield twins(lambda index: kind()), (values(NODES, HIDDEN), edges(layout=layouts[0]))
    for seed in range(4):
        yield call(leaf(NODES, HIDDEN), edges(seed, layouts[seed % len(layouts)]))
    yield call(leaf(8, HIDDEN), edges(5, layouts[0], 8))


@case()
def sparse_input():
    yield from given(OverEdges, torch.sparse_coo)


@case()
def sparse_input_in_rows():
    yield from given(OverEdges, torch.sparse_csr)


@case()
def sparse_input_at_times():
    yield from given(OverEdges, torch.strided, torch.sparse_coo)


@case()
def sparse_input_that_is_asked_for_its_layout():
    yield from given(AsksForLayout, torch.strided, torch.sparse_coo, torch.sparse_csr)


@case()
def sparse_input_that_becomes_dense():
    yield from given(MakesDense, torch.strided, torch.sparse_coo)


class Keeps(Mlp):
    def __init__(self, buffer):
        super().__init__()
        if buffer:
            self.register_buffer("edges", edges())
        else:
            self.edges = edges()

    def forward(self, x):
        y = self.edges @ self.up(self.norm(x))
        return x + self.down(y.relu()) * (2.0 if self.edges.is_sparse else 3.0)


def keeping(buffer):
    net = twins(lambda index: Keeps(buffer))
    yield net, (values(NODES, HIDDEN),)
    yield call(leaf(NODES, HIDDEN))
    net.blocks[0].edges = edges(3)
    yield call(leaf(NODES, HIDDEN))
    net.blocks[1].edges = edges(4, torch.strided)
    yield call(leaf(NODES, HIDDEN))
    net.blocks[1].edges = edges(5)
    yield call(leaf(NODES, HIDDEN))


@case()
def sparse_buffer_that_is_asked_for_its_layout():
    yield from keeping(True)


@case()
def sparse_plain_tensor_that_is_asked_for_its_layout():
    yield from keeping(False)


class Complex(Mlp):
    def forward(self, x, z):
        return super().forward(x) * torch.view_as_real(z.resolve_conj()).mean()


@case()
def complex_input_and_its_conjugate():
    z = torch.complex(values(3), values(3, seed=1))
    yield twins(lambda index: Complex()), (values(2, 5, HIDDEN), z)
    yield call(leaf(2, 5, HIDDEN), z)
    yield call(leaf(2, 5, HIDDEN), z.conj())
    yield call(leaf(2, 5, HIDDEN), z.clone().requires_grad_())
    yield call(leaf(2, 5, HIDDEN), z.to(torch.complex64).conj())
