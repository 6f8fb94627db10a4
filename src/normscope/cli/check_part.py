"""Theorem C.1 on a part of the batch, where all of it has too many values to make a matrix of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from normscope.problem.batch import rows, sample_count
from normscope.theorems import Verdicts

__all__ = ["checked_in_parts", "part_size"]

_VALUES = 16  # of a unit in the part: with 128, the most, a check takes some six times as long


def checked_in_parts(check: Callable[[Any], Verdicts], batch: Any) -> tuple[Verdicts, int | None]:
    """The verdicts on a batch; what it is too large for is put to its first samples.

    A statement about a batch is one about any: that of a few samples is as hard a test.

    Args:
        check: gives the verdicts of one layer on a batch.
        batch: the whole one.

    Returns:
        The verdicts, and the number of samples in the part; None: there was no need of one, or two
        samples, the fewest that vary, have too many values.
    """
    found = check(batch)
    large = {each.label: each.too_large for each in found.unchecked if each.too_large}
    if not large:
        return found, None
    sizes = next(iter(large.values()))  # one layer's units have one size
    samples = sample_count(batch)
    part = part_size(samples, sizes.values)
    if part * sizes.values > samples * sizes.limit:
        return found, None
    again = check(rows(batch, torch.arange(part)))
    made = [*found, *(each for each in again if each.label in large)]
    rest = [each for each in found.unchecked if each.label not in large]
    rest += [each for each in again.unchecked if each.label in large]
    return Verdicts(made, rest), part


def part_size(samples: int, values: int) -> int:
    """How many samples of a batch Theorem C.1 is put to, at least two, which vary.

    Args:
        samples: in the batch.
        values: of a unit in it.
    """
    return max(2, samples * _VALUES // values)
