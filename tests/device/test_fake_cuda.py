"""Programs of ranks on CUDA tensors without data, where torch is built for CUDA; no GPU is needed for that."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.device.build import ROOT

# Where there is a GPU too, these ranks see none.
PROGRAM = """
import sys, warnings
import torch, torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore
import autotp
from autotp.runtime.cut.origin import IsCut, parts_only
from autotp.runtime.cut.tensor import CutTensor
from autotp.runtime.groups.processes import ProcessRanks
from tests.device.models import batch, dense_model

warnings.simplefilter("ignore")
warnings.filterwarnings("error", message=".*whole weights")
ProcessRanks.check_agreement = lambda *_: None  # there is no other rank to agree with


# A cut parameter without data: a fake tensor takes no other class on.
class FakeCut(IsCut, FakeTensor):
    @staticmethod
    def of(part, cut):
        with unset_fake_temporarily():
            held = torch.empty(part.shape, dtype=part.dtype, device="meta", requires_grad=cut.requires_grad)
        made = FakeCut(part.fake_mode, held, part.device)
        made.__dict__.update(autotp_origin=cut.autotp_origin, autotp_memory=cut.autotp_memory, _is_param=True)
        return made

    __torch_function__ = CutTensor.__torch_function__


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
for name in sys.argv[1:]:
    model = autotp.parallelize(dense_model(name), device="cpu")
    model.config.use_cache = False  # a new cache begins with torch.tensor([]), for which torch needs a GPU
    for hook in list(model._forward_pre_hooks):
        model._forward_pre_hooks.pop(hook)
    inputs = batch(model)
    inputs.pop("labels", None)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        for module in model.modules():
            for slots in (module._parameters, module._buffers):
                for own, value in slots.items():
                    if value is not None:
                        with parts_only():
                            shape = value.shape
                        there = torch.empty(shape, dtype=value.dtype, device="cuda")
                        if isinstance(value, IsCut):
                            there = FakeCut.of(there, value)
                        elif isinstance(value, torch.nn.Parameter):
                            there = torch.nn.Parameter(there, value.requires_grad)
                        slots[own] = there
        result = model(**{key: torch.empty(v.shape, dtype=v.dtype, device="cuda") for key, v in inputs.items()})
        first = result.logits if "logits" in result else result[0]
        assert first.device.type == "cuda", first.device
        print(name, tuple(first.shape))
"""


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch is built without CUDA here")
@pytest.mark.long
def test_programs_run_on_cuda_tensors_without_data() -> None:
    from tests.device.test_programs import TWELVE

    # One of them indexes with a list, which torch puts on a GPU itself.
    names = ["mistral" if name == "falcon_multi_query" else name for name in TWELVE]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == len(names)
