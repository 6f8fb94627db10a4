"""A record of the store: what was to be computed, how far it is, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from normscope.registry import unknown_name
from normscope.results.notebook import pairs_html

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Record", "State", "meets"]


class State(StrEnum):
    """How far a record is.

    >>> State("finished").has_result, State.RUNNING.has_result
    (True, False)
    """

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"

    @classmethod
    def named(cls, name: str) -> State:
        """The state of this name.

        Raises:
            UnknownNameError: if there is none.
        """
        if name not in list(cls):
            raise unknown_name("state", name, map(str, cls))
        return cls(name)

    @property
    def has_result(self) -> bool:
        """Whether the whole result is there; divergence is a result too."""
        return self in (State.FINISHED, State.DIVERGED)


@dataclass(frozen=True, eq=False)
class Record:
    """One record as it was when it was asked for.

    Args:
        key: the hash of the next five.
        experiment: its name.
        parameters: as JSON's own types: tuples have become lists, paths texts.
        seed: of its random numbers.
        revision: of the experiment's code.
        version: of the package.
        state: how far it is.
        attempts: how often it was started.
        error: the text of the failure, if it failed.
        seconds: duration of the attempt that finished or failed.
        read: gives the dataset.
    """

    key: str
    experiment: str
    parameters: dict[str, Any]
    seed: int
    revision: int
    version: str
    state: State
    attempts: int
    error: str | None
    seconds: float | None
    read: Callable[[], xr.Dataset] = field(repr=False)

    @cached_property
    def dataset(self) -> xr.Dataset:
        """The result, read when first asked for; of a running record the chunks so far."""
        return self.read()

    def _repr_html_(self) -> str:
        names = ("seed", "state", "attempts", "error", "seconds", "revision", "version")
        values = {name: getattr(self, name) for name in names}
        return pairs_html({**self.parameters, **values}, f"{self.experiment}, {self.key[:12]}")


def meets(parameters: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the parameters have the wanted values; 1 and 1.0 are equal, 1 and True are not.

    >>> meets({"gamma": 1.0, "norm": "batch"}, {"gamma": 1})
    True
    """
    return all(
        name in parameters
        and parameters[name] == value
        and isinstance(parameters[name], bool) == isinstance(value, bool)
        for name, value in wanted.items()
    )
