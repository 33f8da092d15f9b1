"""autotp: tensor parallelism for unmodified PyTorch models, inferred, proved and shown."""

from .api import diff, parallelize, plan
from .checkpoint.full import full_gradients, full_state_dict
from .checkpoint.load import Loaded, loading
from .checkpoint.training import TrainingState
from .errors import (
    AutotpError,
    CheckpointError,
    PlacementError,
    PlanError,
    RuleError,
    TraceError,
    UnsoundPlanError,
    UsageError,
    VerificationError,
)
from .initial import initialize
from .planner.plan import Plan
from .report.diff import GraphDiff
from .shards import merge, shard
from .verify import Report, verify
from .weights import from_pretrained, save_pretrained

__version__ = "0.1.0"

__all__ = [
    "AutotpError",
    "CheckpointError",
    "GraphDiff",
    "Loaded",
    "PlacementError",
    "Plan",
    "PlanError",
    "Report",
    "RuleError",
    "TraceError",
    "TrainingState",
    "UnsoundPlanError",
    "UsageError",
    "VerificationError",
    "diff",
    "from_pretrained",
    "full_gradients",
    "full_state_dict",
    "initialize",
    "loading",
    "merge",
    "parallelize",
    "plan",
    "save_pretrained",
    "shard",
    "verify",
]
