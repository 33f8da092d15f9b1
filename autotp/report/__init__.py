"""Plans and verification reports as text: pure functions from data to rich renderables."""

from ..outside.console import make_console
from .compare import plan_sizes
from .estimate import plan_estimate
from .summary import plan_summary
from .text import byte_size, fold, number, paragraphs
from .tree import plan_tree
from .units import plan_units
from .verification import verification
from .whole import plan_left_whole
from .why import why_data, why_text

__all__ = [
    "byte_size",
    "fold",
    "make_console",
    "number",
    "paragraphs",
    "plan_estimate",
    "plan_left_whole",
    "plan_sizes",
    "plan_summary",
    "plan_tree",
    "plan_units",
    "verification",
    "why_data",
    "why_text",
]
