"""Models of timm: one or more of each of its files, made small where their constructors allow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
from timm.layers import GatedMlp, GluMlp
from timm.models import convmixer, focalnet, gcvit, metaformer, mlp_mixer, mvitv2, nest, volo
from torch import nn

from .made import Made, made

CLASSES, SIDE = 16, 32
FOUR: dict[str, Any] = {"depths": (1, 1, 2, 1)}
VIT: dict[str, Any] = {"img_size": SIDE, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
MIXER: dict[str, Any] = {"num_classes": CLASSES, "img_size": SIDE, "patch_size": 8, "num_blocks": 2, "embed_dim": 48}
STAGES: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (16, 32, 64, 64)}

# Model -> what its constructor is given.
SMALL: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": VIT,
    "beitv2_base_patch16_224": VIT,
    "cait_xxs24_224": VIT,
    "convit_tiny": VIT,
    "deit_tiny_distilled_patch16_224": VIT,
    "deit3_small_patch16_224": VIT,
    "eva02_tiny_patch14_224": VIT,
    "eva02_base_patch16_clip_224": VIT,
    "vit_tiny_patch16_224": VIT,
    "vit_base_patch16_siglip_224": VIT,
    "vit_base_patch32_plus_256": VIT,
    "aimv2_large_patch14_224": VIT,
    "vit_relpos_small_patch16_224": VIT,
    "samvit_base_patch16_224": {**VIT, "global_attn_indexes": (1,)},
    "tnt_s_patch16_224": {
        "img_size": SIDE,
        "embed_dim": 48,
        "depth": 2,
        "num_heads_outer": 4,
        "num_heads_inner": 4,
        "inner_dim": 16,
    },
    "xcit_nano_12_p8_224": VIT,
    "naflexvit_base_patch16_gap": {"embed_dim": 48, "depth": 2, "num_heads": 4, "patch_size": 8},
    "deepseek_vit_412m": VIT,
    "qwen3_vit_88m": VIT,
    "gemma4_vit_167m": VIT,
    "swin_tiny_patch4_window7_224": {
        "img_size": SIDE,
        "embed_dim": 32,
        "depths": (2, 2),
        "num_heads": (2, 4),
        "window_size": 4,
    },
    "swinv2_tiny_window8_256": {
        "img_size": SIDE,
        "embed_dim": 32,
        "depths": (2, 2),
        "num_heads": (2, 4),
        "window_size": 4,
    },
    "swinv2_cr_tiny_224": {
        "img_size": SIDE,
        "embed_dim": 32,
        "depths": (2, 2),
        "num_heads": (2, 4),
        "window_size": 4,
    },
    "crossvit_tiny_240": {
        "img_size": 48,
        "img_scale": (1.0, 2 / 3),
        "patch_size": (12, 8),
        "embed_dim": (32, 48),
        "depth": ((1, 2, 0),),
        "num_heads": (4, 4),
    },
    "coat_tiny": {
        "parallel_depth": 1,
        "img_size": SIDE,
        "embed_dims": (32, 32, 32, 32),
        "serial_depths": (1, 1, 1, 1),
        "num_heads": 8,
    },
    "coat_lite_tiny": {"img_size": SIDE, "embed_dims": (32, 32, 32, 32), "serial_depths": (1, 1, 1, 1), "num_heads": 8},
    "pit_ti_224": {"img_size": 64, "base_dims": (8, 8, 8), "depth": (1, 1, 1), "heads": (2, 4, 8)},
    "twins_svt_small": {
        "img_size": SIDE,
        "embed_dims": (16, 32, 32, 32),
        "depths": (2, 2, 2, 2),
        "num_heads": (2, 4, 4, 4),
        "wss": (4, 4, 2, 1),
    },
    "twins_pcpvt_small": {
        "img_size": SIDE,
        "embed_dims": (16, 32, 32, 32),
        "depths": (1, 1, 1, 1),
        "num_heads": (1, 2, 4, 4),
    },
    "hiera_tiny_224": {"img_size": (64, 64), "embed_dim": 16, "stages": (1, 1, 2, 1)},
    "sam2_hiera_tiny": {
        "embed_dim": 16,
        "stages": (1, 1, 2, 1),
        "global_att_blocks": (3,),
    },
    "davit_tiny": {**FOUR, "embed_dims": (16, 32, 32, 64), "num_heads": (2, 4, 4, 4)},
    "convnext_atto": {**FOUR, "dims": (16, 32, 32, 64)},
    "convnextv2_atto": {**FOUR, "dims": (16, 32, 32, 64)},
    "inception_next_atto": {**FOUR, "dims": (32, 32, 64, 64)},
    "edgenext_xx_small": {**FOUR, "dims": (16, 32, 48, 64)},
    "efficientformer_l1": {"img_size": 224, "depths": (1, 1, 1, 2), "embed_dims": (16, 32, 32, 64)},
    "efficientformerv2_s0": {"img_size": 64, "depths": (1, 1, 1, 2), "embed_dims": (16, 32, 32, 64)},
    "pvt_v2_b0": {**FOUR, "embed_dims": (16, 32, 32, 64), "num_heads": (1, 2, 4, 4)},
    "rdnet_tiny": {},
    "mambaout_femto": {**FOUR, "dims": (16, 32, 32, 64)},
    "sequencer2d_s": {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 32, 32), "hidden_sizes": (8, 16, 16, 16)},
    "fasternet_t0": {"embed_dim": 16, **FOUR},
    "swiftformer_xs": {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 32, 64)},
    "starnet_s050": {},
    "shvit_s1": {"depth": (1, 1, 1)},
    "repvit_m0_9": {"embed_dim": (16, 32, 32, 64), "depth": (1, 1, 2, 1)},
    "iformer_t": {},
    "efficientvim_m1": {},
    "levit_128s": {"img_size": 128, "embed_dim": (32, 48, 64), "depth": (1, 1, 1)},
    "efficientvit_m0": {"img_size": 128},
    "efficientvit_b0": {},
    "tiny_vit_5m_224": {
        "embed_dims": (16, 32, 32, 64),
        "depths": (1, 1, 2, 1),
        "num_heads": (2, 2, 4, 4),
        "window_sizes": (4, 4, 4, 2),
    },
    "vit_tiny_r_s16_p8_224": {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 4},
    "visformer_tiny": {"img_size": 64, "embed_dim": 48, "depth": (1, 1, 1), "num_heads": 6},
    "vitamin_small_224": {"img_size": 64, "depth": 2},
    "coatnet_pico_rw_224": {"img_size": 64},
    "maxvit_pico_rw_256": {"img_size": 64},
    "nextvit_small": {"depths": (1, 1, 5, 1)},
    "nasnetalarge": {"stem_size": 24, "num_features": 384},
    "mobilenetv5_base": {"channel_multiplier": 0.25},
    "vgg11": {"mlp_ratio": 1 / 64},
    "vgg11_bn": {"mlp_ratio": 1 / 64},
}
# As they are, at a small image: name -> the image's side.
AS_THEY_ARE = {
    "bat_resnext26ts": 256,
    "botnet26t_256": 256,
    "halonet26t": 256,
    "lambda_resnet26t": 64,
    "cpubone_nano": 64,
    "csatv2": 64,
    "cspresnet50": 64,
    "cspnext_tiny": 64,
    "densenet121": 64,
    "dla46_c": 64,
    "dpn48b": 64,
    "efficientnet_b0": 64,
    "fastvit_t8": 64,
    "ghostnet_050": 64,
    "ghostnetv2_100": 64,
    "hardcorenas_a": 64,
    "hgnetv2_b0": 64,
    "hrnet_w18_small": 64,
    "inception_resnet_v2": 96,
    "inception_v3": 96,
    "inception_v4": 96,
    "lcnetv2_small": 64,
    "lowformer_b0": 64,
    "lcnet_035": 64,
    "mobilenetv3_small_050": 64,
    "mobilevit_xxs": 64,
    "mobilevitv2_050": 64,
    "pnasnet5large": 64,
    "nf_regnet_b0": 64,
    "eca_nfnet_l0": 64,
    "regnety_002": 64,
    "regnetx_002": 64,
    "repghostnet_050": 64,
    "res2net50_14w_8s": 64,
    "resnest14d": 64,
    "resnet10t": 64,
    "seresnet50": 64,
    "resnetv2_50": 64,
    "rexnet_100": 64,
    "selecsls42": 64,
    "legacy_seresnet18": 64,
    "skresnet18": 64,
    "tresnet_m": 64,
    "ese_vovnet19b_slim_dw": 64,
    "legacy_xception": 64,
    "xception41": 64,
}


# Whose names fix their sizes: made by their constructors.
BUILT: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "mixer": (SIDE, lambda: mlp_mixer.MlpMixer(**MIXER)),
    "gmixer": (SIDE, lambda: mlp_mixer.MlpMixer(**MIXER, mlp_ratio=(1.0, 4.0), mlp_layer=GluMlp, act_layer=nn.SiLU)),
    "gmlp": (
        SIDE,
        lambda: mlp_mixer.MlpMixer(**MIXER, mlp_ratio=6, block_layer=mlp_mixer.SpatialGatingBlock, mlp_layer=GatedMlp),
    ),
    "resmlp": (
        SIDE,
        lambda: mlp_mixer.MlpMixer(**MIXER, mlp_ratio=4, block_layer=mlp_mixer.ResBlock, norm_layer=mlp_mixer.Affine),
    ),
    "nest": (SIDE, lambda: nest.Nest(SIDE, 3, 4, 2, (32, 48), (2, 4), (1, 1), CLASSES)),
    "volo": (
        64,
        lambda: volo.VOLO((1, 1, 1, 1), 64, 3, CLASSES, embed_dims=(24, 48, 48, 48), num_heads=(3, 6, 6, 6)),
    ),
    "mvitv2": (
        64,
        lambda: mvitv2.MultiScaleVit(mvitv2.MultiScaleVitCfg((1, 1, 2, 1), 32), (64, 64), num_classes=CLASSES),
    ),
    "gcvit": (
        64,
        lambda: gcvit.GlobalContextVit(
            3, CLASSES, img_size=64, embed_dim=16, depths=(1, 1, 1, 1), window_ratio=(16, 16, 16, 32)
        ),
    ),
    "focalnet": (64, lambda: focalnet.FocalNet(3, CLASSES, embed_dim=16, depths=(1, 1, 2, 1))),
    "convmixer": (SIDE, lambda: convmixer.ConvMixer(48, 2, num_classes=CLASSES)),
    "poolformer": (64, lambda: metaformer.MetaFormer(num_classes=CLASSES, **STAGES, use_mlp_head=False)),
    "convformer": (64, lambda: metaformer.MetaFormer(num_classes=CLASSES, **STAGES, token_mixers=metaformer.SepConv)),
    "caformer": (
        64,
        lambda: metaformer.MetaFormer(
            num_classes=CLASSES,
            **STAGES,
            token_mixers=[metaformer.SepConv] * 2 + [metaformer.Attention] * 2,
            norm_layers=[metaformer.LayerNorm2dNoBias] * 2 + [metaformer.LayerNormNoBias] * 2,
        ),
    ),
}


def _build(name: str) -> Callable[[], nn.Module]:
    if name in BUILT:
        return BUILT[name][1]
    return lambda: timm.create_model(name, num_classes=CLASSES, **SMALL.get(name, {}))


def _side(name: str) -> int:
    side = SMALL[name].get("img_size", 64)
    return side if isinstance(side, int) else side[0]


def _images(side: int) -> Callable[[Any], Any]:
    return lambda numbers: numbers(numbers.batch, 3, side, side)


SIDES = {**{name: side for name, (side, _) in BUILT.items()}, **{name: _side(name) for name in SMALL}, **AS_THEY_ARE}
CASES: dict[str, Callable[[], Made]] = {name: made(_build(name), _images(side)) for name, side in SIDES.items()}
