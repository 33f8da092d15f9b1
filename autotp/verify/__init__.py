"""Comparing a model's parallel form with the dense one, on ranks simulated in one process."""

from .float64 import Float64
from .report import CallReport, Difference, Report
from .run import run
from .verifier import Verifier, check_simulated, planned_collectives, verify

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
