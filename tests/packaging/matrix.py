"""`make matrix`: other versions of torch and transformers, each in an environment of its own with the wheel installed.

Oldest: the lower bounds of pyproject.toml. Pinned: those of constraints.txt. Newest: whatever pip takes. In each the README
is followed, and the tests marked `matrix` run. An environment is kept in `.matrix/` until the versions change.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .build import ROOT, build, call, environment, oldest, pinned
from .stranger import walk

PAIRS = {"oldest": oldest, "pinned": pinned, "newest": list}


def run(name: str) -> bool:
    """Returns if everything is right with these versions."""
    home, versions = ROOT / ".matrix" / name, PAIRS[name]()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        shutil.rmtree(home, ignore_errors=True)
        python = environment(home, wheel, *versions)
        found = call(python, "-c", "import torch, transformers; print(torch.__version__, transformers.__version__)")
        print(
            f"{name}: torch and transformers {found.strip()}, installed in {time.perf_counter() - start:.0f} s",
            flush=True,
        )
        (Path(folder) / "empty").mkdir()
        walk(python, Path(folder) / "empty")
    start = time.perf_counter()
    done = subprocess.run([python, "-m", "pytest", "-q", "-n", "auto", "-m", "matrix"], cwd=ROOT, check=False)
    print(f"{name}: tests of {found.strip()} in {time.perf_counter() - start:.0f} s", flush=True)
    return done.returncode == 0


def main() -> None:
    wanted = sys.argv[1:] or list(PAIRS)
    if unknown := set(wanted) - PAIRS.keys():
        raise SystemExit(f"{sorted(unknown)} is none of {', '.join(PAIRS)}")
    wrong = [name for name in wanted if not run(name)]
    raise SystemExit(f"not right with the {' and the '.join(wrong)} versions" if wrong else 0)


if __name__ == "__main__":
    main()
