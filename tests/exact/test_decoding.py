"""Every decoding mode of transformers on a parallel model: the dense model's tokens, scores and caches, in float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.planner.make import make_plan
from autotp.planner.plan import Plan
from autotp.planner.survey import survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Float64
from tests.families import WRITERS

pytestmark = pytest.mark.matrix

TP = 4
HEADS = 4  # of the plain families
SETTINGS = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
IDS = torch.randint(3, 250, (2, 11), generator=torch.Generator().manual_seed(1))
PADDED = torch.ones_like(IDS).index_put_((torch.tensor(0), torch.arange(3)), torch.tensor(0))

Result: TypeAlias = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Models:
    """A dense model, a slightly different one that drafts for it, and how to make a rank's part of the first."""

    dense: PreTrainedModel
    draft: PreTrainedModel
    plan: Plan
    compilers: Any


@functools.lru_cache(maxsize=1)
def models_of(name: str, tp: int = TP) -> Models:
    torch.manual_seed(0)
    dense = build_model(WRITERS[name].config(), meta=False).double().eval()
    for parameter in dense.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    draft = copy.deepcopy(dense)
    for parameter in draft.parameters():
        parameter.data += 0.01 * torch.randn_like(parameter)
    found = survey(dense, examples_for(dense, None))
    plan = make_plan(dense, found, tp)
    return Models(dense, draft, plan, make_compilers(plan, found))


def write(model: Any, ids: torch.Tensor = IDS, **settings: Any) -> torch.Tensor:
    return model.generate(ids, **{**SETTINGS, **settings})


class Listener(BaseStreamer):
    def __init__(self) -> None:
        self.heard: list[torch.Tensor] = []

    def put(self, value: torch.Tensor) -> None:
        self.heard.append(value.flatten())

    def end(self) -> None:
        self.heard.append(torch.tensor([-1]))


class AtSevens(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return input_ids[:, -1] % 7 == 0


def with_scores(model: Any, models: Models) -> Result:
    found = write(model, return_dict_in_generate=True, output_scores=True, output_logits=True)
    return found.sequences, torch.stack(found.scores), torch.stack(found.logits)


def with_hidden_states(model: Any, models: Models) -> Result:
    found = write(model, return_dict_in_generate=True, output_hidden_states=True)
    return found.sequences, *found.hidden_states[0], *found.hidden_states[5]


def streamed(model: Any, models: Models) -> Result:
    listener = Listener()
    return write(model, IDS[:1], streamer=listener), torch.cat(listener.heard)


def from_embeddings(model: Any, models: Models) -> Result:
    embeddings = model.get_input_embeddings()(IDS)
    return (model.generate(inputs_embeds=embeddings, attention_mask=torch.ones_like(IDS), **SETTINGS),)


def over_turns(model: Any, models: Models) -> Result:
    """One cache over two turns, then cut back and continued in another way."""
    cache = DynamicCache(config=model.config)
    first = write(model, past_key_values=cache, max_new_tokens=5)
    second = write(model, torch.cat([first, IDS[:, :4]], 1), past_key_values=cache, max_new_tokens=6)
    cache.crop(8 - cache.get_seq_length())
    return first, second, write(model, second[:, :11], past_key_values=cache, max_new_tokens=6)


def plain_forwards(model: Any, models: Models) -> Result:
    """A cache without `generate`: two turns, cut back, repeated for more sequences, only the last logits asked for."""
    cache = DynamicCache(config=model.config)
    whole = model(IDS, past_key_values=cache, use_cache=True).logits
    more = model(IDS[:, :3], past_key_values=cache, use_cache=True).logits
    cache.crop(-4)
    last = model(IDS[:, 3:5], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    cache.batch_repeat_interleave(2)
    return whole, more, last, model(IDS[:, 3:5].repeat(2, 1), past_key_values=cache, use_cache=True).logits


def of_one_token(model: Any, models: Models) -> Result:
    """A prompt of one token looks like a later step, but for a cache that is empty."""
    return write(model, IDS[:, :1]), write(model, IDS[:, :2]), write(model, IDS[:, :1])


def with_a_quantized_cache(model: Any, models: Models) -> Result:
    """Groups of numbers within one head and position share a scale, so a rank's heads are quantized as the whole are."""
    library = pytest.importorskip("optimum.quanto.library", reason="quantized caches need optimum-quanto")
    # Two numbers of 4 bits in a byte, as its C++ reads them, which would first be compiled for a minute.
    unpack = SimpleNamespace(unpack=lambda packed, bits: torch.cat([packed & 15, packed >> 4]))
    library.extensions.get_extension("quanto_cpp")._lib = unpack
    settings = {"backend": "quanto", "nbits": 4, "q_group_size": 8, "residual_length": 4}
    return (write(model, cache_implementation="quantized", cache_config=settings),)


Mode: TypeAlias = Callable[[Any, Models], Result]
MODES: dict[str, Mode] = {
    "greedy": lambda model, _: (write(model),),
    "two tokens": lambda model, _: (write(model, max_new_tokens=2),),
    "left padding": lambda model, _: (write(model, attention_mask=PADDED),),
    "no cache": lambda model, _: (write(model, use_cache=False),),
    "prompt in pieces": lambda model, _: (write(model, prefill_chunk_size=4),),
    "beams": lambda model, _: (write(model, num_beams=4),),
    "several beams returned": lambda model, _: (
        write(model, num_beams=4, num_return_sequences=3, length_penalty=0.7, no_repeat_ngram_size=2),
    ),
    "beams that end, padded": lambda model, _: (
        write(model, num_beams=3, attention_mask=PADDED, early_stopping=True, eos_token_id=5),
    ),
    "penalties": lambda model, _: (write(model, repetition_penalty=1.3, min_new_tokens=3),),
    "guidance": lambda model, _: (write(model, guidance_scale=1.5),),
    "stopping criterion": lambda model, _: (write(model, stopping_criteria=[AtSevens()]),),
    "assisted by a draft": lambda model, models: (write(model, IDS[:1], assistant_model=models.draft),),
    "assisted by the prompt": lambda model, _: (write(model, IDS[:1].repeat(1, 3), prompt_lookup_num_tokens=3),),
    "scores": with_scores,
    "hidden states": with_hidden_states,
    "streamer": streamed,
    "input embeddings": from_embeddings,
    "over turns": over_turns,
    "plain forwards": plain_forwards,
    "a prompt of one token": of_one_token,
    "quantized cache": with_a_quantized_cache,
    "static cache": lambda model, _: (write(model, cache_implementation="static"), write(model)),
}


WITH_AN_ENCODER = (
    "greedy",
    "left padding",
    "beams",
    "assisted by a draft",
    "scores",
    "input embeddings",
    "static cache",
)


@pytest.mark.sample(7, others="long")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.sweep)])
def test_decoding_equals_the_dense_model(name: str, mode: str) -> None:
    compare(name, mode)


@pytest.mark.filterwarnings("ignore:.*computes some calls with whole weights")  # static caches after an encoder
@pytest.mark.sample(2)
@pytest.mark.parametrize("mode", WITH_AN_ENCODER)
def test_decoding_after_an_encoder_equals_the_dense_model(mode: str) -> None:
    compare("bart", mode)


@pytest.mark.sweep
def test_decoding_with_a_position_bias_equals_the_dense_model() -> None:
    compare("t5", "two tokens")


def test_parts_of_a_head_are_kept_in_the_cache_of_the_rank_that_has_them() -> None:
    block = models_of("opt", 2 * HEADS).plan.unit_of("model.decoder.layers.0")
    value = next(p for p in block.parameters if p.name == "self_attn.v_proj.weight")
    assert value.local_shape[0] == value.shape[0] // (2 * HEADS)
    compare("opt", "over turns", 2 * HEADS)


def compare(name: str, mode: str, tp: int = TP) -> None:
    models = models_of(name, tp)

    def on_rank(ranks: Ranks) -> Result:
        return run(apply_plan(copy.deepcopy(models.dense), models.plan, ranks, models.compilers))

    def run(model: Any) -> Result:
        with Float64(), torch.no_grad():
            return MODES[mode](model, models)

    expected = run(copy.deepcopy(models.dense))
    for written in simulate(tp, on_rank):
        assert len(written) == len(expected)
        for mine, true in zip(written, expected, strict=True):
            if true.is_floating_point():
                torch.testing.assert_close(mine, true, rtol=1e-9, atol=1e-9)
            else:
                assert torch.equal(mine, true)
