"""torch's DataLoader with feedline's workers: change the import, keep the rest.

from feedline.torch import DataLoader
"""

from feedline.torch.accelerate import adopt, use_in_accelerate
from feedline.torch.loader import DataLoader
from feedline.workers.torch_side import get_worker_info

__all__ = ["DataLoader", "adopt", "get_worker_info", "use_in_accelerate"]

# Tracebacks, pickles and documentation show the name that programs use.
DataLoader.__module__ = "feedline.torch"
