"""What a loader of Python code is made of, opened and checked before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from feedline import _native
from feedline._errors import SourceError, SpecError, refuse
from feedline.code.core import EXECUTORS
from feedline.code.sources import ArraySource, DatasetSource, ListSource, NativeSource
from feedline.spec.plain import plain
from feedline.spec.source import read_parts

# An iterable has no length; no epoch is longer than this.
_ENDLESS = 1 << 48


def check_arguments(spec: Mapping[str, Any], executor: str, collate_fn: Any, worker_init_fn: Any) -> None:
    """What has no meaning here is refused rather than ignored."""
    if executor not in EXECUTORS:
        allowed = ", ".join(f'"{name}"' for name in EXECUTORS)
        raise SpecError(
            f"executor = {executor!r}: is not allowed; allowed: {allowed}",
            key="executor",
            value=repr(executor),
            problem="is not allowed",
            allowed=allowed,
        )
    for key, value in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
        if value is not None and not callable(value):
            raise refuse(key, f"a {type(value).__name__} cannot be called", "a function")
    if spec.get("memory") is not None:
        raise refuse("memory", "what Python code takes cannot be held to a limit; leave it out")
    if spec.get("cache") is not None:
        raise refuse("cache", "samples that Python code makes are not kept; keep them in the data set")
    if spec.get("in_order") is False:
        raise refuse("in_order", "batches that Python code makes are handed over in order", "true")


_NUMBERS = "needs a data set with __len__ and __getitem__, and this is an iterable"


def check_stream(spec: Mapping[str, Any]) -> None:
    for key in ("shuffle", "replacement", "weights", "subset", "num_samples"):
        if spec.get(key) is not None and spec[key] is not False:
            raise refuse(key, _NUMBERS)
    if spec.get("on_error") == "skip":
        raise refuse("on_error", f'"skip" {_NUMBERS}', '"raise"')


def check_last_batch(last: str, world_size: int) -> None:
    if last in ("pad", "wrap") or (last == "short" and world_size > 1):
        ranks = " on several ranks" if world_size > 1 else ""
        allowed = '"drop"' if world_size > 1 else '"short" or "drop"'
        raise refuse("last_batch", f'"{last}" {_NUMBERS}{ranks}', allowed)


def open_sources(source: Any) -> tuple[list[Any], list[float | None], list[bytes]]:
    paths: list[bytes] = []
    sources: list[Any] = []
    weights: list[float | None] = []
    for kind, value, weight in read_parts(source):
        weights.append(weight)
        if kind == "dataset":
            sources.append(DatasetSource(value))
        elif kind == "samples":
            sources.append(ListSource(value))
        elif kind == "arrays":
            sources.append(ArraySource(value))
        else:
            own: list[bytes] = []
            sources.append(NativeSource(plain("source", value, own), own))
            paths.extend(own)
        if len(sources[-1]) == 0:
            raise SourceError(f"{sources[-1].name}: has no samples")
    return sources, weights, paths


def make_order(
    spec: Mapping[str, Any],
    sources: list[Any],
    weights: list[float | None],
    paths: list[bytes],
    *,
    streams: bool,
) -> tuple[_native.Order, list[bytes]]:
    named = [
        {"kind": "arrays"} if weight is None else {"kind": "arrays", "weight": weight} for weight in weights
    ]
    described = {
        key: plain(key, value, paths)
        for key, value in spec.items()
        if key not in ("source", "transforms", "quarantine", "decode")
    }
    if spec.get("quarantine") is not None:
        described["quarantine"] = plain("quarantine", spec["quarantine"], paths)
    described["source"] = named
    if streams:
        return _native.Order(json.dumps(described), [_ENDLESS]), paths
    labels = None
    if isinstance(spec.get("weights"), str):
        labels = [one.labels() for one in sources]
    return _native.Order(json.dumps(described), [len(one) for one in sources], labels), paths


def field_names(sources: list[Any]) -> tuple[str, ...] | None:
    """The names of a batch's fields, if the sources have names for them."""
    first: tuple[str, ...] | None = sources[0].fields
    for at, other in enumerate(sources[1:], 1):
        if other.fields != first:
            raise refuse(
                f"source[{at}]", f"has the fields {other.fields}", f"the fields of source[0]: {first}"
            )
        if isinstance(other, NativeSource) and other.classes != sources[0].classes:
            raise refuse(f"source[{at}]", "has other classes than source[0]")
    return first
