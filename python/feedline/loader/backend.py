"""What a `Loader` has inside: the engine, or the program's own code in the engine's order."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from feedline import _native
from feedline._errors import refuse
from feedline.code.stages import has_code
from feedline.deliver.batch import Batch, fields_converter
from feedline.deliver.device import DeviceSettings, device_settings
from feedline.observe.tuning import frozen_file
from feedline.spec.plain import plain, state_text, with_paths
from feedline.spec.source import is_code, read_source
from feedline.transforms import specs


class Delivery(NamedTuple):
    """How batches are handed over: arguments that are no part of the description."""

    output: str
    device: object
    device_prefetch: int
    pin_memory: bool | None


class Backend(Protocol):
    """Makes batches, knows where the run stands, and counts."""

    begun: bool
    """Whether a source that can be read once has been begun."""
    device: str | None

    @property
    def about(self) -> dict[str, Any]:
        """Fields, sizes, classes, workers, as they were when it was opened."""

    @property
    def spec(self) -> dict[str, Any]:
        """The description: plain data, but for the program's own objects."""

    @property
    def closed(self) -> bool: ...

    @property
    def workers(self) -> int:
        """Workers that make batches now."""

    def begin(self) -> int:
        """Begins the next epoch and returns its iterator's number."""

    def next(self, iterator: int) -> tuple[Any, bool, int] | None:
        """The next batch as the program sees it, whether it is known to be its epoch's last, and how many
        of its last rows only fill it up; None if there is none left."""

    def ended(self, iterator: int) -> None:
        """The program asks for more after its epoch's last batch, and so is done with it."""

    def position(self) -> tuple[int, int]:
        """The epoch and the number of the next batch."""

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken."""

    def stats(self) -> dict[str, Any]:
        """What happened so far."""

    def report(self) -> dict[str, Any]:
        """How the epoch went so far, and why the program waited."""

    def decisions(self, seen: int) -> tuple[int, str]:
        """How many decisions of `num_workers="auto"` there were, and as JSON those after the first `seen`."""

    def freeze(self, path: str | os.PathLike[str]) -> None:
        """Writes the settings that it has now."""

    def record(self, most: int) -> None:
        """From now on, keeps the last `most` spans of each worker."""

    def timeline(self) -> str:
        """What was done when since `record`, as JSON."""

    def evidence(self) -> dict[str, Any] | None:
        """What it knows of the cost of a sample's stages, if it makes the samples itself."""

    def close(self) -> None:
        """Ends the workers."""


def open_backend(spec: dict[str, Any], delivery: Delivery) -> Backend:
    """Opens what makes the batches of this description."""
    code = {name: spec.pop(name, None) for name in ("executor", "collate_fn", "worker_init_fn")}
    code["executor"] = code["executor"] or "auto"
    requested = code["executor"] != "auto" or code["collate_fn"] or code["worker_init_fn"]
    if requested or is_code(spec.get("source")) or has_code(spec.get("transforms")):
        from feedline.code.backend import CodeBackend

        given = (("device", delivery.device is not None), ("pin_memory", bool(delivery.pin_memory)))
        for key, is_given in given:
            if is_given:
                raise refuse(key, "batches that Python code makes stay in the host's plain memory")
        return CodeBackend(spec, delivery.output, **code)
    settings = device_settings(
        delivery.device, delivery.device_prefetch, delivery.pin_memory, delivery.output
    )
    return NativeBackend(spec, delivery.output, settings)


class NativeBackend:
    """The engine's own loader."""

    # The engine reads its sources anew in each epoch.
    begun = False

    def __init__(self, spec: dict[str, Any], output: str, device: DeviceSettings) -> None:
        arrays: list[Any] = []
        if "source" in spec:
            spec["source"], arrays = read_source(spec["source"])
        if "transforms" in spec:
            spec["transforms"] = specs(spec["transforms"])
        self._paths: list[bytes] = []
        # Each key by itself, so that messages name it without a prefix.
        described = {key: plain(key, value, self._paths) for key, value in spec.items()}
        self._native = _native.Loader(
            json.dumps(described), arrays, self._paths, device.name, device.prefetch, device.pin
        )
        self.device = device.name
        self.about: dict[str, Any] = json.loads(self._native.about)
        fields = self.about["fields"]
        self._names = tuple(field["name"] for field in fields)
        try:
            self._convert = fields_converter(output, fields, device.name)
        except BaseException:
            self._native.close()
            raise

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = with_paths(json.loads(self._native.spec), self._paths)
        return spec

    @property
    def closed(self) -> bool:
        return self._native.closed

    @property
    def workers(self) -> int:
        return self._native.workers

    def begin(self) -> int:
        return self._native.begin()

    def next(self, iterator: int) -> tuple[Any, bool, int] | None:
        made = self._native.next(iterator)
        if made is None:
            return None
        batch, last = made
        return Batch(batch, self._names, self._convert), last, batch.padding

    def ended(self, iterator: int) -> None:
        self._native.ended(iterator)

    def position(self) -> tuple[int, int]:
        return self._native.position()

    def set_epoch(self, epoch: int) -> None:
        self._native.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._native.state())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._native.resume(state_text(state))

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = json.loads(self._native.stats())
        stats["workers"].update(number=self.workers, restarted=0)
        stats["tuning"].setdefault("reason", None)
        return {"executor": None, "device": None, "made_by_the_caller": 0, **stats}

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self._native.report())
        return report

    def decisions(self, seen: int) -> tuple[int, str]:
        return self._native.decisions(seen)

    def freeze(self, path: str | os.PathLike[str]) -> None:
        self._native.freeze(os.fspath(frozen_file(path)))

    def record(self, most: int) -> None:
        self._native.record_timeline(most)

    def timeline(self) -> str:
        return self._native.timeline()

    def evidence(self) -> dict[str, Any] | None:
        evidence: dict[str, Any] = json.loads(self._native.evidence())
        return evidence

    def close(self) -> None:
        self._native.close()
