"""Comparing a model's parallel form with the dense one, on ranks simulated in one process."""

from typing import TYPE_CHECKING, Any

from ..outside.lazy import found
from ..session.arguments import check_simulated
from .entry import verify

if TYPE_CHECKING:
    from .float64 import Float64
    from .report import CallReport, Difference, Report
    from .runs import run
    from .verifier import Verifier, planned_collectives

__all__ = [
    "CallReport",
    "Difference",
    "Float64",
    "Report",
    "Verifier",
    "check_simulated",
    "planned_collectives",
    "run",
    "verify",
]

HOMES = {
    "CallReport": ".report",
    "Difference": ".report",
    "Float64": ".float64",
    "Report": ".report",
    "Verifier": ".verifier",
    "planned_collectives": ".verifier",
    "run": ".runs",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return found(globals(), HOMES, name)
