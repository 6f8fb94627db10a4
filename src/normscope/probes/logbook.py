"""Where a scope's rows go: into a table in memory and, if there is one, into a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from normscope.errors import ArgumentTypeError, StateError
from normscope.probes.table import Row, Table

if TYPE_CHECKING:
    from normscope.results import Store

__all__ = ["Logbook"]


class Logbook:
    """A scope's record in a store: every finished row is durable when it has been added.

    Args:
        table: what the rows are of.
        store: the store; None: the table alone.
        name: the experiment's name in the store.
        labels: the parameters of the record, which tell it from others.
        seed: of the record.
    """

    def __init__(
        self, table: Table, store: Store | None, name: str, labels: Mapping[str, Any], seed: int
    ) -> None:
        self.table = table
        self.key: str | None = None
        self._store = store
        self._rows_kept = 0
        if store is None:
            return
        if not callable(getattr(store, "append", None)) or not hasattr(store, "release"):
            raise ArgumentTypeError(
                "store must be an open normscope.results.Store, such as Store('runs.db'), got "
                f"{store!r}."
            )
        self.key = store.add(name, labels, seed)
        state = store.get(self.key).state
        if state not in ("pending", "failed"):
            raise StateError(
                f"the store has a {state} record of {name!r} with seed {seed} and these labels "
                "already; give other labels or another seed."
            )
        store.start(self.key)

    def add(self, row: Row) -> None:
        """Add a row; once more does no harm, after a Ctrl-C in the middle."""
        if not any(row is other for other in self.table.rows[-1:]):
            self.table.rows.append(row)
        if self._store is not None and self.key is not None:
            if self._rows_kept < len(self.table.rows):
                self._store.append(self.key, self.table.dataset([row]))
            self._rows_kept = len(self.table.rows)

    def finish(self) -> None:
        """The training is over: the rows are the result; without any the record stays pending."""
        if self._store is not None and self.key is not None:
            if self._rows_kept:
                self._store.finish(self.key)
            else:
                self._store.release(self.key)

    def fail(self, error: str) -> None:
        """The training broke off: the record keeps its rows and the reason."""
        if self._store is not None and self.key is not None:
            self._store.fail(self.key, error)
