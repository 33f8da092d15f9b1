"""The same cases under `torch.compile`, on real ranks: dynamo asks what a program leaned on before it runs what it compiled."""

from __future__ import annotations

import pytest

from autotp.runtime.groups.launch import run_ranks
from tests.contract.play import assert_as_expected, cases, on_processes, one_in

ALL = sorted(cases())
WRONG_ONCE = (
    "attribute_of_an_ordered_dict",
    "block_put_into_another_block",
    "cache_of_an_encoder_and_decoder_with_gradients",
    "functions_that_are_equal",
    "inference_mode_read_by_the_block",
    "numbers_in_an_ordered_dict",
    "penalty_on_a_gradient",
    "table_transposed",
    "tensors_in_a_dict_with_a_default",
    "tuples_with_names",
)
SAMPLE = ["block_put_into_another_block"]
MORE = [name for name in [*one_in(20, ALL), *WRONG_ONCE] if name not in SAMPLE]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SAMPLE, id="sample"),
        pytest.param(MORE, id="more", marks=pytest.mark.sweep),
        pytest.param([name for name in ALL if name not in SAMPLE + MORE], id="others", marks=pytest.mark.long),
    ],
)
def test_compiled_on_real_ranks(names: list[str]) -> None:
    everywhere = run_ranks(on_processes, 2, names, True, limit_s=3600)
    assert_as_expected([outcome for outcomes in everywhere for outcome in outcomes], compiled=True)
