"""Chain rules on hand-written modules: what is proposed, what is explained, and what a rule file may say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import autotp
from autotp.chains.match import NearMiss
from autotp.chains.rules import chain_rules
from autotp.errors import RuleError
from autotp.huggingface.examples import examples_for
from autotp.planner.choose import UnitProblem
from autotp.planner.survey import survey

HIDDEN, HEADS, HEAD = 32, 4, 8
X = torch.randn(2, 3, HIDDEN)
TOKENS = torch.zeros(2, 3, dtype=torch.long)
EXACT = 1e-12


def linear(inner: int, outer: int) -> nn.Linear:
    return nn.Linear(inner, outer, bias=False)


def problem_of(module: nn.Module, example: torch.Tensor, rules: tuple[Path, ...] = ()) -> UnitProblem:
    found = survey(module, examples_for(module, example), rules)
    assert not found.failures
    (problem,) = found.problems.values()
    return problem


def proposed(module: nn.Module, example: torch.Tensor = X) -> dict[str, tuple[list[int], set[str]]]:
    """The rules that propose something: the sizes of the axes and the last names of the weights."""
    proposals = problem_of(module, example).proposals
    assert len({proposal.rule.name for proposal in proposals}) == len(proposals)
    return {
        p.rule.name: ([a.size for a in p.axes], {n.removesuffix(".weight") for n in p.parameters}) for p in proposals
    }


def assert_exact(module: nn.Module, example: torch.Tensor, tp: int, **counted: int) -> None:
    """The module cut over some ranks equals the whole one, at this many collectives by kind and phase."""
    report = autotp.verify(module, tp, example=example)
    report.raise_for_failure()
    assert max(difference.error for difference in (*report.outputs, *report.gradients)) < EXACT
    found = {f"{kind.split()[0]}_{kind.split()[1]}": count for kind, count in report.counted.items()}
    assert found == counted


# -- feed-forward --------------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 48), nn.Linear(48, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class GatedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = linear(HIDDEN, 48), linear(HIDDEN, 48), linear(48, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class FusedGatedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = linear(HIDDEN, 2 * 48), linear(48, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


@pytest.mark.parametrize(
    ("module", "rule", "weights"),
    [
        (Mlp(), "mlp", {"up", "down"}),
        (GatedMlp(), "gated_mlp", {"gate", "up", "down"}),
        (FusedGatedMlp(), "fused_gated_mlp", {"gate_up", "down"}),
    ],
)
def test_feed_forward(module: nn.Module, rule: str, weights: set[str]) -> None:
    assert proposed(module) == {rule: ([48], weights)}
    assert_exact(module, X, 2, all_reduce_forward=1)


# -- experts -------------------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Every token goes to one of four experts, whose weights are stacked, gate and up projection behind each other."""

    def __init__(self) -> None:
        super().__init__()
        self.router = linear(HIDDEN, 4)
        self.gate_up, self.down = nn.Parameter(torch.randn(4, 2 * 24, HIDDEN)), nn.Parameter(torch.randn(4, HIDDEN, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, HIDDEN)
        weight, which = self.router(rows).softmax(-1).max(-1)
        sorted_which, order = which.sort()
        ends = functional.one_hot(sorted_which, 4).sum(0).cumsum(0, dtype=torch.int32)
        gate, up = self.grouped(rows[order], self.gate_up, ends).chunk(2, dim=-1)
        result = self.grouped(functional.silu(gate) * up, self.down, ends) * weight[order].unsqueeze(-1)
        return result[order.argsort()].reshape(x.shape)

    def grouped(self, rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return functional.grouped_mm(rows, weights.transpose(1, 2), offs=ends)


def test_experts_are_cut_inside_every_expert_or_apart() -> None:
    stacks = {"gate_up", "down"}
    assert proposed(Experts()) == {"experts": ([24], stacks), "whole_experts": ([4], stacks)}
    (unit,) = autotp.plan(Experts(), 2, example=X).units
    assert {p.name: (p.placement, p.layouts) for p in unit.parameters} == {
        "router.weight": ("replicated", ("4", "32")),
        "gate_up": ("column", ("4", "[24/2@1 + 24/2@1]", "32")),
        "down": ("row", ("4", "32", "24/2@1")),
    }
    assert_exact(Experts(), X, 2, all_reduce_forward=1)
    assert_exact(Experts(), X, 5, all_reduce_forward=1)


# -- attention -----------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """What the variants share: heads apart, attend, heads together, project."""

    def __init__(self) -> None:
        super().__init__()
        self.out = linear(HEADS * HEAD, HIDDEN)

    def heads(self, x: torch.Tensor, count: int = HEADS) -> torch.Tensor:
        return x.unflatten(-1, (count, HEAD)).transpose(1, 2)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Separate(Attention):
    def __init__(self, groups: int = HEADS) -> None:
        super().__init__()
        self.groups = groups
        self.q, self.k, self.v = (linear(HIDDEN, n * HEAD) for n in (HEADS, groups, groups))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v = (
            self.heads(layer(x), self.groups).repeat_interleave(HEADS // self.groups, 1) for layer in (self.k, self.v)
        )
        return self.attend(self.heads(self.q(x)), k, v)


class Eager(Separate):
    """The softmax written out, and key heads repeated by an expanded view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def repeated(t: torch.Tensor) -> torch.Tensor:
            wide = self.heads(t, self.groups).unsqueeze(2).expand(-1, -1, HEADS // self.groups, -1, -1)
            return wide.reshape(t.shape[0], HEADS, t.shape[1], HEAD)

        scores = self.heads(self.q(x)) @ repeated(self.k(x)).transpose(-1, -2) * HEAD**-0.5
        return self.out((scores.softmax(-1) @ repeated(self.v(x))).transpose(1, 2).flatten(2))


class Grouped(Separate):
    """Grouped attention without repeating anything."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x), self.groups), self.heads(self.v(x), self.groups)
        found = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.out(found.transpose(1, 2).flatten(2))


class Fused(Attention):
    """One projection: all of q, then all of k, then all of v."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = linear(HIDDEN, 3 * HEADS * HEAD)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(*map(self.heads, self.qkv(x).split(HEADS * HEAD, dim=-1)))


class InterleavedByHead(Fused):
    """One projection: q, k and v of the first head, then of the second, .."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(*self.qkv(x).unflatten(-1, (HEADS, 3 * HEAD)).transpose(1, 2).chunk(3, dim=-1))


class InterleavedByThree(Fused):
    """The same, with the three as a dim of their own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (HEADS, 3, HEAD)).unbind(3)
        return self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


SEPARATE = {"q", "k", "v", "out"}


@pytest.mark.parametrize(
    ("module", "axes", "weights"),
    [
        (Separate(), [HEADS, HEAD], SEPARATE),
        (Eager(), [HEADS, HEAD], SEPARATE),
        (Separate(2), [2, 2], SEPARATE),
        (Eager(2), [2, 2], SEPARATE),
        (Grouped(2), [2, 2], SEPARATE),
        # One key head: it has no axis to cut, so k stays whole on every rank; v's width may still be cut.
        (Separate(1), [HEADS, HEAD], SEPARATE - {"k"}),
        (Grouped(1), [HEADS, HEAD], SEPARATE - {"k"}),
        (Fused(), [HEADS, HEAD], {"qkv", "out"}),
        (InterleavedByHead(), [HEADS, HEAD], {"qkv", "out"}),
        # The three are told apart inside of every head, which cannot be cut further then.
        (InterleavedByThree(), [HEADS], {"qkv", "out"}),
    ],
    ids=lambda value: type(value).__name__ + str(getattr(value, "groups", "")) if isinstance(value, nn.Module) else "",
)
def test_attention(module: nn.Module, axes: list[int], weights: set[str]) -> None:
    assert proposed(module) == {"attention": (axes, weights)}
    report = autotp.verify(module, 2, example=X)
    report.raise_for_failure()
    assert report.counted["all_reduce forward activation"] == 1


@pytest.mark.parametrize("tp", [4, 8])
def test_more_ranks_than_key_heads(tp: int) -> None:
    autotp.verify(Grouped(2), tp, example=X).raise_for_failure()


# -- low-rank projections ------------------------------------------------------------------------------------------


class LowRankQuery(Separate):
    """The query goes through a narrow projection with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.scale = linear(HIDDEN, 12), nn.Parameter(torch.ones(12))
        self.q = linear(12, HEADS * HEAD)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.narrow(x)
        y = self.scale * y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return self.attend(self.heads(self.q(y)), self.heads(self.k(x)), self.heads(self.v(x)))


def test_a_low_rank_projection_is_cut_alone_and_collected() -> None:
    assert proposed(LowRankQuery()) == {
        "attention": ([HEADS, HEAD], SEPARATE),
        "low_rank": ([12], {"narrow"}),
    }
    assert not autotp.plan(LowRankQuery(), 2, example=X).units[0].not_cut
    assert_exact(LowRankQuery(), X, 2, all_reduce_forward=1, all_gather_forward=1, all_reduce_backward=1)


# -- tables --------------------------------------------------------------------------------------------------------


class Language(nn.Module):
    """An embedding, something in between, and a head that may share the embedding's table."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(50, HIDDEN), nn.LayerNorm(HIDDEN), linear(HIDDEN, 50)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(tokens)))


def test_embedding_and_head() -> None:
    assert proposed(Language(tied=False), TOKENS) == {"embedding": ([50], {"table"}), "head": ([50], {"head"})}
    assert_exact(Language(tied=False), TOKENS, 2, all_reduce_forward=1, all_gather_forward=1, all_reduce_backward=1)


def test_a_tied_table_is_one_chain() -> None:
    assert proposed(Language(tied=True), TOKENS) == {"embedding": ([50], {"table"})}
    plan = autotp.plan(Language(tied=True), 2, example=TOKENS)
    assert plan.tied == (("table.weight", "head.weight"),)
    assert plan.units[0].layouts().keys() == {"table.weight"}
    assert_exact(Language(tied=True), TOKENS, 2, all_reduce_forward=1, all_gather_forward=1, all_reduce_backward=1)


def test_a_narrow_head_is_not_worth_collecting() -> None:
    head = nn.Sequential(nn.LayerNorm(HIDDEN), linear(HIDDEN, 5))
    problem = problem_of(head, X)
    assert not problem.proposals
    assert [str(miss) for miss in problem.misses] == [
        "1.weight: rule head, step output: collecting it would cost more than computing it everywhere"
    ]


# -- what is not cut, and why --------------------------------------------------------------------------------------


class Between(nn.Module):
    """Two linears with something between them, in a residual, whose width is whole for a reason of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = linear(HIDDEN, 48), linear(48, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.between(self.up(functional.normalize(x, p=1.0, dim=-1))))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)


def test_a_softmax_over_the_width_is_a_near_miss() -> None:
    problem = problem_of(Between(), X)
    assert not problem.proposals
    (miss,) = problem.misses
    reason = "it must stay whole at softmax (aten.softmax): it is normalised along this dimension"
    assert miss == NearMiss("attention", "linear", "linear_1", ("up.weight", "down.weight"), reason)
    plan = autotp.plan(Between(), 2, example=X)
    assert plan.units[0].not_cut == (f"up.weight, down.weight: rule attention, step linear: {reason}",)
    assert {p.placement for p in plan.units[0].parameters} == {"replicated"}


@torch.library.custom_op("autotp_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda context, gradient: gradient * 2)


class Unknown(Between):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.autotp_test.twice(x)


def test_an_unknown_operator_keeps_its_parameters_whole_and_is_named() -> None:
    plan = autotp.plan(Unknown(), 2, example=X)
    (unit,) = plan.units
    assert not unit.layouts()
    reason = "it must stay whole at twice (autotp_test.twice): there is no rule for this operator"
    assert {name: line for line in unit.not_cut for name in ("up.weight", "down.weight") if line.startswith(name)} == {
        "up.weight": f"up.weight: rule attention, step linear: {reason}",
        "down.weight": f"down.weight: rule attention, step start: {reason}",
    }
    assert all(reason in parameter.reason for parameter in unit.parameters if len(parameter.shape) == 2)
    autotp.verify(Unknown(), 2, example=X).raise_for_failure()


def test_an_operator_rule_of_ones_own_lets_it_be_cut(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "own.toml").write_text('[autotp_test.pointwise]\nlinear_jointly = ["twice"]\n')
    report = autotp.verify(Unknown(), 2, example=X.clone().requires_grad_(), rules=[tmp_path])
    report.raise_for_failure()
    assert report.counted == {"all_reduce forward activation": 1, "all_reduce backward activation": 1}


class Normed(Between):
    """A statistic over the width: one small sum for each token."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@pytest.fixture
def rules(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "chains").mkdir()
    yield tmp_path
    chain_rules.cache_clear()


def write(rules: Path, text: str) -> Path:
    path = rules / "chains" / "own.toml"
    path.write_text(text)
    return path


def test_a_statistic_is_a_near_miss_where_no_rule_allows_it(rules: Path) -> None:
    write(rules, '[normed_mlp]\nstart = "linear"\nend = "linear"\n')
    problem = problem_of(Normed(), X, (rules,))
    assert not problem.proposals
    (miss,) = problem.misses
    assert (miss.rule, miss.step, miss.parameters) == ("mlp", "through", ("up.weight", "down.weight"))
    assert miss.reason == "mean (aten.mean) sums over it"

    (proposal,) = problem_of(Normed(), X).proposals
    assert (proposal.rule.name, [axis.size for axis in proposal.axes]) == ("normed_mlp", [48])
    report = autotp.verify(Normed(), 2, example=X.clone().requires_grad_())
    report.raise_for_failure()
    assert report.counted == {"all_reduce forward activation": 2, "all_reduce backward activation": 2}
    (unit,) = autotp.plan(Normed(), 2, example=X).units
    assert {parameter.rule for parameter in unit.parameters} == {"normed_mlp"}


def test_a_rule_of_the_same_name_replaces_the_shipped_one(rules: Path) -> None:
    write(rules, '[mlp]\nstart = "linear"\nend = "linear"\nreduces = true\n')
    assert [proposal.rule.name for proposal in problem_of(Normed(), X, (rules,)).proposals] == ["mlp"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[own]\nend = "linear"\ntrough = ["join"]\n', r"unknown key 'trough' in own; did you mean 'through'\?"),
        ('[own]\nend = "linaer"\n', r"own names the unknown class 'linaer'; did you mean 'linear'\?"),
        ('[own]\nend = "linear"\nthrough = ["jion"]\n', r"the unknown class 'jion'; did you mean 'join'\?"),
        ('[own]\nend = "linear"\nstart = "lookups"\n', r"the unknown class 'lookups'; did you mean 'lookup'\?"),
        ('[own]\nstart = "linear"\n', r"own lacks 'end'; expected an operator class, or 'output'"),
        ('[own]\nend = "linear"\nthrough = "join"\n', r"own\.through is 'join'; expected a list of operator classes"),
        ('[own]\nend = "linear"\naxes = "two"\n', r"own\.axes is 'two'; expected a whole number of at least 1"),
        ('[own]\nend = "linear"\nreduces = 1\n', r"own\.reduces is 1; expected true or false"),
        ('[own]\nend = "linear"\ncollect = "scatter"\n', r"own\.collect is 'scatter'; expected 'gather'"),
        ("own = 3\n", r"own is 3; expected a table of settings"),
        ("[own\n", r"see docs/rules\.md for the format"),
    ],
)
def test_what_a_rule_file_cannot_say(rules: Path, text: str, message: str) -> None:
    path = write(rules, text)
    with pytest.raises(RuleError, match=message) as caught:
        autotp.plan(Mlp(), 2, example=X, rules=[rules])
    assert str(path) in str(caught.value)
