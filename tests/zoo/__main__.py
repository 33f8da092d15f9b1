"""python -m tests.zoo: measure families, keep what is known as JSON lines, write docs/COVERAGE.md."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from .coverage import write_coverage
from .kinds import BASE, CAUSAL, kinds
from .libraries import LIBRARIES, missing
from .measure import RIGHT, Record
from .pool import Task, run

ROOT = Path(__file__).parents[2]


def main() -> None:
    options = _options()
    for library, reason in missing().items():
        print(f"{library} is left out: {reason}")
    known = _read(options.results)
    tasks = _tasks(options, known if options.resume else {})
    for task in tasks:
        for tp in task.sizes:
            known.pop((task.kind.name, task.kind.head, tp), None)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text("".join(_line(record) for record in known.values()), encoding="utf-8")
    start = time.monotonic()
    with options.results.open("a", encoding="utf-8") as results:
        for record in run(tasks, options.workers, options.limit):
            known[_key(record)] = record
            results.write(_line(record))
            results.flush()
            print(_text(record), flush=True)
    print(f"{len(known)} records, {time.monotonic() - start:.0f} s")
    if options.coverage:
        write_coverage(options.coverage, list(known.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), help="families, with commas between")
    parser.add_argument("--head", choices=(CAUSAL, BASE, *LIBRARIES), help="only families of this kind or library")
    parser.add_argument("--tp", type=lambda text: tuple(map(int, text.split(","))), default=(2, 3, 4))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds that one family may take at one size")
    parser.add_argument("--resume", action="store_true", help="measure only what the results do not hold")
    parser.add_argument("--results", type=Path, default=ROOT / ".zoo" / "results.jsonl")
    parser.add_argument("--coverage", type=Path, help="where to write the table of all families")
    return parser.parse_args()


def _tasks(options: argparse.Namespace, known: dict[tuple[str, str, int], Record]) -> list[Task]:
    if options.only and (unknown := set(options.only) - {kind.name for kind in kinds()}):
        raise SystemExit(f"no such family: {', '.join(sorted(unknown))}")
    tasks = []
    for kind in kinds():
        sizes = tuple(tp for tp in options.tp if (kind.name, kind.head, tp) not in known)
        if sizes and options.head in (None, kind.head) and kind.name in (options.only or [kind.name]):
            tasks.append(Task(kind, sizes))
    return tasks


def _key(record: Record) -> tuple[str, str, int]:
    return record.kind, record.head, record.tp


def _read(path: Path) -> dict[tuple[str, str, int], Record]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [Record(**json.loads(line)) for line in lines]
    return {_key(record): record for record in records}


def _line(record: Record) -> str:
    return json.dumps(record.data()) + "\n"


def _text(record: Record) -> str:
    if record.status != RIGHT:
        return f"{record.kind} tp {record.tp}: {record.status}: {record.reason} ({record.seconds} s)"
    return f"{record.kind} tp {record.tp}: right, {record.fraction:.1%} a rank, tokens {record.tokens} ({record.seconds} s)"


if __name__ == "__main__":
    main()
