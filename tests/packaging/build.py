"""The wheel and the source distribution, and environments that they are installed into."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def call(*command: object, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command without this checkout on its path, and return what it printed. Its errors are ours."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def build(folder: Path) -> Path:
    """Build both distributions, the wheel from the source distribution, and return the wheel."""
    tools = folder / "tools"
    pip(sys.executable, "--target", tools, "hatchling>=1.27")
    call(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, PYTHONPATH=str(tools))
    (source,) = folder.glob("autotp-*.tar.gz")
    call(sys.executable, "-m", "tarfile", "-e", source, folder / "source")
    (unpacked,) = (folder / "source").iterdir()
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=unpacked, PYTHONPATH=str(tools))
    (wheel,) = folder.glob("autotp-*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Raises SystemExit unless the wheel has every file of the package and every rule, and nothing else."""
    tracked = call("git", "ls-files", "autotp", "rules").split()
    wanted = {name if name.startswith("autotp/") else f"autotp/{name}" for name in tracked}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if held != wanted:
        raise SystemExit(f"the wheel lacks {sorted(wanted - held)} and has {sorted(held - wanted)} besides")


def environment(folder: Path, wheel: Path, *more: str, sees: str = "") -> Path:
    """A new environment with the wheel and what it needs, or, where it sees the packages of another one, the wheel alone."""
    call(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    if sees:
        (found,) = (folder / "lib").glob("python*/site-packages")
        (found / "others.pth").write_text(f"{sees}\n", encoding="utf-8")
        pip(python, "--no-deps", "--ignore-installed", wheel)
    else:
        pip(python, f"{wheel}[demo,test]", *more)
    return python


def pip(python: object, *arguments: object) -> None:
    call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def oldest() -> list[str]:
    """The lower bounds of pyproject.toml as versions to install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [bound.replace(">=", "==") for bound in project["dependencies"]]


def pinned() -> list[str]:
    """The versions that the tests run with."""
    lines: Iterable[str] = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if re.match(r"(torch|transformers)==", line)]
