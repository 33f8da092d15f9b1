"""Logits on real ranks: whole, of the positions that are asked for, or cut over the vocabulary as a distributed tensor."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaForCausalLM,
    RemBertConfig,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

import autotp
from autotp.checkpoint.full import state_of
from autotp.errors import RankLostError
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import FAMILIES, WRITERS

VOCABULARY = 250  # three ranks hold 84, 84 and 82 rows


def dense_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build_model(WRITERS[name].config(), meta=False).double()


def ids() -> torch.Tensor:
    return torch.arange(3, 25).view(2, 11)


def cut_logits(name: str) -> tuple[float, float, tuple[int, ...], set[str]]:
    """Runs on a rank: differences of logits and gradients to the dense model's, the local shape, collectives forward."""
    dense = dense_model(name)
    parallel: Any = autotp.parallelize(copy.deepcopy(dense), gather_logits=False)
    state = state_of(parallel)
    with state.ranks.logging() as log:
        logits = parallel(ids(), use_cache=False).logits
    ran = {call.kind for call in log.calls}
    assert isinstance(logits, DTensor)
    assert logits.placements == (Shard(2),)
    expected = dense(ids(), use_cache=False).logits
    logits.full_tensor().square().sum().backward()
    expected.square().sum().backward()
    own = autotp.full_gradients(parallel)
    gradients = [float((own[n] - p.grad).abs().max() / p.grad.abs().max()) for n, p in dense.named_parameters()]
    difference = float((logits.full_tensor() - expected).abs().max())
    return difference, max(gradients), tuple(logits.to_local().shape), ran


@pytest.mark.sweep
def test_logits_stay_cut_on_request() -> None:
    for name in ("llama", "gpt2"):
        for rank, (logits, gradient, local, ran) in enumerate(run_ranks(cut_logits, 3, name)):
            assert logits < 1e-12, name
            assert gradient < 1e-9, name
            assert local == (2, 11, 84 if rank < 2 else 82)
            assert ran == {"all_reduce"}


def test_the_plan_says_that_logits_stay_cut() -> None:
    config = FAMILIES["llama"].config()
    gathered, kept = autotp.plan(config, 4), autotp.plan(config, 4, gather_logits=False)
    assert sum(unit.count("forward", kind="all_gather") for unit in gathered.units) == 1
    assert sum(unit.count("forward", kind="all_gather") for unit in kept.units) == 0
    assert autotp.Plan.from_json(kept.to_json()) == kept


def packed_logits() -> list[tuple[float, int]]:
    """Runs on a rank: two texts in one row, told apart by positions that start again; all logits, then the last ones'."""
    dense = dense_model("llama").eval()
    parallel: Any = autotp.parallelize(copy.deepcopy(dense))
    texts = [torch.arange(3, 10)[None], torch.arange(40, 52)[None]]
    packed, positions = torch.cat(texts, 1), torch.cat([torch.arange(7), torch.arange(12)])[None]
    last = torch.tensor([6, 18])
    found = []
    with torch.no_grad():
        apart = torch.cat([dense(text, use_cache=False).logits for text in texts], 1)
        for keep, expected in ((0, apart), (last, apart[:, last])):
            with state_of(parallel).ranks.logging() as log:
                logits = parallel(packed, position_ids=positions, use_cache=False, logits_to_keep=keep).logits
            (gathered,) = [call.elements for call in log.calls if call.kind == "all_gather"]
            found.append((float((logits - expected).abs().max()), gathered))
    return found


@pytest.mark.sweep
def test_packed_texts_equal_the_texts_apart() -> None:
    for (whole, every), (chosen, few) in run_ranks(packed_logits, 2):
        assert max(whole, chosen) < 1e-12
        assert (every, few) == (19 * math.ceil(VOCABULARY / 2), 2 * math.ceil(VOCABULARY / 2))


# The shared loss after a soft cap, and a model's own after a bias of the vocabulary.
WITH_LABELS = ("gemma2", "bart")


def loss_on_ranks(name: str) -> tuple[float, ...] | str:
    """Runs on a rank: differences of loss, logits and gradients; a text says what else is wrong."""
    torch.manual_seed(0)
    dense = build_model({**FAMILIES, **WRITERS}[name].config(), meta=False).double()
    parallel: Any = autotp.parallelize(copy.deepcopy(dense))
    labels = ids().masked_fill(ids() % 5 == 0, -100)
    with Float64():
        expected = dense(ids(), labels=labels)
        with state_of(parallel).ranks.logging() as log:
            found = parallel(ids(), labels=labels)
        sent = [(call.kind, call.elements) for call in log.calls if call.phase == "loss"]
        if sent != [("all_reduce", 22), ("all_reduce", 44)] or any(call.kind == "all_gather" for call in log.calls):
            return f"{name} sent {sent}"
        if not (isinstance(found.logits, DTensor) and found[1] is found.logits):
            return f"{name} has logits of the type {type(found.logits).__name__}"
        expected.loss.backward()
        found.loss.backward()
    own = autotp.full_gradients(parallel)
    true = {n: p.grad for n, p in dense.named_parameters() if p.grad is not None}
    largest = max(float(g.abs().max()) for g in true.values())
    gradients = max(float((own[n] - g).abs().max()) for n, g in true.items()) / largest
    logits = float((found.logits.full_tensor() - expected.logits).detach().abs().max())
    return abs(float((found.loss - expected.loss).detach())), logits, gradients


def classifiers() -> list[nn.Module]:
    """Models of one label for a picture or a text, of so many that logits are cut."""
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "num_labels": 1000,
    }
    pictures, texts = ViTConfig(image_size=16, patch_size=8, **sizes), BertConfig(vocab_size=99, **sizes)
    return [ViTForImageClassification(pictures).double().eval(), BertForSequenceClassification(texts).double().eval()]


def classes_on_ranks() -> list[tuple[float, list[Any]]]:
    """Runs on a rank: the difference of each loss, and what it sent."""
    found = []
    torch.manual_seed(0)
    for dense, given in zip(
        classifiers(), ({"pixel_values": torch.randn(3, 3, 16, 16)}, {"input_ids": ids()}), strict=True
    ):
        labels = torch.tensor([3, 999, 500])[: len(next(iter(given.values())))]
        parallel: Any = autotp.parallelize(copy.deepcopy(dense))
        with Float64(), torch.no_grad(), state_of(parallel).ranks.logging() as log:
            difference = float((parallel(**given, labels=labels).loss - dense(**given, labels=labels).loss).abs())
        found.append((difference, [(call.kind, call.elements) for call in log.calls if call.phase == "loss"]))
    return found


@pytest.mark.sweep
def test_a_loss_of_classes_reads_cut_logits() -> None:
    for (of_pictures, sent), (of_texts, also_sent) in run_ranks(classes_on_ranks, 2):
        assert max(of_pictures, of_texts) < 1e-12
        assert (sent, also_sent) == ([("all_reduce", 3), ("all_reduce", 6)], [("all_reduce", 2), ("all_reduce", 4)])


def losses_on_ranks() -> list[Any]:
    """Runs on a rank."""
    dense = dense_model("llama")
    parallel: Any = autotp.parallelize(copy.deepcopy(dense))
    args = {"labels": ids(), "num_items_in_batch": torch.tensor(7), "ignore_index": 5}
    with Float64(), torch.no_grad():
        by_number = abs(float(parallel(ids(), **args).loss - dense(ids(), **args).loss))
    return [by_number, *map(loss_on_ranks, WITH_LABELS)]


@pytest.mark.sweep
def test_a_loss_reads_cut_logits() -> None:
    for by_number, *found in run_ranks(losses_on_ranks, 2):
        assert by_number < 1e-12
        for name, differences in zip(WITH_LABELS, found, strict=True):
            assert not isinstance(differences, str), differences
            assert max(differences) < 1e-11, (name, differences)


class OwnLoss(LlamaForCausalLM):
    """A model with a loss of its own, which needs probabilities."""

    def forward(self, input_ids: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        result = super().forward(input_ids, **kwargs)
        if labels is not None:
            result.loss = -result.logits.log_softmax(-1).gather(-1, labels[..., None]).mean()
        return result


class LossAndMore(LlamaForCausalLM):
    """A model whose loss has a second part, which needs probabilities."""

    def forward(self, input_ids: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        result = super().forward(input_ids, labels=labels, **kwargs)
        if labels is not None:
            result.loss = result.loss - result.logits.log_softmax(-1).mean()
        return result


@pytest.mark.sweep
def test_the_plan_says_what_a_loss_reads() -> None:
    config = FAMILIES["llama"].config()
    for name in ("llama", "t5", "bart"):
        assert "the loss reads the cut logits" in autotp.plan({**FAMILIES, **WRITERS}[name].config(), 2).loss
    with torch.device("meta"):
        models = OwnLoss(config), LossAndMore(config)
    for model in models:
        assert autotp.plan(model, 2).loss.endswith("the model's own code needs them whole for log_softmax")
    assert not autotp.plan(FAMILIES["vit"].config(), 2).loss
    for classes in classifiers():
        assert "the loss reads the cut logits" in autotp.plan(classes, 2).loss
    assert not autotp.plan(config, 2, gather_logits=False).loss


class Behind(LlamaForCausalLM):
    """A model with a layer behind its head."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.behind = nn.Identity()

    def forward(self, input_ids: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        logits = self.behind(self.lm_head(self.model(input_ids, **kwargs)[0]))
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits)


def test_the_plan_says_what_a_loss_reads_behind_a_layer() -> None:
    with torch.device("meta"):
        model = Behind(FAMILIES["llama"].config())
    assert "the loss reads the cut logits" in autotp.plan(model, 2).loss


def test_the_plan_speaks_of_logits_and_of_no_other_table() -> None:
    """What its embeddings are mapped to is cut as logits are, and read as a whole by the first block."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "input_embedding_size": 16, "output_embedding_size": 24}
    config = RemBertConfig(**sizes, num_hidden_layers=2, num_attention_heads=4, vocab_size=96, is_decoder=True)
    assert "the loss reads the cut logits" in autotp.plan(config, 2).loss


# -- what one rank alone asks of cut logits, and what all do ----------------------------------------------------------------

METRICS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "argmax": lambda logits, ids: logits.argmax(-1),
    "accuracy": lambda logits, ids: (logits.argmax(-1).full_tensor() == ids).double().mean(),
    "entropy": lambda logits, ids: -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1),
    "full_tensor": lambda logits, ids: logits.full_tensor(),
    "scaled": lambda logits, ids: (logits / 2).float(),
    "largest": lambda logits, ids: logits.max(),
    "topk": lambda logits, ids: logits.full_tensor().topk(3).indices,
}


def with_labels() -> tuple[Any, Any]:
    """A model that reads its logits cut, and what it returns."""
    dense = dense_model("llama")
    return autotp.parallelize(copy.deepcopy(dense)), dense(ids(), use_cache=False).logits.detach()


def metrics_together() -> dict[str, float]:
    """Runs on a rank: how far each metric is from that of whole logits."""
    model, true = with_labels()
    logits = model(ids(), labels=ids(), use_cache=False).logits.detach()
    found = {}
    for name, metric in METRICS.items():
        own, expected = metric(logits, ids()), metric(Whole(true), ids())
        own = own.full_tensor() if isinstance(own, DTensor) else own
        found[name] = float((own - expected).abs().max())
    return found


class Whole(torch.Tensor):
    """Whole logits that are asked as a distributed tensor is."""

    def full_tensor(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def test_metrics_on_cut_logits_are_those_of_whole_ones() -> None:
    for found in run_ranks(metrics_together, 2):
        assert found.keys() == METRICS.keys()
        assert max(found.values()) < 1e-6  # one of them is in float32


def metric_alone(name: str) -> tuple[str, float]:
    """Runs on a rank: the first asks for a metric, the others train on."""
    model, _ = with_labels()
    for turn in range(2):
        found = model(ids(), labels=ids(), use_cache=False)
        start = time.monotonic()
        try:
            if turn and not torch.distributed.get_rank():
                assert found.logits.to_local().shape == (2, 11, 125)
                assert "Shard" in repr(found.logits)
                METRICS[name](found.logits, ids())
            found.loss.backward()
        except RankLostError as error:
            return str(error), time.monotonic() - start
    return "", 0.0


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["accuracy", "full_tensor"])
def test_a_rank_that_looks_at_cut_logits_alone_is_told_what_to_do(name: str) -> None:
    (said, seconds), (other, later) = run_ranks(metric_alone, 2, name)
    assert "logits are cut over the ranks" in said
    assert ".to_local()" in said
    assert other
    assert max(seconds, later) < 15
