"""Checkpoints of modules that a user's own code builds: each rank reads its slices, at once or at the first call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import autotp
from autotp.errors import CheckpointError, UsageError
from autotp.runtime.cut.origin import IsCut
from autotp.runtime.groups.launch import run_ranks
from autotp.session.built import build_lazily
from tests.contract.parts import HIDDEN, Mlp, twins, values

WORDS = 24


class Painter(nn.Module):
    """Tied tables, a buffer that is saved, one that is not, and a tensor that is neither."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.blocks = twins(lambda index: Mlp()).to(dtype)
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("shift", torch.zeros(HIDDEN))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, HIDDEN), persistent=False)
        self.table = torch.linspace(-1, 1, HIDDEN)
        self.to(dtype)

    def forward(self, ids: torch.Tensor, *, time: torch.Tensor) -> torch.Tensor:
        """Numbers for every word."""
        x = self.words(ids) + time[:, None, None] * self.table.to(time) + self.shift
        return self.head(self.blocks(x * self.scale))


def call(seed: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, WORDS, (2, 4 + seed), generator=torch.Generator().manual_seed(seed))
    return {"ids": ids, "time": values(2, seed=seed)}


def written(folder: Path, *, files: int = 1) -> Painter:
    """A dense model, and its checkpoint by names that no library of models uses."""
    torch.manual_seed(5)
    dense = Painter(torch.float64).eval()
    with torch.no_grad():
        for tensor in (*dense.parameters(), dense.shift):
            tensor.copy_(torch.randn(tensor.shape, dtype=torch.float64) / 4)
    state = {name: tensor.clone() for name, tensor in dense.state_dict().items() if name != "head.weight"}
    names = sorted(state)
    parts = [names[i::files] for i in range(files)]
    index = {}
    for i, part in enumerate(parts):
        file = f"painter-{i}.safetensors"
        save_file({name: state[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    if files > 1:
        (folder / "painter.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return dense


def answers(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(**call(seed)).flatten() for seed in (0, 1, 0, 3)])


def bytes_of(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in {id(p): p for p in model.parameters()}.values())


def loaded(folder: str) -> list[tuple[torch.Tensor, bool, int, float]]:
    """Answers, whether the model was cut before its first call, bytes read, and how far gradients are from the dense ones."""
    found = []
    at_once: dict[str, Any] = {"example": autotp.Arguments(**call(0))}
    for options in (at_once, {}, {"dtype": torch.float64}):
        model = autotp.from_pretrained(folder, build=Painter, **options)
        assert not model.training
        assert model.head.weight is model.words.weight
        before = any(isinstance(parameter, IsCut) for parameter in model.parameters())
        answer = answers(model)
        assert model.head.weight is model.words.weight
        model(**call(2)).square().sum().backward()
        gradient = autotp.full_gradients(model)["blocks.blocks.0.up.weight"]
        assert gradient is not None
        found.append((answer, before, autotp.loading(model).bytes_read, float(gradient.abs().sum())))
    return found


def test_a_checkpoint_is_read_by_slices_at_once_or_at_the_first_call(tmp_path: Path) -> None:
    dense = written(tmp_path, files=2)
    true = answers(dense)
    dense(**call(2)).square().sum().backward()
    gradient = dense.get_parameter("blocks.blocks.0.up.weight").grad
    assert gradient is not None
    for rank in run_ranks(loaded, 2, str(tmp_path)):
        assert [before for _, before, _, _ in rank] == [True, False, False]
        for answer, _, count, total in rank:
            torch.testing.assert_close(answer, true, rtol=1e-9, atol=1e-9)
            assert abs(total - float(gradient.abs().sum())) < 1e-9
            assert count < 0.6 * bytes_of(dense)


def changed(folder: str) -> list[torch.Tensor]:
    """What a pipeline may do to its network before it calls it."""
    found = []
    written_to = autotp.from_pretrained(folder, build=lambda: Painter(torch.float64))
    with torch.no_grad(), pytest.raises(UsageError, match="read at the first call"):
        written_to.blocks.blocks[0].up.weight.data[0].mul_(2.0)
    cast = autotp.from_pretrained(folder, build=Painter, dtype=torch.float32)
    cast.to(torch.float64)  # and so the tensors that are no parameters
    found.append(answers(cast))
    adapted = autotp.from_pretrained(folder, build=lambda: Painter(torch.float64))
    with torch.no_grad():
        adapted.blocks.blocks[0].up.weight = nn.Parameter(adapted.blocks.blocks[0].up.weight + 1.0)
        adapted.blocks.blocks[1].up.weight.data = torch.full(
            (adapted.blocks.blocks[1].up.weight.shape), 0.5, dtype=torch.float64
        )
    found.append(answers(adapted))
    return found


def test_what_is_done_to_the_model_before_its_first_call_counts(tmp_path: Path) -> None:
    dense = written(tmp_path)
    expected = []
    rounded = written(tmp_path).to(torch.float32).to(torch.float64)
    rounded.scale, rounded.table = Painter().scale.double(), Painter().table
    expected.append(answers(rounded))
    with torch.no_grad():
        dense.get_parameter("blocks.blocks.0.up.weight").add_(1.0)
        dense.get_parameter("blocks.blocks.1.up.weight").fill_(0.5)
    expected.append(answers(dense))
    for rank in run_ranks(changed, 2, str(tmp_path)):
        for found, true in zip(rank, expected, strict=True):
            torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-9)


def refused(build: Callable[[], Any], folder: Path) -> str:
    with pytest.raises((CheckpointError, UsageError)) as error:
        build_lazily(build, folder, None)
    return str(error.value)


class Wider(Painter):
    def __init__(self) -> None:
        super().__init__()
        self.blocks.blocks[1].up = nn.Linear(HIDDEN, 7)


class More(Painter):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(2, 2)


class Less(Painter):
    def __init__(self) -> None:
        super().__init__()
        del self.shift


def under_meta() -> nn.Module:
    with torch.device("meta"):
        return Painter()


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    written(tmp_path)
    assert "blocks.blocks.1.up.weight" in refused(Wider, tmp_path)
    assert "lacks tensor 'more.bias' and 1 more" in refused(More, tmp_path)
    assert "has the unexpected tensor 'shift'" in refused(Less, tmp_path)
    assert "build= must return an nn.Module" in refused(lambda: 3, tmp_path)
    said = refused(under_meta, tmp_path)
    assert "scale of the Painter is on the meta device" in said
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    assert "several models" in refused(Painter, tmp_path)
    build_lazily(Painter, tmp_path / "painter-0.safetensors", None)
