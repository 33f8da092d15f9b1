"""Models of x_transformers: a decoder with each option of its documentation, and its other wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from x_transformers import (
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    MultiInputTransformerWrapper,
    NeoMLP,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
    XValTransformerWrapper,
)

from .made import Made, Numbers, made

WIDTH, WORDS, LENGTH = 64, 64, 12
LAYERS: dict[str, Any] = {"dim": WIDTH, "depth": 2, "heads": 4, "attn_dim_head": 16, "verbose": False}

# Options of the layers, by what the documentation calls them.
OF_LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flash": {"attn_flash": True},
    "memory key values": {"attn_num_mem_kv": 4},
    "scale norm": {"use_scalenorm": True},
    "rms norm": {"use_rmsnorm": True},
    "simple rms norm": {"use_simple_rmsnorm": True},
    "dynamic tanh": {"use_dynamic_tanh": True},
    "derf": {"use_derf": True},
    "glu": {"ff_glu": True},
    "swiglu": {"ff_glu": True, "ff_swish": True},
    "glu bias": {"ff_glu": True, "ff_glu_mult_bias": True},
    "no bias": {"ff_no_bias": True},
    "squared relu": {"ff_relu_squared": True},
    "solu": {"ff_solu": True},
    "norm after activation": {"ff_post_act_ln": True},
    "top 4 attention": {"attn_sparse_topk": 4},
    "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "one key value head": {"attn_one_kv_head": True},
    "two key value heads": {"attn_kv_heads": 2},
    "six heads": {"heads": 6, "attn_dim_head": 8},
    "attention on attention": {"attn_on_attn": True},
    "gated values": {"attn_gate_values": True},
    "gated value heads": {"attn_gate_value_heads": True},
    "swiglu values": {"attn_swiglu_values": True},
    "head scale": {"attn_head_scale": True},
    "zero key value": {"attn_add_zero_kv": True},
    "learned sinks": {"attn_head_learned_sink": True},
    "query key norm": {"attn_qk_norm": True},
    "query key norm: groups": {"attn_qk_norm": True, "attn_qk_norm_groups": 2},
    "query key norm: scales": {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    "query key rms norm": {"attn_qk_rmsnorm": True},
    "value rms norm": {"attn_value_rmsnorm": True},
    "distances": {"attn_l2_distance": True},
    "sigmoid attention": {"attn_sigmoid": True},
    "selective": {"attn_selective": True},
    "signed": {"attn_cog_signed": True},
    "softclamped logits": {"attn_softclamp_logits": True},
    "data dependent alibi": {"attn_data_dependent_alibi": True},
    "contextual positions": {"attn_use_cope": True},
    "orthogonal values": {"attn_orthog_projected_values": True},
    "laser": {"attn_laser": True},
    "latent query": {"attn_use_latent_q": True, "attn_dim_latent_q": 32},
    "latent key value": {"attn_use_latent_kv": True, "attn_dim_latent_kv": 32},
    "narrow values": {"attn_value_dim_head": 8},
    "attend to the last": {"attn_max_attend_past": 4},
    "relative bias": {"rel_pos_bias": True},
    "dynamic bias": {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": False},
    "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "rotary": {"rotary_pos_emb": True},
    "xpos": {"rotary_xpos": True},
    "polar": {"polar_pos_emb": True},
    "residual attention": {"residual_attn": True},
    "macaron": {"macaron": True},
    "sandwich": {"sandwich_coef": 1},
    "tied layers": {"weight_tie_layers": True},
    "gated residual": {"gate_residual": True},
    "scaled residual": {"scale_residual": True},
    "orthogonal residual": {"orthog_residual": True},
    "sandwich norm": {"sandwich_norm": True},
    "post norm": {"pre_norm": False},
    "pre and post norm": {"pre_and_post_norm": True},
    "shifted tokens": {"shift_tokens": 1},
    "layer scale": {"use_layerscale": True},
    "hyper connections": {"num_residual_streams": 2},
    "integrated layers": {"integrate_layers": True},
    "aggregated residuals": {
        "attn_aggregated_residuals": True,
        "attn_aggregated_residual_kwargs": {"lora_rank": 16},
    },
    "unet skips": {"unet_skips": True},
    "reinjected input": {"reinject_input": True},
    "value residual": {"add_value_residual": True},
    "softclamped output": {"softclamp_output": True},
}
# Options of the wrapper.
OF_WRAPPERS: dict[str, dict[str, Any]] = {
    "memory tokens": {"num_memory_tokens": 4},
    "scaled sinusoids": {"scaled_sinu_pos_emb": True},
    "normed embedding": {"l2norm_embed": True},
    "tied embedding": {"tie_embedding": True},
    "embedding norm": {"post_emb_norm": True},
    "mixture of softmax": {"mixture_of_softmax": True, "mixture_of_softmax_k": 2},
    "narrow embedding": {"emb_dim": 32},
    "two heads": {"num_output_heads": 2},
    "pooled": {"average_pool_embed": True},
}


def _decoder(layers: dict[str, Any], **settings: Any) -> Callable[[], nn.Module]:
    return lambda: TransformerWrapper(
        num_tokens=WORDS, max_seq_len=32, attn_layers=Decoder(**{**LAYERS, **layers}), **settings
    )


class Crossed(nn.Module):
    """A decoder that attends to an encoder's values."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, WIDTH), CrossAttender(**LAYERS)

    def forward(self, ids: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(ids), context=context)


def _text(numbers: Numbers) -> torch.Tensor:
    return numbers.ids(numbers.batch, LENGTH + numbers.more)


def _values(numbers: Numbers) -> torch.Tensor:
    return numbers(numbers.batch, LENGTH + numbers.more, 16)


def _two() -> nn.Module:
    stack = {"num_tokens": WORDS, "depth": 2, "heads": 4, "max_seq_len": 32, "attn_dim_head": 16}
    return XTransformer(
        dim=WIDTH,
        **{f"{part}_{name}": value for part in ("enc", "dec") for name, value in stack.items()},
    )


CASES: dict[str, Callable[[], Made]] = {
    **{name: made(_decoder(layers), _text) for name, layers in OF_LAYERS.items()},
    **{name: made(_decoder({}, **settings), _text) for name, settings in OF_WRAPPERS.items()},
    "Encoder": made(
        lambda: TransformerWrapper(num_tokens=WORDS, max_seq_len=32, attn_layers=Encoder(**LAYERS)),
        lambda numbers: {
            "x": _text(numbers),
            "mask": torch.ones(numbers.batch, LENGTH + numbers.more, dtype=torch.bool),
        },
    ),
    "XTransformer": made(
        _two,
        lambda numbers: (numbers.ids(numbers.batch, 10 + numbers.more), numbers.ids(numbers.batch, 8 + numbers.more)),
    ),
    "CrossAttender": made(Crossed, lambda numbers: (_text(numbers), numbers(numbers.batch, 10 + numbers.more, WIDTH))),
    "ViTransformerWrapper": made(
        lambda: ViTransformerWrapper(image_size=32, patch_size=8, num_classes=8, attn_layers=Encoder(**LAYERS)),
        lambda numbers: numbers(numbers.batch, 3, 32, 32),
    ),
    "ContinuousTransformerWrapper": made(
        lambda: ContinuousTransformerWrapper(dim_in=16, dim_out=16, max_seq_len=32, attn_layers=Decoder(**LAYERS)),
        _values,
    ),
    "MultiInputTransformerWrapper": made(
        lambda: MultiInputTransformerWrapper(
            num_tokens={"note": 20, "pitch": 32}, max_seq_len=32, attn_layers=Decoder(**LAYERS)
        ),
        lambda numbers: (
            {
                "note": numbers.ids(numbers.batch, LENGTH + numbers.more, below=20),
                "pitch": numbers.ids(numbers.batch, LENGTH + numbers.more, below=32),
            },
        ),
    ),
    "XValTransformerWrapper": made(
        lambda: XValTransformerWrapper(
            num_tokens=WORDS, numerical_token_id=3, max_seq_len=32, attn_layers=Decoder(**LAYERS)
        ),
        lambda numbers: (_text(numbers), numbers(numbers.batch, LENGTH + numbers.more)),
    ),
    "NeoMLP": made(
        lambda: NeoMLP(dim_in=5, dim_hidden=6, dim_out=7, depth=2, dim_model=WIDTH),
        lambda numbers: numbers(numbers.batch, 5),
    ),
}
