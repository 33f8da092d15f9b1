"""Building the device's library: once for equal sources, whoever asks first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = ("device.cpp", "operators.cpp", "backend.cpp")
NAME = "autotp_mock"
# What lets `import torch` make the device known by itself, as the packages of real devices do.
ENTRY_POINT = "[torch.backends]\nmock = tests.device.module:register\n"
BUILD = "import sys; from torch.utils import cpp_extension; cpp_extension.load(*sys.argv[1:2], sys.argv[3:], \
extra_cflags=['-O1', '-g0'], build_directory=sys.argv[2])"
LIMIT_S = 600


def missing() -> str | None:
    """Why the library cannot be built here."""
    if not sys.platform.startswith("linux"):
        return "the test device is built on Linux only"
    tools = [tool for tool in (os.environ.get("CXX", "c++"), "ninja") if shutil.which(tool, path=_path()) is None]
    return f"the test device cannot be built without {' and '.join(tools)}" if tools else None


def folder() -> Path:
    """Where the library for these sources and this torch is, or will be."""
    parts = [torch.__version__, sys.version, *[(HERE / name).read_text() for name in ("device.h", *SOURCES)]]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "autotp", f"mock-{digest}")


def library() -> Path:
    """The built library. Processes that ask at the same time wait for the first one."""
    place = folder()
    built = place / f"{NAME}.so"
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "building", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go by the system too, where a process is killed
        if not (place / "done").exists():
            _build(place)
            (place / "done").touch()
    return built


def _build(place: Path) -> None:
    sources = [str(HERE / name) for name in SOURCES]
    environment = {**os.environ, "PATH": _path()}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, NAME, str(place), *sources],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        raise RuntimeError(f"the test device does not build:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    described = place / "plugin" / f"{NAME}-1.dist-info"
    described.mkdir(parents=True, exist_ok=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    (described / "entry_points.txt").write_text(ENTRY_POINT)


def environment() -> dict[str, str]:
    """What to run a program under for which the device is this machine's accelerator."""
    library()
    paths = [str(ROOT), str(folder() / "plugin"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PATH": _path(), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _path() -> str:
    """Where programs are, those beside this Python included."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
