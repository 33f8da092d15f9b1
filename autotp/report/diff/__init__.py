"""The difference a plan makes to a model's graphs, and the difference between two plans."""

from .graph_diff import GraphDiff
from .make import make_diff
from .plans import PlanDiff, compare_plans, plans_text

__all__ = ["GraphDiff", "PlanDiff", "compare_plans", "make_diff", "plans_text"]
