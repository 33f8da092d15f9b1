"""Plans and verification reports as text: pure functions from data to rich renderables."""

from .console import make_console
from .summary import plan_summary
from .text import byte_size, fold, number, paragraphs
from .units import plan_units
from .verification import verification
from .whole import plan_left_whole

__all__ = [
    "byte_size",
    "fold",
    "make_console",
    "number",
    "paragraphs",
    "plan_left_whole",
    "plan_summary",
    "plan_units",
    "verification",
]
