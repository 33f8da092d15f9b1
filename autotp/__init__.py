"""autotp: tensor parallelism for unmodified PyTorch models, inferred, proved and shown.

A name is imported when it is first asked for, because torch takes seconds: `import autotp` alone imports neither.
"""

from typing import TYPE_CHECKING, Any

from .errors import (
    AutotpError,
    CheckpointError,
    PlacementError,
    PlanError,
    RankError,
    RankLostError,
    RuleError,
    TraceError,
    UnsoundPlanError,
    UsageError,
    VerificationError,
)
from .outside.lazy import found
from .verify import verify

if TYPE_CHECKING:
    from .api import diff, parallelize, plan
    from .checkpoint.full import full_gradients, full_state_dict
    from .checkpoint.load import Loaded, loading
    from .checkpoint.training import TrainingState
    from .huggingface.saving import save_pretrained
    from .huggingface.trainer import ParallelTrainer as ParallelTrainer  # not in __all__: it needs accelerate
    from .planner.arguments import Arguments
    from .planner.plan import Plan
    from .report.diff import GraphDiff
    from .session.initial import initialize
    from .session.shards import merge, shard
    from .session.study import Study
    from .session.weights import from_pretrained
    from .verify import Report

__version__ = "0.1.0"

__all__ = [
    "Arguments",
    "AutotpError",
    "CheckpointError",
    "GraphDiff",
    "Loaded",
    "PlacementError",
    "Plan",
    "PlanError",
    "RankError",
    "RankLostError",
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

# The module of each name that is imported late; as the imports for type checkers above say.
HOMES = {
    "Arguments": ".planner.arguments",
    "GraphDiff": ".report.diff",
    "Loaded": ".checkpoint.load",
    "ParallelTrainer": ".huggingface.trainer",
    "Plan": ".planner.plan",
    "Report": ".verify",
    "Study": ".session.study",
    "TrainingState": ".checkpoint.training",
    "diff": ".api",
    "from_pretrained": ".session.weights",
    "full_gradients": ".checkpoint.full",
    "full_state_dict": ".checkpoint.full",
    "initialize": ".session.initial",
    "loading": ".checkpoint.load",
    "merge": ".session.shards",
    "parallelize": ".api",
    "plan": ".api",
    "save_pretrained": ".huggingface.saving",
    "shard": ".session.shards",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return found(globals(), HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
