"""autotp: tensor parallelism for unmodified PyTorch models, inferred, proved and shown."""

from .api import diff, parallelize, plan
from .checkpoint.full import full_gradients, full_state_dict
from .errors import (
    AutotpError,
    PlacementError,
    PlanError,
    RuleError,
    TraceError,
    UnsoundPlanError,
    UsageError,
    VerificationError,
)
from .planner.plan import Plan
from .report.diff import GraphDiff
from .verify import Report, verify

__version__ = "0.1.0"

__all__ = [
    "AutotpError",
    "GraphDiff",
    "PlacementError",
    "Plan",
    "PlanError",
    "Report",
    "RuleError",
    "TraceError",
    "UnsoundPlanError",
    "UsageError",
    "VerificationError",
    "diff",
    "full_gradients",
    "full_state_dict",
    "parallelize",
    "plan",
    "verify",
]
