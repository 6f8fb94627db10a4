"""What Ctrl-C leaves behind, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["resumable"]


@contextmanager
def resumable(store: Path) -> Iterator[None]:
    """Let Ctrl-C inside say what becomes of the work.

    Args:
        store: keeps what is finished; the file may not be there yet.
    """
    try:
        yield
    except KeyboardInterrupt:
        kept = f"what is finished is kept in {store}, and the same command goes on"
        if not _has_results(store):
            kept = "nothing was computed yet, and the same command begins again"
        raise KeyboardInterrupt(f"interrupted; {kept}.") from None


def _has_results(store: Path) -> bool:
    """Whether anything in a store is finished; so too of one that cannot be read now."""
    if not store.exists():
        return False
    from normscope.errors import NormscopeError
    from normscope.results import Store

    try:
        with Store(store, read_only=True) as opened:
            return any(number for state, number in opened.counts().items() if state.has_result)
    except (NormscopeError, OSError):
        return True
