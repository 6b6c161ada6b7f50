"""What workers are asked for: the rows of a batch, from all sources of a loader."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from feedline._errors import SampleError
from feedline.code.sources import DatasetSource, materialized, through
from feedline.code.stages import Row, Stages

# How many substitutes are tried for one bad sample, as in the engine.
_SUBSTITUTES = 32


class Rows:
    """All sources of a loader, asked for rows: what travels to the workers."""

    def __init__(self, sources: list[Any], stages: Stages, *, eager: bool, order: Any = None) -> None:
        """With `eager`, native stages write arrays of their own; with `order`, bad samples have
        substitutes, and each sample comes with what failed before it, as JSON."""
        self._sources, self._stages = sources, stages
        self._eager, self._order = eager or order is not None, order
        only = sources[0] if len(sources) == 1 and isinstance(sources[0], DatasetSource) else None
        if order is None and only is not None and callable(getattr(only.dataset, "__getitems__", None)):
            self.__getitems__ = self._many

    def _many(self, rows: Sequence[Row]) -> list[Any]:
        """All rows of a batch at once, from a data set that can do so."""
        try:
            samples = self._sources[0].dataset.__getitems__([row.sample for row in rows])
        except Exception:
            # One by one, the sample that fails is found and named.
            return [self[row] for row in rows]
        made_of = zip(samples, rows, strict=True)
        whole = [through(sample, row, self._stages) for sample, row in made_of]
        return [materialized(sample) for sample in whole] if self._eager else whole

    def __feedline_parts__(self) -> list[Any]:
        """The program's own objects, which decide where this can run."""
        datasets = [one.dataset for one in self._sources if isinstance(one, DatasetSource)]
        return datasets + self._stages.functions

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Samples are whole meanwhile, so that their time is all of what they take."""
        kept, self._eager = self._eager, True
        try:
            yield
        finally:
            self._eager = kept

    def __getitem__(self, row: Row) -> Any:
        if self._order is None:
            return self._make(row)
        failures: list[dict[str, Any]] = []
        wanted = row
        for attempt in itertools.count():
            try:
                sample = self._make(wanted)
            except SampleError as error:
                if attempt == _SUBSTITUTES:
                    raise
                failures.append(failure_record(error))
                source, index = self._order.substitute(row.epoch, row.draws, row.position, attempt)
                wanted = row._replace(source=source, sample=index)
            else:
                break
        return (json.dumps(failures) if failures else "", sample)

    def _make(self, row: Row) -> Any:
        sample = self._sources[row.source].sample(row, self._stages)
        return materialized(sample) if self._eager else sample


def failure_record(error: SampleError) -> dict[str, Any]:
    """An error as a line of a quarantine file."""
    return {
        "source": error.source,
        "index": error.index,
        "path": error.path,
        "offset": error.offset,
        "stage": error.stage,
        "reason": error.reason,
        "text": str(error),
    }
