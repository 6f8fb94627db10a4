"""What a check could not look at, and why: said, not passed over."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["TooLarge", "Unchecked"]


@dataclass(frozen=True)
class TooLarge:
    """By how much a batch is too large for a statement that makes a matrix of it.

    Args:
        values: of a unit: samples times positions.
        limit: as many may be checked.

    Examples:
        >>> str(TooLarge(512, 128))
        'a unit has 512 values, above dense_limit=128: take a smaller batch'
    """

    values: int
    limit: int

    def __str__(self) -> str:
        return (
            f"a unit has {self.values} values, above dense_limit={self.limit}: take a smaller batch"
        )


@dataclass(frozen=True)
class Unchecked:
    """A statement that could not be put to the test, and why.

    Args:
        name: of the statement.
        reason: in words.
        variant: which part of the statement.
        layer: name of the layer.
        unit: number of the unit; None for all that were asked for, or for the whole layer.
        too_large: the sizes, where the reason is a batch that is too large; None for any other.

    Examples:
        >>> Unchecked("fact_c2", "its scale is zero", unit=3)
        fact_c2, unit 3, not checked: its scale is zero
    """

    name: str
    reason: str
    variant: str = ""
    layer: str | None = None
    unit: int | None = None
    too_large: TooLarge | None = None

    @property
    def label(self) -> str:
        """The statement's name with its variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def to_dict(self) -> dict[str, Any]:
        """Plain values; of what is too large a dictionary of its sizes."""
        return asdict(self)

    def __repr__(self) -> str:
        where = "" if self.unit is None else f", unit {self.unit}"
        return f"{self.label}{where}, not checked: {self.reason}"
