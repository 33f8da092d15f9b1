"""One family measured: what is cut, and whether outputs, gradients and greedy tokens are the dense model's."""

from __future__ import annotations

import math
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch

from autotp.capture.grouped import GroupedProducts
from autotp.dispatch.apply import apply_plan
from autotp.huggingface.models import can_generate
from autotp.planner.plan import Plan
from autotp.planner.survey import survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Difference, Float64, Verifier
from autotp.verify.calls import Call
from autotp.verify.copies import OnlyCopies, copied
from autotp.verify.runs import called

from .kinds import Kind
from .moved import moved
from .prepare import prepared
from .unchanged import unchanged

NEW_TOKENS = 6
WRITING = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "use_cache": True}

CUT = 0.75  # of the parameters a rank may hold, embeddings included, for a family to count as cut
SMALL = 0.001  # of the model's parameters: a vector that is gathered does not make a call a whole one

RIGHT, WRONG, DENSE_FAILS, ERROR, TIMEOUT = "right", "wrong", "dense fails", "error", "timeout"


@dataclass
class Record:
    """One family at one size. `left` are parts that are not cut: elements, an example, and the reason. `whole` are the kinds of
    call that gather whole weights, so that what is cut is not computed with cut, and why. `least` is the fraction of a plan for
    the least memory, which is measured in the same way where the other is more than three quarters.

    `tokens` is "equal" or "different", or why none were compared; `seconds` are those of the processor.
    """

    kind: str
    head: str
    tp: int
    status: str
    fraction: float | None = None
    least: float | None = None
    outputs: float | None = None
    gradients: float | None = None
    tokens: str = ""
    counts_agree: bool = True
    elements: int = 0
    left: list[tuple[int, str, str]] = field(default_factory=list)
    whole: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0

    def data(self) -> dict[str, Any]:
        """The record as plain data."""
        return asdict(self)


def measure(kind: Kind, sizes: Sequence[int]) -> Iterator[Record]:
    """Measure a family at several sizes; never raises for what a model does."""
    start = time.process_time()
    try:
        verifier = _verifier(kind)
        written = _written(verifier)
    except DenseFailure as error:
        yield from (Record(kind.name, kind.head, tp, DENSE_FAILS, reason=str(error)) for tp in sizes)
        return
    except Exception as error:
        yield from (Record(kind.name, kind.head, tp, ERROR, reason=_where(error)) for tp in sizes)
        return
    for tp in sizes:
        record = _record(kind, verifier, written, tp)
        if record.status == RIGHT and record.fraction is not None and record.fraction > CUT:
            again = _record(kind, _verifier(kind, objective="memory"), written, tp)
            record = again if again.status != RIGHT or again.whole else replace(record, least=again.fraction)
        record.seconds = round(time.process_time() - start, 2)
        yield record
        start = time.process_time()


class DenseFailure(Exception):
    """The dense model cannot be built, or cannot run."""


def _verifier(kind: Kind, **wishes: Any) -> Verifier:
    try:
        model, examples = prepared(kind)
    except Exception as error:
        raise DenseFailure(_where(error)) from error

    def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
        with unchanged(model):
            return survey(model, *args, **kwargs)

    with (
        patch("autotp.session.pipeline.survey", watched),
        patch("autotp.verify.verifier.examples_for", lambda *_: examples),
    ):
        verifier = Verifier(model, **wishes)
        assert verifier.session.is_surveyed
        return verifier


def _prompt(model: Any) -> torch.Tensor:
    vocabulary = min(getattr(model.config.get_text_config(), "vocab_size", 0) or 100, 200)
    return torch.randint(3, vocabulary, (2, 11), generator=torch.Generator().manual_seed(1))


def _write(model: Any) -> torch.Tensor:
    ids = _prompt(model)
    with GroupedProducts(), Float64(), torch.no_grad():
        return model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, eos_token_id=None, **WRITING)


def _written(verifier: Verifier) -> torch.Tensor | str:
    """The dense model's greedy tokens, or why there are none."""
    if not can_generate(verifier.dense) or verifier.dense.main_input_name != "input_ids":
        return "it does not write"
    try:
        return _write(copied(verifier.dense))
    except Exception as error:
        return f"the dense model does not write: {_where(error)}"


def _record(kind: Kind, verifier: Verifier, written: torch.Tensor | str, tp: int) -> Record:
    record = Record(kind.name, kind.head, tp, ERROR)
    try:
        plan = verifier.plan(tp)
        whole, local = plan.elements()
        record.elements, record.fraction = whole, round(local / whole, 4)
        record.left = _left(plan)
        report = verifier.verify(tp, plan)
        record.outputs, record.gradients = _worst(report.outputs), _worst(report.gradients)
        record.counts_agree = report.counts_agree
        record.tokens = _compare_tokens(verifier, plan, written)
        record.whole = whole_calls(verifier, plan, generation=not isinstance(written, str))
        found = (*report.outputs, *report.gradients)
        apart = moved(verifier) if any(not d.error <= report.tolerance for d in found) else {}
        wrong = [d.name for d in found if not d.error <= max(report.tolerance, apart.get(d.name, 0.0))]
        record.status = WRONG if wrong or record.tokens == "different" else RIGHT
        record.reason = ", ".join(wrong[:4])
    except Exception as error:
        record.reason = _where(error)
    return record


def _worst(differences: Sequence[Difference]) -> float:
    return max((difference.error for difference in differences), default=0.0)


def _compare_tokens(verifier: Verifier, plan: Plan, written: torch.Tensor | str) -> str:
    if isinstance(written, str):
        return written
    compilers = verifier.compilers(plan)

    def rank_run(ranks: Ranks) -> torch.Tensor:
        parallel = apply_plan(copied(verifier.dense), plan, ranks, compilers)
        with OnlyCopies(*verifier.only_copies.models):  # as it is verified, by the same programs
            return _write(parallel)

    return "equal" if all(torch.equal(written, tokens) for tokens in simulate(plan.tp, rank_run)) else "different"


def whole_calls(verifier: Verifier, plan: Plan, *, generation: bool) -> dict[str, str]:
    """The kinds of call in which some rank gathers a weight that counts, and the first reason that was given for it."""
    least = plan.elements()[0] * SMALL
    compilers = verifier.compilers(plan)
    args, kwargs = verifier.call
    calls: dict[str, Callable[[Any], Any]] = {"forward": _calling(verifier, args, kwargs)}
    if any(run.call.training for run in verifier.runs):
        calls["training"] = _calling(verifier, args, kwargs, training=True)
    if generation:  # last, since what has kept whole values in a cache goes on with them
        calls["forward"] = _calling(verifier, args, {**kwargs, "use_cache": False})
        calls["forward with a cache"] = _with_cache(verifier, args, {**kwargs, "use_cache": True})
        calls["generation"] = _write
    found: dict[str, str] = {}
    for name, call in calls.items():

        def rank_run(ranks: Ranks, call: Callable[[Any], Any] = call) -> bool:
            parallel = apply_plan(copied(verifier.dense), plan, ranks, compilers)
            with ranks.logging() as log, OnlyCopies(*verifier.only_copies.models):
                call(parallel)
            return any(sent.phase == "whole" and sent.elements * sent.ranks > least for sent in log.calls)

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if any(simulate(plan.tp, rank_run)):
                reasons = [str(warning.message) for warning in said if "whole weights" in str(warning.message)]
                found[name] = next(iter(reasons), "cut parameters are read outside of blocks")
    return found


def _calling(verifier: Verifier, args: Any, kwargs: Any, *, training: bool = False) -> Callable[[Any], Any]:
    return lambda model: called(model, Call("", (args, kwargs), training), verifier.seed, verifier.paths)


def _with_cache(verifier: Verifier, args: Any, kwargs: Any) -> Callable[[Any], Any]:
    """A call that fills a cache: forward alone where the dense model writes over what its own backward would read."""
    both = _calling(verifier, args, kwargs)
    try:
        both(copied(verifier.dense))
    except RuntimeError:
        return lambda model: _forward(model, args, kwargs)
    return both


@torch.no_grad()
def _forward(model: Any, args: Any, kwargs: Any) -> None:
    with GroupedProducts(), Float64():
        model(*args, **kwargs)


def _left(plan: Plan) -> list[tuple[int, str, str]]:
    """Matrices that every rank holds whole, by reason: elements, the largest of them, the reason; the most first."""
    parts = [
        (p.elements * len(unit.instances), f"{unit.instances[0]}.{p.name}".lstrip("."), p.reason)
        for unit in plan.units
        for p in unit.parameters
        if p.placement == "replicated" and len(p.shape) > 1
    ]
    parts += [(math.prod(p.shape), p.name, p.reason) for p in plan.outside if len(p.shape) > 1]
    elements: Counter[str] = Counter()
    for size, _, reason in parts:
        elements[reason] += size
    largest = {reason: name for size, name, reason in sorted(parts)}
    return [(size, largest[reason], reason) for reason, size in elements.most_common()]


def _where(error: BaseException) -> str:
    """An error in one line, with the innermost place it comes from."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error).strip().split("\n")[0][:300]
    return f"{type(error).__name__}: {text} ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})"
