"""How GDNP runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normscope.errors import InputError
from normscope.registry import unknown_name

__all__ = ["FORMS", "Options"]

FORMS = ("exact", "printed")


@dataclass(frozen=True, slots=True)
class Options:
    """How GDNP runs.

    Args:
        bisections: T_s, halvings of the length's interval, at most.
        max_length: the length stays within -max_length and max_length; None: the loss's own.
        form: "exact", or "printed" for h as the article prints it.
        safeguard: halve a direction step until the objective falls. With Gaussian z the article's
            step always does; on other data it may be too long.
        length_tolerance: a slope along the length that is small enough to end the bisection.
        length_accuracy: the same as a share of the last residual: a length need not be found more
            exactly than its direction is known.

    Raises:
        InputError: for numbers that are not positive.
        UnknownNameError: for a form that is not among them.
    """

    bisections: int = 60
    max_length: float | None = None
    form: str = "exact"
    safeguard: bool = True
    length_tolerance: float = 0.0
    length_accuracy: float = 0.0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise unknown_name("form", self.form, FORMS)
        limit = 1.0 if self.max_length is None else self.max_length
        if self.bisections < 1 or not 0 < limit < np.inf:
            raise InputError(
                "bisections and max_length must be positive and finite, got "
                f"{self.bisections} and {self.max_length}."
            )
