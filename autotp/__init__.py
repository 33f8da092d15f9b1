"""autotp: tensor parallelism for unmodified PyTorch models, inferred, proved and shown."""

from typing import TYPE_CHECKING, Any

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
from .huggingface.saving import save_pretrained
from .planner.plan import Plan
from .report.diff import GraphDiff
from .session.initial import initialize
from .session.shards import merge, shard
from .session.study import Study
from .session.weights import from_pretrained
from .verify import Report, verify

if TYPE_CHECKING:
    from .huggingface.trainer import ParallelTrainer as ParallelTrainer

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
    "Study",
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


def __getattr__(name: str) -> Any:
    """`ParallelTrainer` is imported when it is asked for: it needs accelerate."""
    if name == "ParallelTrainer":
        from .huggingface.trainer import ParallelTrainer

        return ParallelTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
