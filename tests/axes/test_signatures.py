"""Rule files: signatures, element-wise classes, a user's own folder, and what a typo says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotp.axes.infer import infer
from autotp.axes.rules import CLASSES, operator_rules
from autotp.axes.signature import Group, parse_signature
from autotp.axes.term import Axis, axes_of
from autotp.errors import RuleError
from autotp.outside.rule_files import RULES
from tests.axes.prover import capture, prove


@torch.library.custom_op("tests::doubled_product", mutates_args=())
def doubled_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A third party's kernel, of which only a rule file knows what it does."""
    return 2 * (x @ y)


@doubled_product.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    x, y = ctx.saved_tensors
    return 2 * gradient @ y.T, 2 * x.T @ gradient


def _keep(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


doubled_product.register_autograd(_backward, setup_context=_keep)

KERNEL = torch.ops.tests.doubled_product


def folder(tmp_path: Path, text: str) -> Path:
    """A user's folder of rules with one file in it."""
    (tmp_path / "ops").mkdir(parents=True)
    (tmp_path / "ops" / "mine.toml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def operands() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (4, 5))]


# -- signatures ----------------------------------------------------------------------------------------------------


def test_a_signature_has_operands_results_and_what_it_sums() -> None:
    signature = parse_signature("... i, o i, o? -> ... o", "o")
    assert signature.operands == (
        Group(("i",), leading=True, optional=False),
        Group(("o", "i"), leading=False, optional=False),
        Group(("o",), leading=False, optional=True),
    )
    assert signature.results == (Group(("o",), leading=True, optional=False),)
    assert signature.contracted == {"i"}
    assert signature.whole == {"o"}


def test_a_signature_may_have_several_results_and_none_of_the_letters() -> None:
    assert len(parse_signature("a b -> a, b, a b").results) == 3
    assert parse_signature("k, k -> ").results == (Group((), leading=False, optional=False),)


@pytest.mark.parametrize(
    ("text", "whole", "reason"),
    [
        ("a b", "", "exactly one '->'"),
        ("a -> b -> c", "", "exactly one '->'"),
        ("a bc!, d -> a", "", "cannot read 'a bc!'"),
        ("a ... b -> a", "", "cannot read 'a ... b'"),
        ("2 a -> a", "", "cannot read '2 a'"),
        ("a b -> a", "c", "'whole' names 'c'"),
        ("a b -> a?", "", "cannot be optional"),
    ],
)
def test_a_signature_that_cannot_be_read_says_why(text: str, whole: str, reason: str) -> None:
    with pytest.raises(RuleError, match=reason.replace("?", r"\?").replace(".", r"\.")):
        parse_signature(text, whole)


def test_rows_may_pick_parts_of_an_operand() -> None:
    signature = parse_signature("n k, e k m, g -> n m", "n g", picks="n e g")
    assert (signature.contracted, signature.picks) == ({"k"}, ("n", "e", "g"))


@pytest.mark.parametrize(
    ("text", "picks"),
    [
        ("n k, e k m, g -> n m", "n e"),
        ("n k, e k m, g -> n m", "k e g"),
        ("n k, e k m, g -> n m", "n m g"),
        ("n k, e k m, e -> n m", "n e e"),
        ("n k, e k m, e g -> n m", "n e g"),
        ("... n k, e k m, g -> ... n m", "n e g"),
    ],
)
def test_picks_that_are_none_say_what_they_need(text: str, picks: str) -> None:
    with pytest.raises(
        RuleError, match=f"'picks' of the signature .* is '{picks}'; name three of its letters: rows, which"
    ):
        parse_signature(text, picks=picks)


def test_a_call_that_is_not_as_its_signature_says_is_named(tmp_path: Path, operands: list[torch.Tensor]) -> None:
    rules = operator_rules((folder(tmp_path, '[tests]\ndoubled_product = "n k -> n k"'),))
    graph = capture(KERNEL, operands).traced.graph
    with pytest.raises(RuleError, match=r"tests\.doubled_product has 2 tensor operands at \w+, its signature 1"):
        infer(graph, rules)


def test_an_operand_of_another_rank_is_named(tmp_path: Path, operands: list[torch.Tensor]) -> None:
    rules = operator_rules((folder(tmp_path, '[tests]\ndoubled_product = "n k, b k m -> n m"'),))
    graph = capture(KERNEL, operands).traced.graph
    with pytest.raises(RuleError, match=r"an operand of tests\.doubled_product at \w+ has 2 dims"):
        infer(graph, rules)


# -- a user's folder -----------------------------------------------------------------------------------------------


def free_sizes(operands: list[torch.Tensor], *folders: Path) -> list[list[int]]:
    """The sizes of the axes that may be cut, operand by operand."""
    captured = capture(KERNEL, operands)
    typing = infer(captured.traced.graph, operator_rules(folders))
    dims = [typing.dims(node) for node in captured.traced.graph.nodes if node.op == "get_attr"]
    return [[a.size for term in own for a in axes_of(term) if isinstance(a, Axis) and not a.pins] for own in dims]


def test_an_operator_without_a_rule_keeps_everything_whole(operands: list[torch.Tensor]) -> None:
    assert free_sizes(operands) == [[], []]
    captured = capture(KERNEL, operands)
    assert list(captured.typing.unruled.values()) == ["tests.doubled_product"]
    assert prove(KERNEL, operands).proved == set()


def test_a_line_in_a_users_folder_is_a_rule(tmp_path: Path, operands: list[torch.Tensor]) -> None:
    mine = folder(tmp_path, '[tests]\ndoubled_product = "n k, k m -> n m"')
    assert free_sizes(operands, mine) == [[3, 4], [4, 5]]
    proof = prove(KERNEL, operands, rules=(mine,))
    assert [proof.sizes(i, ranks) for ranks in (2, 3) for i in (0, 1)] == [[[3], [4]], [[4], [5]]] * 2


def test_letters_may_be_kept_whole(tmp_path: Path, operands: list[torch.Tensor]) -> None:
    text = '[tests]\ndoubled_product = { signature = "n k, k m -> n m", whole = "k m" }'
    assert free_sizes(operands, folder(tmp_path, text)) == [[3], []]


def test_further_operands_are_whole(tmp_path: Path, operands: list[torch.Tensor]) -> None:
    none, one = tmp_path / "none", tmp_path / "one"
    assert free_sizes(operands, folder(none, '[tests]\ndoubled_product = "n k, k m, * -> n m"')) == [[3, 4], [4, 5]]
    assert free_sizes(operands, folder(one, '[tests]\ndoubled_product = "n k, * -> n m"')) == [[3, 4], []]


def test_a_method_may_be_given_further_operands() -> None:
    keys, positions = torch.zeros(2, 3, 4, 5), torch.zeros(2, 4)
    node = SimpleNamespace(meta={"val": (keys, keys)})
    for text, fits in (
        ("b h s d, b h s e -> b h t d, b h t e", False),
        ("b h s d, b h s e, * -> b h t d, b h t e", True),
    ):
        call: Any = SimpleNamespace(node=node, operands=(keys, keys, positions), dims=lambda each: each.shape)
        assert parse_signature(text).fits(call) is fits
        call.operands = (keys, keys)
        assert parse_signature(text).fits(call)
        call.operands = (keys,)
        assert not parse_signature(text).fits(call)


def test_a_users_rule_goes_before_the_built_in_one(tmp_path: Path) -> None:
    mine = folder(
        tmp_path, '[aten]\nmm = { signature = "n k, k m -> n m", whole = "n" }\n[aten.pointwise]\nother = ["relu"]'
    )
    built_in, merged = operator_rules(), operator_rules((mine,))
    assert merged["aten.relu"].rule is CLASSES["other"]
    assert built_in["aten.relu"].rule is CLASSES["zero_to_zero"]
    assert merged["aten.mm"] != built_in["aten.mm"]
    assert merged["aten.bmm"] == built_in["aten.bmm"]
    assert merged.keys() == built_in.keys()


def test_the_last_folder_has_the_last_word(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path, kind in ((first, "other"), (second, "singular")):
        path.mkdir()
        folder(path, f'[aten.pointwise]\n{kind} = ["relu"]')
    assert operator_rules((first, second))["aten.relu"].rule is CLASSES["singular"]
    assert operator_rules((second, first))["aten.relu"].rule is CLASSES["other"]


def test_a_folder_without_operators_changes_nothing(tmp_path: Path) -> None:
    assert operator_rules((tmp_path,)) == operator_rules()


# -- typos ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '[aten.pointwise]\nlinear_joint = ["add"]',
            "unknown key 'linear_joint' in aten.pointwise; did you mean 'linear_jointly'?",
        ),
        ("[aten.pointwise]\nxyz = []", "unknown key 'xyz' in aten.pointwise; known: linear_each, "),
        (
            '[aten]\nmm = { signatur = "n k, k m -> n m" }',
            "unknown key 'signatur' in aten.mm; did you mean 'signature'?",
        ),
        ('[aten]\nmm = { whole = "n" }', "aten.mm lacks 'signature'; expected text such as"),
        ('[aten]\nmm = "n k, k m"', "aten.mm: the signature 'n k, k m' needs exactly one '->'"),
        ('[aten]\nmm = { signature = "n k, k m -> n m", whole = "o" }', "aten.mm: 'whole' names 'o'"),
        ("[aten]\nmm = ", "Invalid value (at end of document)"),
        ("[aten]\nmm = 3", "aten.mm is 3; expected a signature, or a table with one"),
        ("[aten]\nmm = { signature = 3 }", "aten.mm.signature is 3; expected text"),
        (
            '[aten]\nmm = { signature = "n k, k m -> n m", attends = "no" }',
            "aten.mm.attends is 'no'; expected true",
        ),
        ('[function]\nf = "x: a"', "function.f: the signature 'x: a' needs exactly one '->', as in"),
        (
            '[function]\nf = "a b -> a b"',
            "function.f: cannot read 'a b' in the signature 'a b -> a b'; write 'name: b t c'",
        ),
        (
            '[function]\nf = "x: a 2 -> a"',
            "cannot read 'a 2' in the signature 'x: a 2 -> a'; write letters and '(g r)'",
        ),
        ('[function]\nf = "x: a b -> a"', "has no 'b' on its right; a function needs it 'whole'"),
        ('[function]\nf = { signature = "x: a -> a", zeros = "y" }', "'zeros' names 'y'"),
        (
            '[function]\nf = { signature = "x: a -> a", zero = "x" }',
            "unknown key 'zero' in function.f; did you mean 'zeros'?",
        ),
        (
            '[function]\nf = { signature = "x: a -> a", zero_results = "x" }',
            "zero_results is 'x'; expected a number of results",
        ),
        ('aten = "mm"', "aten is 'mm'; expected a table such as [aten]"),
        ('[aten]\npointwise = ["add"]', "aten.pointwise is ['add']; expected a table such as [aten.pointwise]"),
        ('[aten.pointwise]\nother = "add"', "aten.pointwise.other is 'add'; expected a list"),
    ],
)
def test_a_typo_names_the_file_and_the_entry(tmp_path: Path, text: str, reason: str) -> None:
    mine = folder(tmp_path, text)
    with pytest.raises(RuleError) as raised:
        operator_rules((mine,))
    assert str(mine / "ops" / "mine.toml") in str(raised.value)
    assert reason in str(raised.value)


def test_the_rules_of_this_package_are_found() -> None:
    assert {path.stem for path in (RULES / "ops").glob("*.toml")} >= {"linear", "pointwise", "opaque"}
