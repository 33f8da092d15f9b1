"""An image by a pipeline of diffusers, dense and with its network cut over two ranks: the same image.

    python examples/image.py

The FLUX pipeline here is tiny and random, so it paints noise. With `FluxPipeline.from_pretrained(...)`, under `torchrun`, it is
the same line of code. It needs diffusers and torchvision: `pip install diffusers torchvision`.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

import autotp
from autotp.runtime.groups.launch import run_ranks

WIDTH, WORDS = 64, 7


def pipeline() -> FluxPipeline:
    """A small FLUX in float64, without text encoders."""
    torch.manual_seed(0)
    network = FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=[4, 4, 8],
    )
    decoder = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        latent_channels=4,
        shift_factor=0.0,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    encoders = dict.fromkeys(("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"))
    pipe = FluxPipeline(scheduler=FlowMatchEulerDiscreteScheduler(), vae=decoder, transformer=network, **encoders)
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(dtype=torch.float64)


def paint(pipe: FluxPipeline) -> torch.Tensor:
    """One image (3, height, width), in numbers from 0 to 1."""
    generator = torch.Generator().manual_seed(1)
    prompt: dict[str, Any] = {
        "prompt_embeds": torch.randn(1, WORDS, WIDTH, generator=generator, dtype=torch.float64),
        "pooled_prompt_embeds": torch.randn(1, WIDTH, generator=generator, dtype=torch.float64),
    }
    return pipe(**prompt, height=32, width=32, num_inference_steps=4, generator=generator, output_type="pt").images[0]


def on_rank() -> tuple[torch.Tensor, int]:
    """What a rank paints, and how many numbers of the network it holds."""
    pipe = pipeline()
    pipe.transformer = autotp.parallelize(pipe.transformer)
    image = paint(pipe)  # the network is cut at its first call
    parts = [p.local() if hasattr(p, "local") else p for p in pipe.transformer.parameters()]
    return image, sum(part.numel() for part in parts)


if __name__ == "__main__":
    dense = pipeline()
    image, whole = paint(dense), sum(parameter.numel() for parameter in dense.transformer.parameters())
    for rank, (own, held) in enumerate(run_ranks(on_rank, 2)):
        print(
            f"rank {rank} holds {held / whole:.0%} of the network; its image differs by {(own - image).abs().max():.0e}"
        )
