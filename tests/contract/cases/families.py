"""Models of transformers, called in ways that the others' tests do not."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from autotp.huggingface.models import build_model
from autotp.verify import Float64
from tests.contract.parts import call, case, ids
from tests.families import WRITERS


def built(name):
    model = build_model(WRITERS[name].config(), meta=False).double().eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return model


def whole(logits):
    return logits.detach().full_tensor() if isinstance(logits, DTensor) else logits.detach()


@case(processes=True)
def labels_with_logits_that_stay_cut():
    model = built("llama")

    def losses(**inputs):
        result = model(**inputs)
        return result.loss, whole(result.logits)

    yield model, None, {"gather_logits": False}
    words = ids(2, 9, below=200)
    yield call(run=losses, under=Float64, input_ids=words, labels=words)
    yield call(run=losses, under=Float64, input_ids=words[:, :5], labels=words[:, :5])
    yield call(run=losses, under=Float64, input_ids=words, labels=words.masked_fill(words % 2 == 0, -100))
    yield call(run=lambda **inputs: whole(model(**inputs).logits), backward=False, input_ids=words)


@case(processes=True)
def items_in_the_batch():
    model = built("llama")
    yield model, None
    words = ids(2, 9, below=200)
    for number in (16, torch.tensor(12), None, torch.tensor(9), 7):
        inputs = {"input_ids": words, "labels": words, "num_items_in_batch": number}
        yield call(run=lambda **inputs: model(**inputs).loss, under=Float64, **inputs)


@case(processes=True)
def cache_of_an_encoder_and_decoder_with_gradients():
    model = built("t5")
    words, written = ids(2, 7, below=200), ids(2, 6, seed=1, below=200)

    def steps():
        first = model(input_ids=words, decoder_input_ids=written[:, :3], use_cache=True)
        encoded = (first.encoder_last_hidden_state,)
        second = model(
            encoder_outputs=encoded,
            decoder_input_ids=written[:, 3:5],
            past_key_values=first.past_key_values,
            use_cache=True,
        )
        return first.logits, second.logits

    yield model, None
    yield call(run=steps)
    yield call(run=steps)
    yield call(run=steps, backward=False, under=torch.no_grad)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    yield call(run=steps)
