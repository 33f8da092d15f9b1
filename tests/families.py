"""Tiny configurations of the families under test, with the collectives every block of theirs should cost.

`forward` and `backward` are all-reduces of activations per block; what else a block costs (small sums of parameter
gradients, statistics of a norm over a cut width, the gathers of a low-rank projection) stands in `extra`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig, PretrainedConfig

LLAMA_LIKE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 250,
    "intermediate_size": 160,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 250,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 250,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FALCON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 250,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Family:
    """One configuration: its model type, its settings, and the collectives of one block at tp 2."""

    kind: str
    settings: Mapping[str, Any]
    forward: int = 2
    backward: int = 2
    extra: Mapping[str, int] = field(default_factory=dict)

    def config(self) -> PretrainedConfig:
        return AutoConfig.for_model(self.kind, **self.settings)


ONE_PARAMETER_SUM = {"all_reduce backward parameter": 1}

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", LLAMA_LIKE),
    "qwen3": Family("qwen3", {**LLAMA_LIKE, "head_dim": 24}, extra=ONE_PARAMETER_SUM),
    "qwen2": Family("qwen2", LLAMA_LIKE),
    "mistral": Family("mistral", LLAMA_LIKE),
    "gemma2": Family("gemma2", {**LLAMA_LIKE, "head_dim": 16}),
    "phi3": Family("phi3", LLAMA_LIKE),
    "phi": Family("phi", PLAIN, forward=1, backward=1),
    "gpt2": Family("gpt2", GPT),
    "gptj": Family("gptj", {**GPT, "rotary_dim": 8}, forward=1, backward=1),
    "gpt_neo": Family(
        "gpt_neo",
        {
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 250,
            "max_position_embeddings": 64,
            "window_size": 8,
            "attention_types": [[["global", "local"], 1]],
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    # What two norms of one input give is summed in one call at this size, and in two where it is large.
    "gpt_neox": Family("gpt_neox", PLAIN, forward=1, backward=1),
    "falcon_multi_query": Family("falcon", FALCON, forward=1, backward=1, extra=ONE_PARAMETER_SUM),
    "falcon_grouped": Family("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, 1, 1),
    "falcon_sequential": Family("falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "alibi": True}),
    "bloom": Family(
        "bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 250, "bos_token_id": 1, "eos_token_id": 2}
    ),
    "opt": Family("opt", {**PLAIN, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "mpt": Family("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 250, "max_seq_len": 64}),
    "stablelm": Family("stablelm", LLAMA_LIKE),
    "cohere": Family("cohere", LLAMA_LIKE, forward=1, backward=1),
    # Norms over the full width of q and k: a small statistic each, both in one call, forward and backward.
    "olmo2": Family("olmo2", {**LLAMA_LIKE, "num_key_value_heads": 8}, forward=3, backward=3),
    "starcoder2": Family("starcoder2", LLAMA_LIKE),
    "granite": Family("granite", LLAMA_LIKE),
    "deepseek_v2": Family(
        "deepseek_v2",
        dict(
            PLAIN,
            num_key_value_heads=4,
            q_lora_rank=24,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=12,
            v_head_dim=20,
            first_k_dense_replace=2,
        ),
        # The two low-rank projections are gathered in one call; backward what is made of them is summed in one.
        backward=3,
        extra={"all_gather forward activation": 1},
    ),
    "bert": Family("bert", PLAIN),
    "roberta": Family("roberta", {**PLAIN, "max_position_embeddings": 70, "pad_token_id": 1}),
    "vit": Family(
        "vit",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "image_size": 32,
            "patch_size": 8,
        },
    ),
}


# 30 does not divide by 4. The loop over chosen experts, in the model's own Python, is what they are compared with.
MIXTURE = {
    **LLAMA_LIKE,
    "num_hidden_layers": 1,
    "intermediate_size": 30,
    "moe_intermediate_size": 30,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "experts_implementation": "eager",
}
# Families of mixtures of experts, by how they keep the experts' weights and what is beside them.
MIXTURES: dict[str, Family] = {
    "mixtral": Family("mixtral", MIXTURE),
    # norms over the full width of q and k, as in olmo2; of very many tokens their statistics are sent one by one
    "olmoe": Family("olmoe", MIXTURE, forward=4, backward=4),
    # an expert for all tokens, behind a gate of its own
    "qwen2_moe": Family("qwen2_moe", {**MIXTURE, "shared_expert_intermediate_size": 30, "decoder_sparse_step": 1}),
    # groups of experts of which some are chosen, experts for all tokens, low-rank attention
    "deepseek_v3": Family(
        "deepseek_v3",
        {
            **MIXTURE,
            **{name: FAMILIES["deepseek_v2"].settings[name] for name in ("q_lora_rank", "kv_lora_rank", "v_head_dim")},
            "num_key_value_heads": 8,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 0,
        },
    ),
    # gate and up projection element by element beside each other, transposed, with biases
    "gpt_oss": Family("gpt_oss", {**MIXTURE, "head_dim": 8, "layer_types": ["full_attention"]}),
    # every expert computes every token
    "llama4_text": Family("llama4_text", {**MIXTURE, "intermediate_size_mlp": 30, "head_dim": 8}),
}

WRITING = {**LLAMA_LIKE, "max_position_embeddings": 128}
PLAIN_WRITING = {**PLAIN, "max_position_embeddings": 128}
GPT_WRITING = {**GPT, "n_positions": 128}
MIXED = {**WRITING, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
TWO_STACKS = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 250,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}

# Families that differ in what they do with a cache and a mask; sliding windows are shorter than the text.
WRITERS: dict[str, Family] = {
    "llama": Family("llama", WRITING),
    "gpt2": Family("gpt2", GPT_WRITING),
    "gpt_neox": Family("gpt_neox", PLAIN_WRITING),
    "falcon": Family("falcon", FALCON),
    "bloom": FAMILIES["bloom"],
    "opt": Family("opt", {**PLAIN_WRITING, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "mpt": Family("mpt", {**FAMILIES["mpt"].settings, "max_seq_len": 128}),
    "phi3": Family("phi3", WRITING),
    "qwen3": Family("qwen3", {**WRITING, "head_dim": 24}),
    "gemma2": Family("gemma2", {**WRITING, "head_dim": 16, "sliding_window": 16}),
    "gemma3_text": Family("gemma3_text", {**MIXED, "head_dim": 16}),
    "mistral": Family("mistral", {**WRITING, "sliding_window": 16}),
    "mixtral": Family("mixtral", {**MIXTURE, "max_position_embeddings": 128}),
    "cohere2": Family("cohere2", MIXED),
    "starcoder2": Family("starcoder2", {**WRITING, "sliding_window": 16}),
    "t5": Family(
        "t5",
        {
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "vocab_size": 250,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": Family("bart", TWO_STACKS),
    "whisper": Family(
        "whisper", {**TWO_STACKS, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 128}
    ),
    "gpt_bigcode": Family("gpt_bigcode", GPT_WRITING),
    "codegen": Family("codegen", {**GPT_WRITING, "rotary_dim": 8}),
    "stablelm": Family("stablelm", WRITING),
}


MIXING = {**PLAIN, "pad_token_id": 0}
HEADS_OF_A_SCAN = {"num_heads": 8, "head_dim": 16, "state_size": 16, "chunk_size": 8}
ONE_HEAD_SUM = {"all_reduce backward parameter": 3}

# Families that mix tokens in another way than by attention; what is expected is that of their first block.
MIXERS: dict[str, Family] = {
    "mamba": Family("mamba", {**MIXING, "state_size": 8}),
    "mamba2": Family("mamba2", {**MIXING, **HEADS_OF_A_SCAN, "n_groups": 4}, forward=1, backward=1),
    # One group: what all heads share is whole, and the norm behind the scan is over their full width.
    "mamba2_one_group": Family("mamba2", {**MIXING, **HEADS_OF_A_SCAN, "n_groups": 1}, extra=ONE_HEAD_SUM),
    "zamba": Family(
        "zamba",
        {
            **MIXING,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "n_mamba_heads": 2,
            "layer_types": ["mamba", "mamba"],
            "attention_hidden_size": 128,
            "attention_head_dim": 16,
        },
    ),
    "lfm2": Family("lfm2", {**LLAMA_LIKE, "num_key_value_heads": 4, "layer_types": ["conv", "full_attention"]}),
    "qwen3_next": Family(
        "qwen3_next",
        {
            **LLAMA_LIKE,
            "mlp_only_layers": [0, 1],
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
        },
        extra=ONE_PARAMETER_SUM,
    ),
    "xlstm": Family("xlstm", {**MIXING, "num_heads": 4, "num_blocks": 2, "chunk_size": 8, "qk_dim_factor": 1.0}),
}
