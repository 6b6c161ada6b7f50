"""feedline's loader inside what accelerate makes of a loader, and Hugging Face's Trainer with it."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import warnings
import weakref
from typing import Any, TypeVar

import torch.utils.data

Prepared = TypeVar("Prepared")

_in_use = False
# Loaders that `prepare` was given while it makes torch's, until they are adopted.
_given: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def use_in_accelerate(**settings: Any) -> None:
    """Lets accelerate, and so Hugging Face's Trainer, make feedline's loaders from now on.

        feedline.torch.use_in_accelerate()

    `Accelerator.prepare` and `skip_first_batches` make a new loader of the one that they are given; after
    this line it is a `feedline.torch.DataLoader`, also where they are given torch's, and `save_state` and
    `load_state` keep its state, without torchdata. `settings` are for loaders that do not have them:
    `executor`, `random`, `snapshot_every_n_steps`. The line replaces the class that accelerate's module
    `data_loader` has imported, for the whole program.
    """
    from feedline.torch.loader import DataLoader

    global _in_use
    theirs: Any = importlib.import_module("accelerate.data_loader")
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(DataLoader).parameters.items()
        if name in ("executor", "random", "snapshot_every_n_steps")
    }
    for name in settings:
        if name not in known:
            raise TypeError(f"use_in_accelerate: {name!r} is not one of {', '.join(known)}")
    # What accelerate takes over from the loader that it is given, with what it is otherwise.
    theirs._PYTORCH_DATALOADER_KWARGS.update(known | settings)
    _keep_states(theirs)
    if not _in_use:
        _make_ours(theirs, DataLoader)
    _in_use = True


def adopt(prepared: Prepared, loader: torch.utils.data.DataLoader[Any] | None = None) -> Prepared:
    """Puts a loader of `loader`'s class (or feedline's) back into what `Accelerator.prepare` made of it.

    accelerate reads the attributes of the loader that it is given and makes one of torch's own class,
    with samplers that share the samples out among the processes. `adopt` makes it once more, with that
    share, with `loader`'s class and with the arguments that torch's does not have. accelerate's
    `save_state` and `load_state` then keep the loader's state too, without torchdata. `use_in_accelerate`
    does it for all loaders of a program; this is for one, and for subclasses.

        loader = DataLoader(...)
        model, optimiser, prepared = accelerator.prepare(model, optimiser, loader)
        loader = adopt(prepared, loader)

    What `skip_first_batches` makes is adopted in the same way, and so is any loader of torch's class that
    some library has made: `loader = adopt(loader)`.
    """
    made: Any = prepared
    base = getattr(made, "base_dataloader", made)
    if not isinstance(base, torch.utils.data.DataLoader):
        raise TypeError(f"adopt: {type(prepared).__name__} is not what accelerate makes of a loader")
    if loader is None:
        if type(base) is not torch.utils.data.DataLoader:
            kind = type(base).__qualname__
            raise TypeError(
                f"adopt: {kind} is a class of its own: write class Ours({kind}, feedline.torch.DataLoader)"
            )
        loader = _empty()
    # What was adopted before may say what the next one is to be.
    loader = getattr(loader, "base_dataloader", loader)
    note = _given.pop(loader, None)
    if note is not None:
        note.detach()
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
    elif base.batch_size is not None:
        # torch has made the batch sampler itself.
        said_already = ("batch_sampler",)
    else:
        said_already = ("batch_size", "sampler", "drop_last")
    for name in said_already:
        arguments.pop(name, None)
    adopted = type(loader)(**arguments)
    if made is base:
        # accelerate skips batches of a loader that it has not prepared by a plain one.
        return adopted  # type: ignore[return-value]
    made.base_dataloader = adopted
    if hasattr(adopted, "state_dict"):
        _keep_states(importlib.import_module("accelerate.data_loader"))
        if hasattr(adopted, "_draws"):
            adopted._draws.pins = False
        # accelerate asks for the state after every batch when this is set, and saves it.
        made.use_stateful_dataloader = True
        made.dl_state_dict = adopted.state_dict()
    return prepared


@functools.cache
def _empty() -> torch.utils.data.DataLoader[Any]:
    """A loader that says nothing but what class it is."""
    from feedline.torch.loader import DataLoader

    return DataLoader([])


class AskedByPrepare:
    """The attribute that accelerate's `prepare` asks a loader for before it makes another one of it.

    `adopt` comes after that, so a warning waits until the loader goes without having been adopted.
    """

    def __get__(self, loader: Any, owner: Any = None) -> bool:
        if loader is not None and not _in_use and loader not in _given:
            _given[loader] = weakref.finalize(loader, _warn)
        return False


@functools.cache
def _warn() -> None:
    warnings.warn(
        "accelerate's prepare was given a feedline.torch.DataLoader and made one of torch's class of it, "
        "which has none of feedline's workers and states: call feedline.torch.use_in_accelerate() before "
        "prepare, or loader = feedline.torch.adopt(prepared, loader) after it",
        stacklevel=2,
    )


def _make_ours(theirs: Any, ours: type[Any]) -> None:
    """Lets accelerate's adapters hold ours."""

    def make(*arguments: Any, **settings: Any) -> Any:
        loader = ours(*arguments, **settings)
        loader._draws.pins = False
        return loader

    theirs.DataLoader = make
    made = theirs.DataLoaderAdapter.__init__

    @functools.wraps(made)
    def init(
        self: Any,
        dataset: Any,
        use_stateful_dataloader: bool = False,
        batch_sampler: Any = None,
        **settings: Any,
    ) -> None:
        # With True it would be torchdata's, which ours stands for.
        made(self, dataset, False, batch_sampler, **settings)
        self.use_stateful_dataloader = True

    theirs.DataLoaderAdapter.__init__ = init


def _keep_states(theirs: Any) -> None:
    """Lets accelerate's dispatcher hold a state of ours that says how far the program has come.

    It fetches a batch for each process ahead of the program, and corrects the state that torchdata's
    loader has then by what it knows of that. A data set's own state cannot be corrected so: the state from
    before that is what holds. All processes write it to the same file, and only the first one reads data,
    so they all get its state.
    """
    from feedline.torch.loader import DataLoader as ours

    dispatcher = theirs.DataLoaderDispatcher
    if hasattr(dispatcher, "_feedline_end"):
        return
    _let_skipping_win(theirs, ours)
    fetch, update = dispatcher._fetch_batches, dispatcher._update_state_dict
    dispatcher._feedline_end = None

    @functools.wraps(fetch)
    def fetch_batches(self: Any, iterator: Any) -> Any:
        if not isinstance(self.base_dataloader, ours):
            return fetch(self, iterator)
        states = [self.base_dataloader.state_dict(), None]
        fetched = fetch(self, iterator)
        if self._stop_iteration:
            states[1] = self.base_dataloader.state_dict()
        theirs.broadcast_object_list(states)
        self.dl_state_dict, self._feedline_end = states
        self.dl_state_dict["_iterator_finished"] = False
        return fetched

    @functools.wraps(update)
    def update_state_dict(self: Any) -> None:
        if not isinstance(self.base_dataloader, ours):
            update(self)
        elif self.end_of_dataloader and self._feedline_end is not None:
            self.dl_state_dict = {**self._feedline_end, "_iterator_finished": True}

    dispatcher._fetch_batches, dispatcher._update_state_dict = fetch_batches, update_state_dict


def _let_skipping_win(theirs: Any, ours: type[Any]) -> None:
    """A program that skips batches itself after `load_state` resumes by that: the state that was loaded
    would make the loader's next full epoch the rest of this one."""
    made = theirs.skip_first_batches

    @functools.wraps(made)
    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        base = getattr(dataloader, "base_dataloader", dataloader)
        if isinstance(base, ours):
            base._resumed = None
        return made(dataloader, num_batches)

    # accelerate's other modules, the Trainer's and the program's may have imported it already.
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("skip_first_batches") is made:
            module.skip_first_batches = skip_first_batches  # type: ignore[attr-defined]
