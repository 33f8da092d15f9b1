"""Libraries that cut a Llama by themselves. Neither is needed by autotp: a benchmark says which one is not installed.

pip install --no-deps accelerate deepspeed einops hjson msgpack ninja psutil py-cpuinfo pydantic
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Absent(Exception):
    """A library is not installed."""


def need(*names: str) -> None:
    """Raises Absent if a module is missing."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise Absent(f"{name} is not installed")


def act_as_launched() -> None:
    """Set what `torchrun` would have set, for libraries that read it."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_SIZE=size, LOCAL_WORLD_SIZE=size)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29551")


def transformers_tp(folder: str) -> nn.Module:
    """The checkpoint in a folder under transformers' own tensor parallelism."""
    from transformers import AutoModelForCausalLM

    need("accelerate")
    act_as_launched()
    try:
        from transformers.distributed import DistributedConfig

        settings = {"distributed_config": DistributedConfig(tp_plan="auto")}
    except (ImportError, TypeError):  # before that class had a plan
        settings = {"tp_plan": "auto"}
    return AutoModelForCausalLM.from_pretrained(folder, **settings)


def deepspeed_tp(model: nn.Module) -> nn.Module:
    """A dense model under DeepSpeed's AutoTP, to run."""
    settings = {"tensor_parallel": {"tp_size": dist.get_world_size()}, "replace_with_kernel_inject": False}
    return _deepspeed().init_inference(model, dtype=torch.float32, **settings).module


def deepspeed_tp_to_train(model: nn.Module) -> nn.Module:
    """A dense model under DeepSpeed's AutoTP, to be trained."""
    deepspeed = _deepspeed()
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "tensor_parallel": {"autotp_size": dist.get_world_size()},
        "zero_optimization": {"stage": 0},
    }
    return deepspeed.initialize(model=model, config=settings)[0].module


def _deepspeed() -> Any:
    need("deepspeed")
    act_as_launched()
    os.environ["DS_ACCELERATOR"] = "cpu"
    # Its shared memory collective is compiled at the first use, with the ninja that was installed beside it.
    beside = Path(importlib.util.find_spec("deepspeed").origin).parents[1] / "bin"
    os.environ["PATH"] = os.pathsep.join([str(beside), str(Path(sys.executable).parent), os.environ["PATH"]])
    import deepspeed

    return deepspeed
