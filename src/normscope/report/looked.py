"""One look at a record of a store: what the report needs of its result, which is then let go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from normscope.errors import StateError
from normscope.results import Record, State, Store
from normscope.results.content import Pieces
from normscope.results.labels import setting_labels

__all__ = ["Looked", "in_order", "look"]


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


def look(store: Store, record: Record) -> Looked:
    """Read a record once; unfinished ones may have their steps so far.

    Its variables are looked at as they lie in the file: to build thousands of labelled datasets
    takes most of a minute.

    Args:
        store: open.
        record: of it.
    """
    if record.state is State.PENDING and not record.attempts:
        return Looked(record)
    try:
        pieces = store.pieces(record.key)
    except StateError:  # no data yet; damage is an error of another kind
        return Looked(record)
    single = _single(pieces) if record.state.has_result else {}
    loss = pieces.variables.get("loss")
    steps = loss is not None and not loss.is_coordinate and loss.dims == ("step",)
    curve = steps and loss is not None and loss.values.size > 0 and loss.values.dtype.kind in "iuf"
    size = sum(each.values.nbytes for each in pieces.variables.values())
    return Looked(record, single, steps and "probes" in pieces.attributes, curve, size)


def in_order(looked: Sequence[Looked], varying: Sequence[str]) -> list[Looked]:
    """Records by what tells them apart, not as they were computed: numbers rise, texts as met.

    Args:
        looked: of one experiment.
        varying: the parameters that are not the same everywhere.
    """
    values = [[each.record.parameters.get(name) for each in looked] for name in varying]
    places = [setting_labels(each)[1] for each in values]
    seeds = [each.record.seed for each in looked]
    keys = list(zip(*places, seeds, strict=True))
    return [looked[place] for place in sorted(range(len(looked)), key=keys.__getitem__)]


def _single(pieces: Pieces) -> dict[str, Any]:
    found = {
        name: each.values.item()
        for name, each in pieces.variables.items()
        if not each.dims and not each.is_coordinate and each.values.dtype.kind in "biufU"
    }
    found.pop("outcome", None)
    return found
