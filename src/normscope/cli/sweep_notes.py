"""What ``normscope sweep`` notes on stderr before it begins."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from normscope.sweeps.diagram import Diagram

__all__ = ["note_conversions", "note_earlier"]


def note_conversions(plan: Diagram) -> None:
    """Say of a user's own data which is converted; that of normscope is made for its models."""
    from normscope.cli.batches import note_conversion
    from normscope.sweeps.own import own_places
    from normscope.sweeps.training_settings import Training

    for cell in {cell.parameters["data"]: cell for cell in plan.cells}.values():
        training = Training.of(cell.parameters)
        if own_places([training.data]):
            note_conversion(tuple(training.data_set.train), training.network(cell.seed))


def note_earlier(plan: Diagram, experiment: str, path: Path) -> None:
    """Say how many cells of a store an earlier version of the plan's own files computed.

    Args:
        plan: what will be trained.
        experiment: the name of its records.
        path: of the store, which may not be there yet.
    """
    from normscope.cli.sweep_output import earlier_words
    from normscope.results import Store
    from normscope.results.record import custom_parts
    from normscope.sweeps.earlier import earlier_records
    from normscope.sweeps.status import state_counts

    own = {custom_parts(cell.parameters) for cell in plan.cells} - {()}
    if not own or not path.is_file():
        return
    with Store(path, read_only=True) as store:
        records = store.select(experiment)
    earlier = earlier_records(each for each in records if custom_parts(each.parameters) in own)
    # with the store not yet open to write, what is running there was left so
    counts = state_counts(earlier, at_work=False)
    if earlier and sys.stderr is not None:
        print(f"normscope: note: {earlier_words(counts, str(path))}", file=sys.stderr)
