"""Every causal family of transformers at its default size: our plan of the least time beside other plans, under one cost model.

    python benchmarks/against.py                     # all families, and the tables in docs/against.md; four hours on two cores
    python benchmarks/against.py llama phi3          # some, printed

Ours is `--objective time` for each work by itself, with no bound of memory. Beside it stand transformers' own `tp_plan`;
Megatron-LM's recipe (attention, feed-forwards, experts, state spaces, embedding and head, all that can be cut, with our placement
of the sums); and the plan that `autotp plan` makes unless asked otherwise. Nothing is run, and no weights are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotp.planner.plan import Plan

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SIZES = (2, 4, 8)
PAGE = Path(__file__).parents[1] / "docs" / "against.md"
BEGIN = "<!-- what follows is written by benchmarks/against.py -->\n"
OURS, TODAY, THEIRS, MEGATRON = "ours", "default", "transformers", "Megatron"
RECIPE = frozenset("attention mlp gated_mlp fused_gated_mlp experts whole_experts state_space embedding head".split())
GIB, ENOUGH_GIB, LIMIT_S = 2**30, 2.0**20, 7200
HARDWARE = "h100-nvlink-8"


@dataclass(frozen=True)
class Work:
    """So many sequences of so many tokens at once; which phases of a step are run, or one more token of each is written."""

    name: str
    words: str
    batch: int
    sequence: int


WORKS = (
    Work("prefill", "a prefill of 4,096 tokens", 1, 4096),
    Work("decode", "a decoding step of 8 sequences, of 4,096 tokens each", 8, 4096),
    Work("training", "a training step of 8,192 tokens", 1, 8192),
)


@dataclass(frozen=True)
class Priced:
    """What a plan takes for some work: seconds, collectives, bytes that a rank sends, and GiB of weights that it holds."""

    seconds: float
    collectives: int
    sent: float
    gib: float


def families() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def compare(name: str) -> Iterator[dict[str, Any]]:
    """For each size and work what each plan takes."""
    from transformers import AutoConfig

    from autotp.errors import AutotpError
    from autotp.huggingface import tp_plan
    from autotp.planner.cost import Workload
    from autotp.planner.make import make_plan
    from autotp.planner.objective import objective_of
    from autotp.session.study import Study

    config = AutoConfig.for_model(name)
    default = Study(config, hardware=HARDWARE)
    # Work that writes tokens is planned from calls that keep a cache, and other work from such as keep none.
    writing, study = (
        Study(config, hardware=HARDWARE, objective="time", workload=work) for work in ("decode", "training")
    )
    found, recipe = default.found, _only(default.found, RECIPE)
    styles = tp_plan.own_styles(study.module)
    for tp in SIZES:
        plans: dict[tuple[str, int], Plan] = {}
        for work in WORKS:
            workload, tokens = Workload(work.sequence), work.sequence
            given = tp, study.machine, workload
            objective = objective_of("time", work.name, ENOUGH_GIB, study.machine, workload)
            if (TODAY, tokens) not in plans:
                plans[TODAY, tokens] = today = make_plan(study.module, found, *given)
                plans[MEGATRON, tokens] = make_plan(study.module, recipe, *given)
                if styles and _heads_divide(study.module.config, tp):
                    with suppress(AutotpError):  # for a style whose collectives are not known
                        plans[THEIRS, tokens] = tp_plan.plan_of_styles(study.module, today, styles, study.machine)
            own = {name: plan for (name, each), plan in plans.items() if each == tokens}
            own[OURS] = make_plan(
                study.module, (writing if work.name == "decode" else study).found, *given, objective=objective
            )
            record = {name: asdict(_priced(study, plan, work)) for name, plan in own.items()}
            yield {"family": name, "tp": tp, "work": work.name, **record}


def _heads_divide(config: Any, tp: int) -> bool:
    """Returns if transformers' styles leave whole heads on each of so many ranks; else its model fails in a view."""
    text = config.get_text_config()
    layers = text.per_layer_config if getattr(text, "is_heterogeneous", False) else (text,)
    heads = (getattr(layer, name, None) for layer in layers for name in ("num_attention_heads", "num_key_value_heads"))
    return all(number % tp == 0 for number in heads if isinstance(number, int))


def _only(found: Any, rules: Iterable[str]) -> Any:
    """A survey with the proposals of some chain rules alone."""
    problems = {
        shape: replace(problem, proposals=tuple(p for p in problem.proposals if p.rule.name in rules))
        for shape, problem in found.problems.items()
    }
    return replace(found, problems=problems)


def _priced(study: Any, plan: Any, work: Work) -> Priced:
    from autotp.planner.cost import wire_bytes
    from autotp.planner.formula import evaluate, sizes

    if work.name != "training":
        plan = study.without_backward(plan)
    estimated = study.estimate_of(plan, work.batch, work.sequence)
    time = {"prefill": estimated.forward, "decode": estimated.token, "training": estimated.step}[work.name]
    values = sizes(work.batch, 1, work.sequence) if work.name == "decode" else sizes(work.batch, work.sequence)
    sent = [each for each in plan.step() if work.name == "training" or each.phase == "forward"]
    size = (wire_bytes(c.kind, evaluate(c.elements, values) * plan.element_bytes, c.ranks) for c in sent)
    return Priced(time.total, len(sent), sum(size), plan.elements()[1] * plan.element_bytes / GIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--one", help="compare this family in this process and print JSON")
    parser.add_argument("--keep", type=Path, help="a file of results, which are added to it and not made again")
    options = parser.parse_args()
    if options.one:
        _silence()
        for record in compare(options.one):
            print(json.dumps(record), flush=True)
        return
    names = options.families or families()
    records, failed = compare_all(names, options.keep)
    text = table(records, failed)
    if options.families:
        print(text)
        return
    PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(BEGIN)[0] + BEGIN + text, encoding="utf-8")


def _silence() -> None:
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()


def compare_all(names: Sequence[str], keep: Path | None) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The records of all families, each made in a process of its own, and why some have none."""
    lines = keep.read_text().splitlines() if keep is not None and keep.exists() else []
    known = {line["family"]: line for line in map(json.loads, lines)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = [pool.submit(_fresh, name) for name in names if name not in known]
        for result in (each.result() for each in as_completed(made)):
            known[result["family"]] = result
            print(result["family"], result["error"] or f"{len(result['records'])} records", file=sys.stderr, flush=True)
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    records = [record for name in names for record in known[name]["records"]]
    return records, {name: known[name]["error"] for name in names if known[name]["error"]}


def _fresh(name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    except subprocess.TimeoutExpired:
        return {"family": name, "records": [], "error": f"it takes more than {LIMIT_S} s"}
    error = "" if not done.returncode else done.stderr.strip().splitlines()[-1]
    return {"family": name, "records": [*map(json.loads, done.stdout.splitlines())], "error": error}


def table(records: Sequence[Mapping[str, Any]], failed: Mapping[str, str]) -> str:
    """What all take, as Markdown: one table for each work."""
    lines = [
        f"All numbers are estimates for {HARDWARE}; times of others are divided by ours, and collectives are the whole model's."
    ]
    for work in WORKS:
        own = [record for record in records if record["work"] == work.name]
        lines += ["", f"### {work.words[0].upper()}{work.words[1:]}", "", *_summary(own), ""]
        lines += [
            "| family | tp | ours, ms | transformers | Megatron | default | collectives: ours | transformers | default |"
            " MiB sent: ours | transformers | default | GiB of weights: ours | default |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(_cells(record))} |" for record in own]
    if failed:
        lines += ["", "Not compared:", "", *(f"- {name}: {reason}" for name, reason in failed.items())]
    return "\n".join(lines) + "\n"


def _summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for other in (THEIRS, MEGATRON, TODAY):
        ratios = [_ratio(record, other) for record in records if other in record]
        slower = sum(ratio < 1 - 1e-9 for ratio in ratios)
        if ratios:
            words = "none is faster than ours" if not slower else f"{slower} are faster than ours"
            found.append(
                f"- {other}: {len(ratios)} plans, {words}; {min(ratios):.2f} to {max(ratios):.2f} of our time."
            )
    return found


def _ratio(record: Mapping[str, Any], other: str) -> float:
    ours: float = record[OURS]["seconds"]
    return float(record[other]["seconds"]) / ours if ours else 1.0


def _cells(record: Mapping[str, Any]) -> Iterator[str]:
    ours = record[OURS]
    yield from (record["family"], str(record["tp"]), f"{1e3 * ours['seconds']:.3f}")
    yield from (f"{_ratio(record, other):.2f}" if other in record else "" for other in (THEIRS, MEGATRON, TODAY))
    for key, shown in (("collectives", "{:,}"), ("sent", "{:,.1f}")):
        for other in (OURS, THEIRS, TODAY):
            value = record[other][key] if other in record else None
            yield "" if value is None else shown.format(value / 2**20 if key == "sent" else value)
    yield from (f"{record[each]['gib']:.2f}" for each in (OURS, TODAY))


if __name__ == "__main__":
    main()
