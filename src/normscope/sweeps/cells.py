"""The cells of a sweep, in an order that shows the whole picture early, and their groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from normscope.errors import InputError

__all__ = ["Cell", "Unit", "coarse_to_fine", "grid_cells", "units_of"]


@dataclass(frozen=True)
class Cell:
    """One computation of a sweep.

    Args:
        parameters: its settings by name, without the seed.
        seed: of its random numbers.
    """

    parameters: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class Unit:
    """Cells that are computed together: the unit of work, of commit and of resuming."""

    cells: tuple[Cell, ...]


def grid_cells(
    axes: Mapping[str, Sequence[Any]], settings: Mapping[str, Any], seeds: Sequence[int]
) -> list[Cell]:
    """Every combination of the axes' values, seed after seed, each seed coarse to fine.

    Args:
        axes: the values of every setting that is swept.
        settings: those that are the same in all cells.
        seeds: of the random numbers.

    Returns:
        The cells in the order they should be computed.

    Raises:
        InputError: if an axis or the list of seeds is empty or names a value twice.
    """
    for name, values in [*axes.items(), ("seeds", seeds)]:
        if not len(values) or any(_is_among(each, values[:n]) for n, each in enumerate(values)):
            raise InputError(f"{name} needs values, each of them once, got {list(values)!r}.")
    order = coarse_to_fine([len(values) for values in axes.values()])
    places = [dict(zip(axes, place, strict=True)) for place in order]
    return [
        Cell({**settings, **{name: axes[name][i] for name, i in place.items()}}, seed)
        for seed in seeds
        for place in places
    ]


def _is_among(value: Any, others: Sequence[Any]) -> bool:
    """Whether a value is there already; 1 and 1.0 are the same, 1 and True are not."""
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in others
    )


def coarse_to_fine(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """All index tuples of a grid: first a coarse grid over all of it, then ever finer ones.

    >>> coarse_to_fine([5])
    [(0,), (4,), (2,), (1,), (3,)]

    Args:
        sizes: number of values along each axis.

    Returns:
        Each tuple once.
    """
    stride = 1
    while stride < max(sizes, default=1) - 1:
        stride *= 2
    found: dict[tuple[int, ...], None] = {}
    while stride:
        axes = [range(0, size, stride) for size in sizes]
        found |= dict.fromkeys(product(*axes))
        stride //= 2
    return list(found)


def units_of(
    cells: Sequence[Cell], size: int, alike: Callable[[Cell], Hashable | None]
) -> Iterator[Unit]:
    """Units of neighbouring cells that can be computed together.

    They depend on the grid alone, not on what has been computed already: an interrupted sweep
    makes the same units again, and so the same results to the bit.

    Args:
        cells: in the order they should be computed.
        size: the most cells of a unit.
        alike: what cells of one unit must agree in; None: the cell stands alone.

    Yields:
        The units, each where its last cell would stand.
    """
    gathered: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        kind = alike(cell) if size > 1 else None
        if kind is None:
            yield Unit((cell,))
            continue
        group = gathered.setdefault(kind, [])
        group.append(cell)
        if len(group) == size:
            yield Unit(tuple(gathered.pop(kind)))
    for group in gathered.values():
        yield Unit(tuple(group))
