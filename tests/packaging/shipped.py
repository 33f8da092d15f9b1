"""Make the plans that come with autotp anew: `python -m tests.packaging.shipped`, an hour on two cores.

It plans every type that transformers knows at its default size. To be run with the pinned versions when tests say that one of
these plans is no longer what is planned.
"""

from __future__ import annotations

import dataclasses
import json
import lzma
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autotp.cli import shipped
from autotp.errors import AutotpError
from autotp.huggingface.names import names_in_files
from autotp.huggingface.pretrained import quiet
from autotp.planner.plan import Plan
from autotp.session.plan_cache import class_files
from autotp.session.study import Study

LIMIT_S = 300
TYPES_A_PROCESS = 6  # the import takes as long as two plans, and what is traced is kept in memory


def line_of(model: str) -> str:
    """A line of the file: the plans of one type. Raises UsageError for a type that cannot be built."""
    warnings.simplefilter("ignore")
    with quiet(40):
        study = Study(model)
        plans = dict(_plans(study))
    inside = shipped.transformers_folder()
    files = sorted(str(file.relative_to(inside)) for file in class_files(study.module) if file.is_relative_to(inside))
    return shipped.as_line(model, files, plans)


def _plans(study: Study) -> Iterator[tuple[int, tuple[Plan, Mapping[str, Any]]]]:
    for size in shipped.SIZES:
        plan = study.plan(size)
        yield size, (plan, dataclasses.asdict(study.estimate(plan)))


def lines_of(models: Sequence[str]) -> dict[str, str]:
    """The lines of these types, made in a process of its own; without those that cannot be planned, with a word on each."""
    command = [sys.executable, "-m", "tests.packaging.shipped", *models]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        printed, _ = process.communicate(timeout=LIMIT_S * len(models))
    except subprocess.TimeoutExpired:
        process.kill()
        printed, _ = process.communicate()
        print("too long, after", printed[-60:], file=sys.stderr)
    lines = [line for line in printed.splitlines() if line.startswith('["') and line.endswith("]")]
    return {json.loads(line)[0]: line for line in lines}


def print_lines(models: Sequence[str]) -> None:
    """Print the line of each type that can be planned."""
    for model in models:
        try:
            print(line_of(model), flush=True)
        except Exception as error:  # which costs this type its place alone
            kind = "" if isinstance(error, AutotpError) else f"{type(error).__name__}: "
            print(f"{model} has no plan: {kind}{str(error).partition(chr(10))[0]}", file=sys.stderr, flush=True)


def write(lines: Mapping[str, str]) -> None:
    """Replace the file in one step."""
    head = json.dumps({"rules": shipped.rules_digest(), "versions": shipped.versions()})
    text = "".join(f"{line}\n" for line in (head, *(lines[model] for model in sorted(lines))))
    packed, new = lzma.compress(text.encode(), preset=9), shipped.FILE.with_suffix(".tmp")
    new.write_bytes(packed)
    new.replace(shipped.FILE)


def main() -> None:
    if len(sys.argv) > 1:
        print_lines(sys.argv[1:])
        return
    models, lines = sorted(names_in_files()), dict[str, str]()
    groups = [models[at : at + TYPES_A_PROCESS] for at in range(0, len(models), TYPES_A_PROCESS)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, made in enumerate(pool.map(lines_of, groups), start=1):
            lines |= made
            print(done, "of", len(groups), "groups:", len(lines), "types", file=sys.stderr, flush=True)
    write(lines)


if __name__ == "__main__":
    main()
