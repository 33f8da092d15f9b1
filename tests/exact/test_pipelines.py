"""Pipelines of diffusers, tiny and random, whose network is cut over real ranks: the images and frames are the dense ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import autotp
from autotp.runtime.cut.origin import IsCut
from autotp.runtime.groups.launch import run_ranks

try:
    import diffusers
    from diffusers import (
        AutoencoderKL,
        AutoencoderKLWan,
        FlowMatchEulerDiscreteScheduler,
        FluxPipeline,
        StableDiffusion3Pipeline,
        WanPipeline,
    )
except (ImportError, RuntimeError) as error:  # pipelines need torchvision, which needs a build of torch with CUDA
    pytest.skip(f"the pipelines of diffusers cannot be imported: {error}", allow_module_level=True)

WIDTH = 32
TEXT = {
    "vocab_size": 99,
    "hidden_size": WIDTH,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def given(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images_decoder(channels: int) -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        latent_channels=channels,
        layers_per_block=1,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.0,
        scaling_factor=1.0,
        sample_size=32,
    )


def flux() -> tuple[Any, dict[str, Any]]:
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=[4, 4, 8],
    )
    parts = dict.fromkeys(("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"))
    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=images_decoder(4), transformer=transformer, **parts
    )
    words = {"prompt_embeds": given(1, 7, WIDTH), "pooled_prompt_embeds": given(1, WIDTH, seed=1)}
    return pipe, {**words, "height": 32, "width": 32, "guidance_scale": 3.0}


def stable_diffusion() -> tuple[Any, dict[str, Any]]:
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=64,
        pos_embed_max_size=32,
        qk_norm="rms_norm",
    )
    parts = dict.fromkeys(f"{part}{n}" for part in ("text_encoder", "tokenizer") for n in ("", "_2", "_3"))
    pipe = StableDiffusion3Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=images_decoder(4), transformer=transformer, **parts
    )
    words = {
        f"{sign}{name}": given(*shape, seed=len(sign))
        for sign in ("", "negative_")
        for name, shape in (("prompt_embeds", (1, 7, WIDTH)), ("pooled_prompt_embeds", (1, 64)))
    }
    return pipe, {**words, "height": 32, "width": 32, "guidance_scale": 4.0}


def wan() -> tuple[Any, dict[str, Any]]:
    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=4,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=WIDTH,
        freq_dim=32,
        ffn_dim=96,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    frames = AutoencoderKLWan(base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1)
    pipe = WanPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        vae=frames,
        transformer=transformer,
        text_encoder=None,
        tokenizer=None,
    )
    words = {"prompt_embeds": given(1, 7, WIDTH), "negative_prompt_embeds": given(1, 7, WIDTH, seed=1)}
    return pipe, {**words, "height": 16, "width": 16, "num_frames": 5, "guidance_scale": 4.0}


PIPELINES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "flux": flux,
    "stable_diffusion": stable_diffusion,
    "wan": wan,
}


def made(name: str) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    pipe, call = PIPELINES[name]()
    for part in (pipe.transformer, pipe.vae):
        part.to(torch.float64).eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe, call


def results(pipe: Any, call: dict[str, Any]) -> torch.Tensor:
    """What the pipeline makes, twice: of two random beginnings."""
    both = [
        pipe(**call, num_inference_steps=3, generator=torch.Generator().manual_seed(seed), output_type="pt")[0]
        for seed in (1, 2)
    ]
    return torch.stack(both)


def on_rank(name: str) -> tuple[torch.Tensor, float]:
    pipe, call = made(name)
    whole = sum(parameter.numel() for parameter in pipe.transformer.parameters())
    pipe.transformer = autotp.parallelize(pipe.transformer)
    found = results(pipe, call)
    held = [p.local() if isinstance(p, IsCut) else p for p in pipe.transformer.parameters()]
    return found, sum(part.numel() for part in held) / whole


def loaded_on_rank(name: str, folder: str) -> tuple[torch.Tensor, float]:
    pipe, call = made(name)
    kind = type(pipe.transformer)
    network = autotp.from_pretrained(folder, build=lambda: kind.from_config(kind.load_config(folder)))
    pipe.register_modules(transformer=network)
    found = results(pipe.to(torch.float64), call)
    loaded = autotp.loading(network)
    return found, loaded.bytes_read / loaded.bytes_of_checkpoint


@pytest.mark.sweep
def test_a_network_is_read_by_slices_at_the_first_step(tmp_path: Path) -> None:
    pipe, call = made("flux")
    pipe.transformer.save_pretrained(tmp_path, max_shard_size="200KB")
    true = results(pipe, call)
    for found, share in run_ranks(loaded_on_rank, 2, "flux", str(tmp_path)):
        torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-9)
        assert share < 0.6


@pytest.mark.sweep
@pytest.mark.parametrize("name", PIPELINES)
def test_images_and_frames_are_the_dense_ones(name: str) -> None:
    true = results(*made(name))
    assert true.dtype == torch.float64
    for found, share in run_ranks(on_rank, 2, name):
        torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-9)
        assert share < 0.6
