"""The table of all families, from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .kinds import BASE, CAUSAL
from .libraries import LIBRARIES
from .measure import CUT, DENSE_FAILS, RIGHT, Record

TITLES = {
    CAUSAL: "Causal language models",
    BASE: "Base models of encoders, vision, audio and several modalities",
    **{library: f"Models of {library}" for library in LIBRARIES},
}
HEAD = """# Coverage

Model types of transformers {version}, tiny and with random weights, cut over simulated ranks in float64 and compared with
the dense model: outputs, every gradient, greedy tokens. Written by `make zoo`. A family counts as **cut** if a rank holds at
most three quarters of its parameters, embeddings included, and gathers no weight that is more than a thousandth of them in any
kind of call: a forward without a cache and with one, a training step, generation. Where a rank holds more, a plan for the
**least memory** (`objective="memory"`) is measured in the same way, and what a rank holds of that stands in brackets. A cell is
empty, and a family is absent, where nothing was measured. A difference above 1e-9 counts as none where the dense model's own
numbers move as far, or by a tenth of themselves, when its weights and inputs change by a few roundings. Models of other
libraries follow, made small in the same way.
"""


def write_coverage(path: Path, records: Sequence[Record]) -> None:
    """Write the tables of all records. A table of what none of them is about stays as it is in the file."""
    import transformers

    parts, before = [HEAD.format(version=transformers.__version__)], _tables(path)
    for head, title in TITLES.items():
        mine = [record for record in records if record.head == head]
        if mine:
            parts += [f"## {title}\n", _counts(mine), _table(mine)]
        elif title in before:
            parts.append(f"## {title}\n{before[title]}")
    path.write_text("\n".join(parts), encoding="utf-8")


def _tables(path: Path) -> dict[str, str]:
    """What a file has under each title."""
    _, *sections = path.read_text(encoding="utf-8").split("\n## ") if path.exists() else [""]
    return {title: text.rstrip("\n") + "\n" for title, _, text in (section.partition("\n") for section in sections)}


def is_cut(record: Record) -> bool:
    """Returns if a family is entirely right, holds cut weights, and computes with them cut in every kind of call."""
    return record.status == RIGHT and record.fraction is not None and record.fraction <= CUT and not record.whole


def _counts(records: Sequence[Record]) -> str:
    lines = ["| ranks | run dense | right | right and cut | and for the least memory |", "|---|---|---|---|---|"]
    for tp in sorted({record.tp for record in records}):
        dense = [record for record in records if record.tp == tp and record.status != DENSE_FAILS]
        right = sum(record.status == RIGHT for record in dense)
        least = sum(is_cut(record) or (record.least is not None and record.least <= CUT) for record in dense)
        lines.append(f"| {tp} | {len(dense)} | {right} | {sum(map(is_cut, dense))} | {least} |")
    return "\n".join(lines) + "\n"


def _table(records: Sequence[Record]) -> str:
    sizes = sorted({record.tp for record in records})
    names = list(dict.fromkeys(record.kind for record in records))
    found = {(record.kind, record.tp): record for record in records}
    titles = ["family", *(f"tp {tp}" for tp in sizes), "largest error", "not cut, and why"]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for name in sorted(names):
        mine = [found[name, tp] for tp in sizes if (name, tp) in found]
        cells = [_cell(found.get((name, tp))) for tp in sizes]
        lines.append("| " + " | ".join([name, *cells, _error(mine), _reasons(mine)]) + " |")
    return "\n".join(lines) + "\n"


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    if record.status != RIGHT:
        return record.status
    if record.whole:
        return f"right, {record.fraction:.0%}, whole in {', '.join(record.whole)}"
    least = "" if record.least is None else f" ({record.least:.0%})"
    return f"{record.fraction:.0%}" if is_cut(record) else f"right, {record.fraction:.0%}{least}"


def _error(records: Sequence[Record]) -> str:
    errors = [error for r in records for error in (r.outputs, r.gradients) if error is not None]
    return f"{max(errors):.0e}" if errors else ""


def _reasons(records: Sequence[Record]) -> str:
    """Why a family does not run, and what each rank holds whole though it is more than a hundredth of the model."""
    failed = next((r for r in records if r.status != RIGHT), None)
    if failed is not None:
        return _escaped(failed.reason)
    last = records[-1]
    large = [f"`{name}`: {reason}" for size, name, reason in last.left if size > last.elements / 100]
    return _escaped("; ".join([*dict.fromkeys(last.whole.values()), *large]))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
