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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
import autotp
from autotp.runtime.cut.origin import parts_only
from autotp.runtime.ranks import ProcessRanks
from tests.device.models import batch, dense_model

warnings.simplefilter("ignore")
ProcessRanks.check_agreement = lambda *_: None  # there is no other rank to agree with
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
for name in sys.argv[1:]:
    model = autotp.parallelize(dense_model(name), device="cpu")
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
                        slots[own] = torch.nn.Parameter(there, False) if own in module._parameters else there
        result = model(**{key: torch.empty(v.shape, dtype=v.dtype, device="cuda") for key, v in inputs.items()})
        first = result.logits if "logits" in result else result[0]
        assert first.device.type == "cuda", first.device
        print(name, tuple(first.shape))
"""


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch is built without CUDA here")
@pytest.mark.long
def test_programs_run_on_cuda_tensors_without_data() -> None:
    from tests.device.test_programs import TWELVE

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *TWELVE], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == len(TWELVE)
