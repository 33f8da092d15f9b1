"""Bad input gets one clear line and a typed error, and nothing is half done."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

import autotp
from autotp.errors import AutotpError, PlanError, UsageError
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from tests.families import FAMILIES
from tests.parts import held


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("tp", [0, -1, 1.5, True, "2"])
def test_tp_must_be_a_whole_number_of_at_least_one(tp: object) -> None:
    with pytest.raises(UsageError, match="at least 1") as caught:
        autotp.plan("gpt2", tp)  # type: ignore[arg-type]
    one_line(caught.value)


def test_parallelize_without_a_process_group() -> None:
    model = build_model(FAMILIES["gpt2"].config())
    with pytest.raises(UsageError, match="init_process_group") as caught:
        autotp.parallelize(model)
    one_line(caught.value)
    assert "_autotp" not in vars(model)


def test_parallelize_takes_modules_only() -> None:
    with pytest.raises(UsageError, match=r"nn\.Module, not str"):
        autotp.parallelize("gpt2")  # type: ignore[type-var]


def test_a_model_is_something_known() -> None:
    with pytest.raises(UsageError, match="not int"):
        autotp.plan(7, 2)
    with pytest.raises(UsageError, match="did you mean 'llama'"):
        autotp.plan("lama", 2)


def test_a_plain_module_needs_an_example() -> None:
    with pytest.raises(UsageError, match="example="):
        autotp.plan(nn.Linear(4, 4), 2)


def test_a_configuration_that_no_model_can_be_built_of_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"transformers cannot build a model of this LlamaConfig: [^\n]+$"):
        autotp.plan(LlamaConfig(hidden_act="no such function"), tp=2)


def test_a_model_that_fails_by_itself_is_not_blamed_on_the_plan() -> None:
    with pytest.raises(UsageError, match=r"Linear itself, not cut, fails .*RuntimeError.*give others as example$"):
        autotp.verify(nn.Linear(4, 8), 2, example=torch.ones(2, 3))


def test_rules_folder_must_exist() -> None:
    with pytest.raises(UsageError, match="does not exist"):
        autotp.plan("gpt2", 2, rules=["/nowhere"])


def try_on_a_rank(case: str) -> tuple[str, str, bool]:
    """Runs on a rank: the error's type and text, and whether the model was left as it was."""
    model = build_model(FAMILIES["gpt2"].config(), meta=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        if case == "too many":
            autotp.parallelize(model, tp=3)
        elif case == "other size":
            autotp.parallelize(model, plan=autotp.plan(model, 4))
        elif case == "other model":
            autotp.parallelize(model, plan=autotp.plan(FAMILIES["bloom"].config(), 2))
        elif case == "twice":
            autotp.parallelize(model)
            before = dict(model.state_dict(keep_vars=True))
            autotp.parallelize(model)
    except AutotpError as error:
        after = model.state_dict(keep_vars=True)
        same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        return type(error).__name__, str(error), same
    return "", "", False


WRONG_CALLS = {
    "too many": (UsageError, "tp=3 does not divide the 2 ranks"),
    "other size": (PlanError, "the plan is for 4 ranks, the group has 2"),
    "other model": (PlanError, "for another model"),
    "twice": (PlanError, "parallel already"),
}


def try_all_on_a_rank() -> dict[str, tuple[str, str, bool]]:
    return {case: try_on_a_rank(case) for case in WRONG_CALLS}


def test_wrong_calls_leave_the_model_alone_on_every_rank() -> None:
    for outcomes in run_ranks(try_all_on_a_rank, 2):
        for case, (name, message, same) in outcomes.items():
            kind, text = WRONG_CALLS[case]
            assert name == kind.__name__, case
            assert text in message, case
            assert "\n" not in message, case
            assert same, case


def local_shapes_on_meta() -> list[tuple[bool, tuple[int, ...]]]:
    model = autotp.parallelize(build_model(FAMILIES["llama"].config()))
    return [(parameter.is_meta, tuple(held(parameter).shape)) for parameter in model.parameters()]


def test_meta_parameters_stay_on_meta_with_local_shapes() -> None:
    whole = [tuple(parameter.shape) for parameter in build_model(FAMILIES["llama"].config()).parameters()]
    for shapes in run_ranks(local_shapes_on_meta, 2):
        assert all(is_meta for is_meta, _ in shapes)
        smaller = [local != dense for (_, local), dense in zip(shapes, whole, strict=True)]
        assert sum(smaller) == 16  # all matrices: seven in each of two blocks, embedding and head
