"""How a process ends that was a rank: with nothing of ours left that runs when the interpreter does not any more."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, os, sys, tempfile, weakref
import torch.distributed as dist

def last():
    print(len(os.listdir("/proc/self/task")) - threads, group() is None)

atexit.register(last)
from autotp.runtime.groups.registry import group_of

store = dist.FileStore(tempfile.mktemp(), 1)
threads = len(os.listdir("/proc/self/task"))
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
group, user = weakref.ref(dist.group.WORLD), object
made = group_of(((0,),), user, None)
assert made.process_group is group()
dist.destroy_process_group()
"""


def test_a_destroyed_group_has_no_threads_when_the_interpreter_ends() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "0 True\n"), done.stderr
