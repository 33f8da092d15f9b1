"""What single families need beyond small sizes: some settings after, or a small configuration in full instead."""

from __future__ import annotations

from typing import Any

DECODER: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HYBRID = {**DECODER, "num_hidden_layers": 4}
BLT_PART = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "hidden_size_global": 128,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
MUSIC = {
    "decoder": {
        "vocab_size": 64,
        "hidden_size": 64,
        "ffn_dim": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "max_position_embeddings": 128,
        "num_codebooks": 1,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "decoder_start_token_id": 0,
    },
    "text_encoder": {"model_type": "t5", "d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 128},
    "audio_encoder": {"model_type": "encodec"},
}

# Instead of the family's defaults made small: where layers only make sense together, or the defaults do not run.
WHOLE: dict[str, dict[str, Any]] = {
    "blt": {
        "vocab_size": 256,
        "patching_mode": "entropy",
        "encoder_hash_byte_group_size": [3],
        "encoder_hash_byte_group_vocab": 128,
        "max_position_embeddings": 128,
        "patcher_config": BLT_PART,
        "encoder_config": BLT_PART,
        "decoder_config": BLT_PART,
        "global_config": {**BLT_PART, "hidden_size": 128, "num_attention_heads": 8},
    },
    "cohere_compass_text": {
        **DECODER,
        "head_dim": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {
        "d_model": 64,
        "n_heads": 8,
        "n_layers": 2,
        "max_seq_len": 128,
        "vocab_size": 256,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {
        **DECODER,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "gemma3n_text": {
        **HYBRID,
        "num_hidden_layers": 5,
        "intermediate_size": [128] * 5,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0, 0.0],
        "head_dim": 16,
        "sliding_window": 8,
        "layer_types": [
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "sliding_attention",
            "full_attention",
        ],
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 256,
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
    },
    "granitemoehybrid": {
        **HYBRID,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_chunk_size": 8,
    },
    "lfm2_moe": {
        **HYBRID,
        "moe_intermediate_size": 32,
        "num_dense_layers": 1,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    },
    "musicgen": MUSIC,
    "musicgen_melody": MUSIC,
    "qwen4_exp_text": {
        **HYBRID,
        "head_dim": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "hc_lowrank": 16,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
    },
    "reformer": {
        "is_decoder": True,
        "hidden_size": 64,
        "feed_forward_size": 128,
        "num_attention_heads": 8,
        "attention_head_size": 8,
        "attn_layers": ["local", "local"],
        "axial_pos_embds": False,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "local_attn_chunk_length": 16,
        "pad_token_id": 0,
        "eos_token_id": 2,
    },
    "zamba": {
        **HYBRID,
        "num_hidden_layers": 5,
        "num_key_value_heads": 8,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "linear_attention"],
        "n_mamba_heads": 2,
        "mamba_dt_rank": 8,
        "use_mamba_kernels": False,
    },
    "zamba2": {
        **HYBRID,
        "num_hidden_layers": 5,
        "num_key_value_heads": 8,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "linear_attention"],
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "mamba_ngroups": 2,
        "mamba_d_state": 16,
        "chunk_size": 8,
        "adapter_rank": 8,
        "use_mamba_kernels": False,
    },
}
WHOLE["qwen4_exp"] = {"text_config": WHOLE["qwen4_exp_text"]}

# The part for images or sounds of a model that is called with text alone: so small that it does not count.
SMALL_TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "image_size": 12, "patch_size": 4}

# A tokenizer of sounds whose stages would take gigabytes.
SOUND = {"num_filters": 8, "depths": [1, 1], "downsampling_ratios": [2], "hidden_size": 16}

# On top of the small configuration; a nested configuration's settings are a dict.
AFTER: dict[str, dict[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},  # a short text makes it take this one by itself
    "clap": {"audio_config": {"hidden_size": 128, "patch_embeds_hidden_size": 16}},
    "fuyu": {"patch_size": 4},
    "gemma3": {"vision_config": SMALL_TOWER},
    "git": {"vision_config": SMALL_TOWER},
    "got_ocr2": {"vision_config": {**SMALL_TOWER, "output_channels": 16, "mlp_dim": 32, "global_attn_indexes": [1]}},
    "moss_transcribe_diarize": {"audio_config": {**SMALL_TOWER, "max_source_positions": 40}},
    "perceiver": {"d_latents": 64, "d_model": 64, "num_latents": 16, "num_self_attends_per_block": 2},
    "phi4_multimodal": {
        "vision_config": {**SMALL_TOWER, "crop_size": 24},
        "audio_config": {
            **SMALL_TOWER,
            "ext_pw_out_channel": 16,
            "nemo_conv_channels": 16,
            "num_blocks": 1,
            "depthwise_separable_out_channel": 16,
        },
    },
    "vibevoice": {"audio_config": SOUND, "semantic_model_config": SOUND},
    "vibevoice_acoustic_tokenizer": SOUND,
    "vibevoice_acoustic_tokenizer_decoder": SOUND,
    "vibevoice_acoustic_tokenizer_encoder": SOUND,
    "vibevoice_asr": {"acoustic_tokenizer_encoder_config": SOUND, "semantic_tokenizer_encoder_config": SOUND},
    "swin2sr": {"depths": [1, 1], "num_heads": [4, 4], "embed_dim": 64, "image_size": 16, "window_size": 4},
    "vjepa2": {
        "frames_per_clip": 4,
        "crop_size": 32,
        "patch_size": 8,
        "pred_hidden_size": 48,
        "pred_num_hidden_layers": 2,
    },
    "xmod": {"languages": ["en_XX", "de_DE"], "default_language": "en_XX"},
}
