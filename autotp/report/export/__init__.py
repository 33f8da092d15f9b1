"""Plans for other systems: transformers' `tp_plan`, plans of torch.distributed.tensor.parallel, DeepSpeed's `partition_config`.

Each system can say less than a plan does. What it cannot say is refused with the reason, never approximated.
"""

from .layers import Layer, layers_of
from .systems import SYSTEMS, export

__all__ = ["SYSTEMS", "Layer", "export", "layers_of"]
