"""The first hour of somebody new: install the wheel, and run what the README says, word for word, in an empty folder.

`python -m tests.packaging.stranger` builds the distributions, installs the wheel alone beside the packages of this
environment, and runs it from there.
"""

from __future__ import annotations

import re
import site
import sys
import tempfile
from pathlib import Path

from .build import ROOT, build, call, check_contents, environment

RANKS = 2
CHECKPOINT = """
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8, vocab_size=256)
LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=4)).save_pretrained("checkpoint")
"""


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def commands(text: str) -> list[str]:
    """The commands of autotp that a page names, in its blocks and in its sentences, each once."""
    found = re.findall(r"^ {4}(autotp [^#\n]*)|`(autotp \w+ [^`\n]*)`", text, re.MULTILINE)
    return list(dict.fromkeys((block or sentence).strip() for block, sentence in found))


def shown(text: str) -> list[str]:
    """What the README shows of the first command's output: the block after it that is no command."""
    blocks = re.findall(r"(?:^ {4}\S.*\n(?:^(?: {4}.*)?\n)*)", text, re.MULTILINE)
    block = next(block for block in blocks if block.startswith("    model  "))
    return [line.strip() for line in block.splitlines() if line.strip()]


def missing(wanted: list[str], printed: str) -> list[str]:
    """The lines that are not there, in this order."""
    lines, at, lost = [line.strip() for line in printed.splitlines()], 0, []
    for line in wanted:
        if line in lines[at:]:
            at = lines.index(line, at) + 1
        else:
            lost.append(line)
    return lost


def walk(python: Path, folder: Path) -> None:
    """Run every command of the README with an environment's programs. Raises SystemExit with what went otherwise."""
    text, programs = readme(), python.parent
    settings = {
        "AUTOTP_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{programs}:/usr/bin:/bin",
    }
    where = call(python, "-c", "import autotp; print(autotp.__file__)", cwd=folder, **settings)
    if not where.startswith(str(programs.parent)):
        raise SystemExit(f"autotp was imported from {where}")
    for command in commands(text):
        print("+", command, flush=True)
        printed = call("bash", "-c", command, cwd=folder, **settings)
        if command == commands(text)[0] and (lost := missing(shown(text), printed)):
            raise SystemExit(f"the README shows what {command} does not print:\n" + "\n".join(lost))
    example = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    start = re.search(r"`(torchrun --nproc-per-node \d+ quickstart\.py)`", text)
    if example is None or start is None:
        raise SystemExit("the README has no example, or does not say how to start it")
    (folder / "quickstart.py").write_text(example[1], encoding="utf-8")
    call(python, "-c", CHECKPOINT, cwd=folder, **settings)
    print("+", start[1], f"(on {RANKS} ranks)", flush=True)
    start_here = re.sub(r"(?<=node )\d+", str(RANKS), start[1]).replace(
        "torchrun", f"{python} -m torch.distributed.run"
    )
    call("bash", "-c", start_here, cwd=folder, **settings)
    if not list((folder / "trained").glob("*.safetensors")):
        raise SystemExit("the README's example wrote no checkpoint")
    print("+ autotp demo", flush=True)
    call("bash", "-c", "autotp demo", cwd=folder, **settings)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        check_contents(wheel)
        python = environment(folder / "venv", wheel, sees=site.getsitepackages()[0])
        (folder / "empty").mkdir()
        walk(python, folder / "empty")
    print(f"{wheel.name}: what the README says runs, with {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
