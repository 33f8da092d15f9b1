"""Models of torchvision: its transformers, and one of each convolutional family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torchvision import models
from torchvision.models.maxvit import MaxVit
from torchvision.models.resnet import Bottleneck
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2
from torchvision.models.video.mvit import MSBlockConfig, MViT
from torchvision.models.video.swin_transformer import SwinTransformer3d

from .made import Made, made

CLASSES = 16
# One of each convolutional family, the smallest, at a side that it takes.
NETS = {
    "alexnet": 64,
    "convnext_tiny": 32,
    "densenet121": 96,
    "efficientnet_b0": 32,
    "efficientnet_v2_s": 32,
    "mnasnet0_5": 32,
    "mobilenet_v2": 32,
    "mobilenet_v3_small": 32,
    "regnet_y_400mf": 96,
    "regnet_x_400mf": 32,
    "resnet18": 32,
    "resnet50": 32,
    "resnext50_32x4d": 32,
    "shufflenet_v2_x0_5": 32,
    "squeezenet1_1": 32,
}
AUXILIARY = {"googlenet": 64, "inception_v3": 80}  # with a second head, which is only called in training


def _net(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(models, name)(num_classes=CLASSES, **settings)


def _images(side: int) -> Callable[[Any], Any]:
    return lambda numbers: numbers(numbers.batch, 3, side, side)


def _swin(**settings: Any) -> nn.Module:
    return SwinTransformer([2, 2], 32, [2, 2], [4, 4], [4, 4], num_classes=CLASSES, **settings)


def _mvit() -> nn.Module:
    def block(before: int, after: int, stride: list[int]) -> MSBlockConfig:
        return MSBlockConfig(2, before, after, [3, 3, 3], [3, 3, 3], stride, [1, 2, 2])

    blocks = [block(32, 32, [1, 1, 1]), block(32, 64, [1, 2, 2]), block(64, 64, [1, 1, 1])]
    return MViT(
        (32, 32),
        4,
        blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=CLASSES,
    )


def _vgg() -> nn.Module:
    """With a narrow classifier: that of the published one has 120 million parameters."""
    net = models.vgg11_bn(num_classes=CLASSES)
    net.classifier = nn.Sequential(nn.Linear(512 * 49, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, CLASSES))
    return net


def _wide_resnet() -> nn.Module:
    return models.ResNet(Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, width_per_group=128)


CASES: dict[str, Callable[[], Made]] = {
    "vit": made(lambda: models.VisionTransformer(32, 8, 2, 4, 48, 96, num_classes=CLASSES), _images(32)),
    "swin": made(_swin, _images(32)),
    "swin_v2": made(
        lambda: _swin(block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2),
        _images(32),
    ),
    "maxvit": made(
        lambda: MaxVit((32, 32), 32, 2, [32, 64], [1, 1], 16, 0.0, num_classes=CLASSES),
        _images(32),
    ),
    "swin3d": made(
        lambda: SwinTransformer3d([2, 4, 4], 32, [2, 2], [2, 4], [4, 4, 4], num_classes=CLASSES),
        lambda numbers: numbers(numbers.batch, 3, 4, 32, 32),
    ),
    "mvit": made(_mvit, lambda numbers: numbers(numbers.batch, 3, 4, 32, 32)),
    "vgg11_bn": made(_vgg, _images(32)),
    "wide_resnet50_2": made(_wide_resnet, _images(32)),
    **{name: made(_net(name), _images(side)) for name, side in NETS.items()},
    **{name: made(_net(name, aux_logits=False, init_weights=False), _images(side)) for name, side in AUXILIARY.items()},
}
