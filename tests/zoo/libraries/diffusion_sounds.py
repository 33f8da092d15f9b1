"""Transformers of diffusers that make sounds."""

from __future__ import annotations

from collections.abc import Callable

from .made import Made
from .noisy import CHANNELS, HEADS, TEXT, WORDS, case, mask, shares, text

FRAMES = 8

CASES: dict[str, Callable[[], Made]] = {
    "AceStepTransformer1DModel": case(
        "AceStepTransformer1DModel",
        {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "in_channels": 24,
            "audio_acoustic_hidden_dim": 8,
            "encoder_hidden_size": TEXT,
            "sliding_window": 4,
        },
        lambda numbers: {
            "hidden_states": numbers(numbers.batch, FRAMES + numbers.more, 8),
            "timestep": shares(numbers),
            "timestep_r": shares(numbers),
            "encoder_hidden_states": text(numbers),
            "context_latents": numbers(numbers.batch, FRAMES + numbers.more, 16),
        },
    ),
    "LongCatAudioDiTTransformer": case(
        "LongCatAudioDiTTransformer",
        {"dit_dim": 64, "dit_depth": 2, "dit_heads": 4, "dit_text_dim": TEXT, "latent_dim": 8},
        lambda numbers: {
            "hidden_states": numbers(numbers.batch, FRAMES + numbers.more, 8),
            "encoder_hidden_states": text(numbers),
            "encoder_attention_mask": mask(numbers),
            "timestep": shares(numbers),
            "latent_cond": numbers(numbers.batch, FRAMES + numbers.more, 8),
        },
    ),
    "MiniMaxMusic3RVQDepthDecoder": case(
        "MiniMaxMusic3RVQDepthDecoder",
        {
            "hidden_size": 64,
            "num_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "audio_vocab_size": 32,
            "num_codebooks": 4,
        },
        lambda numbers: {"inputs_embeds": numbers(numbers.batch, 4, 64)},
    ),
    "MiniMaxMusic3Transformer1DModel": case(
        "MiniMaxMusic3Transformer1DModel",
        {
            **HEADS,
            "in_channels": 8,
            "condition_dim": TEXT,
            "num_layers": 2,
            "ff_inner_dim": 96,
            "rotary_dim": 8,
            "fourier_embedding_dim": 16,
        },
        lambda numbers: {
            "hidden_states": numbers(numbers.batch, 8, FRAMES),
            "timestep": shares(numbers),
            "encoder_hidden_states": numbers(numbers.batch, FRAMES, TEXT),
        },
    ),
    "StableAudioDiTModel": case(
        "StableAudioDiTModel",
        {
            **HEADS,
            "sample_size": FRAMES,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "num_layers": 2,
            "num_key_value_attention_heads": 2,
            "cross_attention_dim": TEXT,
            "time_proj_dim": 16,
            "global_states_input_dim": 32,
            "cross_attention_input_dim": TEXT,
        },
        lambda numbers: {
            "hidden_states": numbers(numbers.batch, CHANNELS, FRAMES),
            "timestep": shares(numbers),
            "encoder_hidden_states": text(numbers),
            "global_hidden_states": numbers(numbers.batch, 1, 32),
            "rotary_embedding": (numbers(FRAMES + 1, 8), numbers(FRAMES + 1, 8)),
        },
    ),
    "StableAudio3DiTModel": case(
        "StableAudio3DiTModel",
        {
            "io_channels": 8,
            "embed_dim": 64,
            "depth": 2,
            "num_heads": 4,
            "cond_token_dim": TEXT,
            "global_cond_dim": 32,
            "local_add_cond_dim": 9,
            "timestep_features_dim": 16,
            "num_memory_tokens": 4,
        },
        lambda numbers: {
            "hidden_states": numbers(numbers.batch, 8, FRAMES),
            "timestep": shares(numbers),
            "encoder_hidden_states": text(numbers),
            "global_hidden_states": numbers(numbers.batch, 32),
        },
    ),
    "T5FilmDecoder": case(
        "T5FilmDecoder",
        {
            "input_dims": 16,
            "targets_length": FRAMES,
            "d_model": 64,
            "num_layers": 2,
            "num_heads": 4,
            "d_kv": 16,
            "d_ff": 128,
        },
        lambda numbers: {
            "encodings_and_masks": [(numbers(numbers.batch, WORDS, 64), mask(numbers)[:, :WORDS])],
            "decoder_input_tokens": numbers(numbers.batch, FRAMES, 16),
            "decoder_noise_time": shares(numbers),
        },
    ),
}
