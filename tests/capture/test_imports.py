"""What a trace imports: nothing of torch's export and compiler, which take longer than the trace."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch, autotp
autotp.plan(torch.nn.Linear(4, 6), 2, example=(torch.ones(3, 4),))
print(*sorted({"torch.export._trace", "torch._export.passes"} & sys.modules.keys()))
"""


@pytest.mark.matrix
def test_a_trace_does_not_look_for_lines_of_code() -> None:
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
