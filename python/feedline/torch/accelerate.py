"""feedline's loader inside what accelerate makes of a loader."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch.utils.data

Prepared = TypeVar("Prepared")


def adopt(prepared: Prepared, loader: torch.utils.data.DataLoader[Any]) -> Prepared:
    """Puts a loader of `loader`'s class back into what `Accelerator.prepare` made of it.

    accelerate reads the attributes of the loader that it is given and makes one of torch's own class,
    with samplers that share the samples out among the processes. `adopt` makes it once more, with that
    share, with `loader`'s class and with the arguments that torch's does not have. accelerate's
    `save_state` and `load_state` then keep the loader's state too, without torchdata.

        loader = DataLoader(...)
        model, optimiser, prepared = accelerator.prepare(model, optimiser, loader)
        loader = adopt(prepared, loader)
    """
    made: Any = prepared
    base = getattr(made, "base_dataloader", None)
    if not isinstance(base, torch.utils.data.DataLoader):
        raise TypeError(f"adopt: {type(prepared).__name__} is not what accelerate makes of a loader")
    arguments = {}
    for name, parameter in inspect.signature(type(loader)).parameters.items():
        # What torch's class has too, accelerate may have changed; the rest is only with ours.
        holder = base if hasattr(base, name) else loader
        value = getattr(holder, name, parameter.default)
        if value is not parameter.default:
            arguments[name] = value
    if getattr(loader, "_adjusts", False):
        # torch knows only the number that it began with.
        arguments["num_workers"] = "auto"
    # torch's own rules: what one of these says, the others must not.
    if isinstance(base.dataset, torch.utils.data.IterableDataset):
        said_already: tuple[str, ...] = ("sampler", "batch_sampler")
    elif base.batch_sampler is None:
        said_already = ("batch_sampler", "drop_last")
    else:
        said_already = ("batch_size", "sampler", "drop_last")
    for name in said_already:
        arguments.pop(name, None)
    adopted = type(loader)(**arguments)
    made.base_dataloader = adopted
    if hasattr(adopted, "state_dict"):
        # accelerate asks for the state after every batch when this is set, and saves it.
        made.use_stateful_dataloader = True
        made.dl_state_dict = adopted.state_dict()
    return prepared
