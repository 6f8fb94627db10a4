"""What a check could not look at, and why: said, not passed over."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Unchecked"]


@dataclass(frozen=True)
class Unchecked:
    """A statement that could not be put to the test, and why.

    Args:
        name: of the statement.
        reason: in words.
        variant: which part of the statement.
        layer: name of the layer.
        unit: number of the unit; None for all that were asked for, or for the whole layer.

    Examples:
        >>> Unchecked("fact_c2", "its scale is zero", unit=3)
        fact_c2, unit 3, not checked: its scale is zero
    """

    name: str
    reason: str
    variant: str = ""
    layer: str | None = None
    unit: int | None = None

    @property
    def label(self) -> str:
        """The statement's name with its variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __repr__(self) -> str:
        where = "" if self.unit is None else f", unit {self.unit}"
        return f"{self.label}{where}, not checked: {self.reason}"
