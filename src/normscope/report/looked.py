"""One look at a record of a store: what the report needs of its result, which is then let go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from normscope.errors import StateError
from normscope.report.curves import has_curve
from normscope.report.scope_words import is_scope
from normscope.results import Record, State

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Looked", "look"]


@dataclass(frozen=True)
class Looked:
    """What a record holds.

    Args:
        record: itself.
        single: the single values of its result, without those the state says already.
        is_scope: whether a scope measured it.
        has_curve: whether it has the losses of a training.
        bytes: of its arrays.
    """

    record: Record
    single: dict[str, Any] = field(default_factory=dict)
    is_scope: bool = False
    has_curve: bool = False
    bytes: int = 0


def look(record: Record) -> Looked:
    """Read a record once; unfinished ones may have their steps so far.

    Args:
        record: of a store that is open.
    """
    if record.state is State.PENDING and not record.attempts:
        return Looked(record)
    try:
        dataset = record.read()  # not kept, as `Record.dataset` would be
    except StateError:  # no data yet; damage is an error of another kind
        return Looked(record)
    single = _single(dataset) if record.state.has_result else {}
    return Looked(record, single, is_scope(dataset), has_curve(dataset), dataset.nbytes)


def _single(dataset: xr.Dataset) -> dict[str, Any]:
    found = {
        str(name): values.values.item()
        for name, values in dataset.data_vars.items()
        if not values.dims and values.dtype.kind in "biufU"
    }
    found.pop("outcome", None)
    return found
