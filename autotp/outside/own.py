"""torch's own functions, by the places where it keeps them.

A model's code may put another function in the place of `torch.cat` or `F.linear`. What that does is in the traced graph already;
what runs on a rank for the graph must not do it once more.
"""

from __future__ import annotations

import torch

FUNCTIONS = torch._C._VariableFunctions
NETWORKS = torch._C._nn
