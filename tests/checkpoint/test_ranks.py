"""On real ranks: load, run, save, resume at another size; and every error on all ranks, none of which hangs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import autotp
from autotp.checkpoint import save
from autotp.checkpoint.marker import MARKER, WHOLE, Marker
from autotp.checkpoint.part import Part
from autotp.errors import AutotpError, CheckpointError, UsageError
from autotp.huggingface import pretrained
from autotp.huggingface.models import build_model
from autotp.huggingface.pretrained import quiet
from autotp.runtime.groups.launch import run_ranks
from autotp.session import pipeline, weights
from tests.checkpoint.models import config_of, write

pytestmark = pytest.mark.matrix

TOKENS = torch.arange(3, 25).reshape(2, 11)


def dense_logits(folder: Path) -> torch.Tensor:
    with quiet(), torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder).eval()(TOKENS).logits


def load_and_save(source: Path, target: Path, dtype: torch.dtype | None) -> tuple[Any, ...]:
    model = autotp.from_pretrained(source, dtype=dtype)
    with torch.no_grad():
        logits = model(TOKENS).logits
    autotp.save_pretrained(model, target)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return logits, tied, model.training, model.generation_config.max_new_tokens, autotp.loading(model)


def save_between_steps(source: Path, target: Path) -> tuple[bool, bool]:
    """Runs on a rank: its blocks read the configuration, so one rank alone must not find another one afterwards."""
    model = autotp.from_pretrained(source)
    model(TOKENS).logits.sum().backward()
    before, kinds = model.config.to_dict(), {name: type(value) for name, value in vars(model.config).items()}
    autotp.save_pretrained(model, target)
    same = model.config.to_dict() == before and {n: type(v) for n, v in vars(model.config).items()} == kinds
    programs = [len(block.forward.run.agreed) for block in model.model.layers]
    model(TOKENS).logits.sum().backward()
    return same, [len(block.forward.run.agreed) for block in model.model.layers] == programs


@pytest.mark.sweep
def test_saving_leaves_the_model_as_it_is_on_every_rank(tmp_path: Path) -> None:
    write("padded_and_tied", tmp_path / "a", "30KB")
    assert run_ranks(save_between_steps, 2, tmp_path / "a", tmp_path / "b") == [(True, True)] * 2


def start(source: Path, kept: Path) -> tuple[int, int, torch.Tensor, torch.Tensor, list[int], dict[str, torch.Tensor]]:
    """Runs on a rank: how often it surveys, how many programs the last block has, and what calls of several kinds give."""
    os.environ["AUTOTP_CACHE"] = str(kept)
    surveyed, original = [], pipeline.survey
    pipeline.survey = lambda *args, **wishes: [surveyed.append(1), original(*args, **wishes)][1]  # type: ignore[func-returns-value]
    model = autotp.from_pretrained(source, dtype=torch.float64)
    with torch.no_grad():
        first, longer = model(TOKENS).logits, model(TOKENS.repeat(2, 2)).logits
    written = model.generate(TOKENS, max_new_tokens=4, do_sample=False, pad_token_id=0).tolist()
    model.train()
    model(TOKENS).logits.sin().mean().backward()
    programs = len(model.model.layers[-1].forward.run.agreed)
    return len(surveyed), programs, first, longer, written, autotp.full_gradients(model)


def test_a_second_start_surveys_nothing_and_runs_the_same(tmp_path: Path) -> None:
    write("llama", tmp_path / "a")
    dense = AutoModelForCausalLM.from_pretrained(tmp_path / "a", dtype=torch.float64).eval()
    with torch.no_grad():
        expected = dense(TOKENS).logits, dense(TOKENS.repeat(2, 2)).logits
    written = dense.generate(TOKENS, max_new_tokens=4, do_sample=False, pad_token_id=0).tolist()
    dense.train()(TOKENS).logits.sin().mean().backward()
    programs = []
    for surveys in ([1, 0], [0, 0]):
        found = run_ranks(start, 2, tmp_path / "a", tmp_path / "kept")
        assert [rank[0] for rank in found] == surveys
        programs.append({rank[1] for rank in found})
        for _, _, first, longer, tokens, gradients in found:
            assert torch.allclose(first, expected[0], rtol=0, atol=1e-9)
            assert torch.allclose(longer, expected[1], rtol=0, atol=1e-9)
            assert tokens == written
            for name, parameter in dense.named_parameters():
                assert torch.allclose(gradients[name], parameter.grad, rtol=0, atol=1e-9), name
    assert programs[0] == programs[1]
    assert len(programs[0]) == 1
    assert min(programs[0]) > 0


@pytest.mark.sweep
def test_a_loaded_model_runs_as_the_dense_one_and_is_saved_for_it(tmp_path: Path) -> None:
    model = write("padded_and_tied", tmp_path / "a", "30KB")
    model.generation_config.max_new_tokens = 17
    model.save_pretrained(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tokenizer.json").write_text("{}")
    (tmp_path / "b" / "model-00001-of-00009.safetensors").write_text("of an older, larger save")
    Marker("autotp.save_pretrained", WHOLE, ("model-00001-of-00009.safetensors",)).save(tmp_path / "b")
    for logits, tied, training, tokens, loaded in run_ranks(load_and_save, 2, tmp_path / "a", tmp_path / "b", None):
        assert torch.allclose(logits, dense_logits(tmp_path / "a"), atol=1e-5)
        assert (tied, training, tokens) == (True, False, 17)
        assert loaded.bytes_read <= loaded.bytes_held < 0.6 * loaded.bytes_of_checkpoint
    assert torch.equal(dense_logits(tmp_path / "b"), dense_logits(tmp_path / "a"))
    names = {path.name for path in (tmp_path / "b").iterdir()}
    assert names == {MARKER, "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.sweep
def test_torch_files_and_another_dtype(tmp_path: Path) -> None:
    write("gpt2", tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]  # torch files have tied tensors twice
    torch.save(tensors, tmp_path / "a" / "pytorch_model.bin")
    (tmp_path / "a" / "model.safetensors").unlink()
    run_ranks(load_and_save, 2, tmp_path / "a", tmp_path / "b", torch.bfloat16)
    saved = load_file(tmp_path / "b" / "model.safetensors")
    assert set(saved) == set(tensors) - {"lm_head.weight"}
    assert all(torch.equal(saved[name], tensors[name].bfloat16()) for name in saved)
    assert json.loads((tmp_path / "b" / "config.json").read_text())["dtype"] == "bfloat16"


def from_rank_folders(cut: Path, target: Path) -> tuple[Any, ...]:
    outcome = load_and_save(cut, target, None)
    try:
        autotp.from_pretrained(cut, tp=1)
    except UsageError as error:
        return (*outcome, str(error))
    return outcome


@pytest.mark.sweep
def test_a_cut_checkpoint_is_loaded_without_cutting(tmp_path: Path) -> None:
    write("gpt2", tmp_path / "a")
    autotp.shard(tmp_path / "a", tmp_path / "cut", 2)
    for logits, tied, *_, loaded, message in run_ranks(from_rank_folders, 2, tmp_path / "cut", tmp_path / "b"):
        assert torch.allclose(logits, dense_logits(tmp_path / "a"), atol=1e-5)
        assert tied
        assert loaded.bytes_read == loaded.bytes_held
        assert "is cut for 2 ranks, not for 1; run autotp merge" in message
    assert (tmp_path / "b/model.safetensors").read_bytes() == (tmp_path / "a/model.safetensors").read_bytes()


# Errors


def outcome_of(function: Callable[..., Any], *arguments: Any) -> tuple[str, str]:
    try:
        function(*arguments)
    except AutotpError as error:
        return type(error).__name__, str(error)
    return "", ""


def try_to_load(folders: list[Path], only_rank_1: Path) -> list[tuple[str, str]]:
    own = only_rank_1 if dist.get_rank() == 1 else folders[0]
    return [outcome_of(autotp.from_pretrained, folder) for folder in [*folders, own]]


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (
        lambda folder: os.truncate(folder / "model.safetensors", 5000),
        "model.safetensors is truncated: tensor 'lm_head.weight' ends at byte",
    ),
    "missing": (
        lambda folder: edit(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight")),
        "lacks tensor 'model.layers.1.mlp.up_proj.weight'; a LlamaForCausalLM is what",
    ),
    "unexpected": (
        lambda folder: edit(folder, lambda tensors: tensors.update(extra=torch.ones(3))),
        "model.safetensors has the unexpected tensor 'extra'",
    ),
    "shape": (
        lambda folder: edit(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(7)})),
        "tensor 'model.norm.weight' of {folder}/model.safetensors has the shape (7,), the LlamaForCausalLM of",
    ),
    "no_weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
    "no_config": (lambda folder: (folder / "config.json").unlink(), "no_config has no config.json"),
}


def test_a_broken_checkpoint_is_the_same_error_on_all_ranks(tmp_path: Path) -> None:
    for name, (break_it, _) in BROKEN.items():
        write("llama", tmp_path / name)
        break_it(tmp_path / name)
    write("llama", tmp_path / "good")
    start = time.monotonic()
    folders = [tmp_path / name for name in BROKEN]
    found = run_ranks(try_to_load, 2, [tmp_path / "good", *folders], tmp_path / "truncated")
    assert time.monotonic() - start < 100
    assert found[0] == found[1]
    good, *broken, on_one_rank = found[0]
    assert good == ("", "")
    for (kind, message), (name, (_, expected)) in zip(broken, BROKEN.items(), strict=True):
        assert kind in ("CheckpointError", "UsageError"), (name, message)
        assert expected.format(folder=tmp_path / name) in message
        assert "\n" not in message
    assert on_one_rank == broken[0]


def load_what_comes_late(source: Path) -> list[tuple[str, str]]:
    """A model id that one host has and another one has to download first; then one that a rank does not ask for at all."""
    weights.ARRIVE_S, rank = 1.0, dist.get_rank()

    def downloaded(name: str) -> Path:
        if rank == 1:
            time.sleep(3.0)
        return source

    pretrained.local_folder = downloaded
    found = [outcome_of(autotp.from_pretrained, "some/model")]
    if rank == 0:
        found.append(outcome_of(autotp.from_pretrained, "some/model"))
    dist.barrier()
    return found


def test_a_download_is_not_counted_against_the_time_in_which_all_ranks_must_call(tmp_path: Path) -> None:
    write("llama", tmp_path / "model")
    first, second = run_ranks(load_what_comes_late, 2, tmp_path / "model")
    assert first[0] == second[0] == ("", "")
    absent = "autotp.from_pretrained was not called by ranks [1] within 1 s; every rank must call it"
    assert first[1] == ("UsageError", absent)


def save_badly(source: Path, target: Path) -> list[tuple[str, str]]:
    """A disk that is full at once, one that fills up, a save by rank 0 alone, and a good one."""
    save.PATIENCE_S = 3.0
    model, rank, found = autotp.from_pretrained(source), dist.get_rank(), []
    reserve, write_tensor = save.Writer.__init__, save.Writer.write

    def full(self: object, *arguments: object) -> None:
        raise CheckpointError("cannot write x: No space left on device")

    for name, replacement in (("__init__", full), ("write", full)):
        setattr(save.Writer, name, replacement)
        found.append(outcome_of(autotp.save_pretrained, model, target))
        save.Writer.__init__, save.Writer.write = reserve, write_tensor  # type: ignore[method-assign]
    found.append(outcome_of(autotp.save_pretrained, model, target) if rank == 0 else ("", ""))
    dist.barrier()
    return found


def test_a_save_that_fails_or_is_not_called_by_all_is_an_error_and_leaves_the_old_one(tmp_path: Path) -> None:
    write("llama", tmp_path / "a")
    write("gpt2", tmp_path / "b")
    files = tuple(path.name for path in (tmp_path / "b").iterdir())
    Marker("autotp.save_pretrained", WHOLE, files).save(tmp_path / "b")
    before = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    first, second = run_ranks(save_badly, 2, tmp_path / "a", tmp_path / "b")
    full = ("CheckpointError", "cannot write x: No space left on device")
    assert first[:2] == second[:2] == [full, full]
    assert first[2] == (
        "UsageError",
        "autotp.save_pretrained was not called by ranks [1] within 3 s; every rank must call it",
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()} == before
    assert list(tmp_path.glob(".*")) == []


# Training: state dicts and distributed checkpoints


def a_model(name: str, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = build_model(config_of(name), meta=False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return autotp.parallelize(model)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        tokens = torch.randint(3, 250, (2, 11), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


def whole_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Weights and moments, whole."""
    from autotp.checkpoint.full import state_of, whole

    state, found = state_of(model), autotp.full_state_dict(model)
    for name, parameter in model.named_parameters():
        for slot, value in optimizer.state[parameter].items():
            cut = name in state.layouts and value.dim()
            found[f"{name} {slot}"] = whole(value, state.layouts[name], state.ranks) if cut else value
    return {name: value.detach().clone() for name, value in found.items()}


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_and_save(name: str, folder: Path) -> dict[str, torch.Tensor]:
    model = a_model(name, 0)
    optimizer = adam(model)
    train(model, optimizer, range(2))
    dcp.save({"training": autotp.TrainingState(model, optimizer)}, checkpoint_id=folder)
    return whole_state(model, optimizer)


def resume(name: str, folder: Path, again: Path) -> tuple[dict[str, torch.Tensor], bool]:
    model = a_model(name, 1)
    optimizer = adam(model)
    dcp.load({"training": autotp.TrainingState(model, optimizer)}, checkpoint_id=folder)
    dcp.save({"training": autotp.TrainingState(model, optimizer)}, checkpoint_id=again)
    state = autotp.TrainingState(model, optimizer).state_dict()
    moments = [slots["exp_avg"] for slots in state["optimizer"]["state"].values()]
    train(model, optimizer, range(2, 3))
    model = a_model(name, 2)
    optimizer = adam(model)
    dcp.load({"training": autotp.TrainingState(model, optimizer)}, checkpoint_id=again)
    return whole_state(model, optimizer), any(isinstance(moment, Part) for moment in moments)


@pytest.mark.parametrize(
    ("name", "sizes"), [("padded_and_tied", (2, 4)), pytest.param("phi3", (4, 3), marks=pytest.mark.sweep)]
)
def test_training_resumes_at_another_size_optimizer_included(name: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    saved = run_ranks(train_and_save, sizes[0], name, tmp_path / "one")[0]
    for loaded, cut in run_ranks(resume, sizes[1], name, tmp_path / "one", tmp_path / "two"):
        assert cut
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[key], saved[key]) for key in saved)


def use_state_dicts(folder: Path) -> dict[str, Any]:
    model, other = a_model("llama", 0), a_model("llama", 1)
    weights = autotp.full_state_dict(model)
    state = model.state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    other.load_state_dict(state)
    from_parts = autotp.full_state_dict(other)
    whole_again = a_model("llama", 2)
    whole_again.load_state_dict(weights)
    from_whole = autotp.full_state_dict(whole_again)
    copied = {name: value.detach().clone() for name, value in state.items()}
    future = dcp.async_save({"model": copied}, checkpoint_id=folder)
    future.result()
    last = a_model("llama", 3)
    dcp.load({"model": last.state_dict()}, checkpoint_id=folder)
    from_async = autotp.full_state_dict(last)
    return {
        "shapes": shapes,
        "equal": [
            all(torch.equal(found[name], weights[name]) for name in weights)
            for found in (from_parts, from_whole, from_async)
        ],
        "parts": sum(isinstance(value, Part) for value in copied.values()),
        "refused": outcome_of(lambda: state["model.layers.0.mlp.up_proj.weight"] + 1),
        "address": outcome_of(lambda: model.save_pretrained(folder / "wrong")),
    }


def test_a_state_dict_has_dense_shapes_and_goes_back_in(tmp_path: Path) -> None:
    dense = {name: tuple(value.shape) for name, value in build_model(config_of("llama")).state_dict().items()}
    for found in run_ranks(use_state_dicts, 2, tmp_path / "async"):
        assert found["shapes"] == dense
        assert found["equal"] == [True, True, True]
        assert found["parts"] > 10
        assert found["refused"][0] == "UsageError"
        assert "autotp.full_state_dict(model) for whole tensors" in found["refused"][1]
        assert found["address"][0] == "UsageError"


def draw_after_loading(folder: Path) -> torch.Tensor:
    torch.manual_seed(dist.get_rank())
    autotp.from_pretrained(folder)
    return torch.rand(4)


def test_ranks_that_have_loaded_draw_the_same_numbers(tmp_path: Path) -> None:
    """The first rank's, so that dropout of what is whole is the same on all."""
    write("llama", tmp_path)
    torch.manual_seed(0)
    expected = torch.rand(4)
    assert all(torch.equal(drawn, expected) for drawn in run_ranks(draw_after_loading, 2, tmp_path))
