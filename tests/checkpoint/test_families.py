"""Save, load, save: the same bytes, for every family, at 2, 3 and 4 ranks; and the same bytes as transformers writes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import autotp
from autotp.checkpoint.load import loading
from autotp.checkpoint.marker import MARKER
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.huggingface.pretrained import quiet
from autotp.planner.make import make_plan
from autotp.planner.survey import Survey, survey
from tests.checkpoint.models import MORE, config_of, simulated, write

pytestmark = pytest.mark.matrix

FUSED = ("phi3", "gpt_neox", "bloom", "falcon_multi_query", "falcon_grouped", "mpt")
FAMILIES = ("llama", "gpt2", "gptj", "opt", "cohere", "deepseek_v2", "bert", "vit", *FUSED, *MORE)
EXPERTS = ("mixtral", "qwen2_moe")
CASES = [  # every family at one size, the others in the sweep
    pytest.param(name, tp, id=f"{name}-tp{tp}", marks=() if i % 3 == tp - 2 else pytest.mark.long)
    for i, name in enumerate(FAMILIES)
    for tp in (2, 3, 4)
]


@dataclass(frozen=True)
class Prepared:
    """A checkpoint as transformers writes what it has loaded, and what planning needs to know."""

    folder: Path
    dense: nn.Module
    found: Survey


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    @functools.lru_cache(maxsize=1)  # families come in turn
    def prepared(name: str) -> Prepared:
        folder = tmp_path_factory.mktemp(name)
        with quiet():
            write(name, folder / "first").save_pretrained(folder / "dense", max_shard_size="150KB")
        dense = build_model(config_of(name))
        return Prepared(folder / "dense", dense, survey(dense, examples_for(dense, None)))

    return prepared


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != MARKER}


@pytest.mark.sample(3, sweep=6, others="long")
@pytest.mark.parametrize(("name", "tp"), CASES)
def test_save_load_save_gives_the_same_bytes(
    name: str, tp: int, tmp_path: Path, prepare: Callable[[str], Prepared]
) -> None:
    dense = prepare(name).folder
    plan = make_plan(prepare(name).dense, prepare(name).found, tp)

    def save(folder: Path) -> object:
        return lambda model: autotp.save_pretrained(model, folder, max_shard_size="150KB") or loading(model)

    loaded = simulated(dense, tp, plan, save(tmp_path / "one"))
    simulated(tmp_path / "one", tp, plan, save(tmp_path / "two"))
    assert len(contents(tmp_path / "one")) > 3
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    if name in EXPERTS:  # transformers lays experts out in other files, as they share memory
        ours, theirs = tensors(tmp_path / "one"), tensors(dense)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    else:
        assert contents(tmp_path / "one") == contents(dense)
    assert all(rank.bytes_read <= 1.05 * rank.bytes_held for rank in loaded)
