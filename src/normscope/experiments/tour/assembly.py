"""Parts of the tour: each from the store or computed now, and put side by side by their labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from normscope.experiments.tour.net import Net
from normscope.experiments.tour.pace import Pace
from normscope.results import Store

__all__ = ["Assembly", "Tell", "side_by_side"]

Tell = Callable[[str], None]


def side_by_side(dimension: str, parts: Mapping[Any, xr.Dataset]) -> xr.Dataset:
    """Datasets along a new dimension; not a number where one of them has no value.

    >>> both = side_by_side("seed", {0: xr.Dataset({"a": 1.0}), 4: xr.Dataset({"a": 2.0})})
    >>> both["a"].sel(seed=4).item()
    2.0
    """
    return xr.concat(
        list(parts.values()),
        xr.Variable(dimension, list(parts)),
        data_vars="all",
        coords="minimal",
        compat="equals",
        join="outer",
        combine_attrs="drop_conflicts",
    )


@dataclass(frozen=True)
class Assembly:
    """Runs parts of the tour for every normalization and seed.

    Args:
        net: the network.
        norms: its normalizations.
        seeds: of weights and order of the data.
        store: keeps each part.
        pace: is told of each part.
    """

    net: Net
    norms: Sequence[str]
    seeds: Sequence[int]
    store: Store
    pace: Pace
    _computed: set[tuple[str, int]] = field(default_factory=set, init=False)  # by this run

    def one(
        self, kind: str, what: str, seed: int, measure: Callable[[Tell], xr.Dataset], **further: Any
    ) -> xr.Dataset:
        """One part, from the store or computed now.

        Args:
            kind: of the part, a name of `SHARES`.
            what: which one, for a person who waits.
            seed: of its random numbers.
            measure: computes it; gets a function to tell what it is at.
            **further: its settings beside those of the net.

        Returns:
            What was measured.
        """
        parameters = self.net.settings(part=kind, **further)
        key = repr(parameters), seed
        with self.pace.part(kind, what, f"seed {seed}") as tell:

            def run() -> xr.Dataset:
                tell("")  # not if it is in the store
                self._computed.add(key)
                return measure(tell)

            if key in self._computed:
                tell("")  # the same training serves two parts: no earlier run kept it
            return self.store.compute("tour part", parameters, seed, run)

    def each(
        self,
        kind: str,
        measure: Callable[[str, int, Tell], xr.Dataset],
        seeds: Sequence[int] | None = None,
        **further: Any,
    ) -> xr.Dataset:
        """A part of every normalization and seed.

        Args:
            kind: of the part.
            measure: computes it from normalization, seed and a function to tell with.
            seeds: other than all of them.
            **further: settings of the part; a mapping holds one value for each (norm, seed).

        Returns:
            All of them over (norm, seed).
        """
        rows = {}
        for norm in self.norms:
            found = {}
            for seed in self.seeds if seeds is None else seeds:
                own = {key: _own(value, norm, seed) for key, value in further.items()}

                def run(tell: Tell, norm: str = norm, seed: int = seed) -> xr.Dataset:
                    return measure(norm, seed, tell)

                found[seed] = self.one(kind, norm, seed, run, norm=norm, **own)
            rows[norm] = side_by_side("seed", found)
        return side_by_side("norm", rows)


def _own(value: Any, norm: str, seed: int) -> Any:
    return value[norm, seed] if isinstance(value, Mapping) else value
