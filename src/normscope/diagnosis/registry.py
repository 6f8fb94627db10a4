"""The registry of checks: a check is one decorated function in a file of ``checks/``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from normscope.registry import Registry

if TYPE_CHECKING:
    from normscope.diagnosis.examination import Examination
    from normscope.diagnosis.results import Finding

CheckFunction: TypeAlias = "Callable[[Examination], Iterator[Finding]]"


@dataclass(frozen=True)
class Check:
    """A check of a model.

    Attributes:
        function: yields the findings of an examination.
        needs_finite: whether it has a meaning only if loss and gradients are finite.
        needs_optimizer: whether it is about the optimizer.
        summary: one line of description.
    """

    function: CheckFunction
    needs_finite: bool
    needs_optimizer: bool
    summary: str

    def __call__(self, exam: Examination) -> Iterator[Finding]:
        """Yield the findings."""
        return self.function(exam)


CHECKS: Registry[Check] = Registry("check", package="normscope.diagnosis.checks")
"""The checks of `normscope.doctor` by name."""


def check(
    needs_finite: bool = True, needs_optimizer: bool = False
) -> Callable[[CheckFunction], CheckFunction]:
    """Return a decorator that registers a function from an examination to findings as a check.

    Its name is the name of the findings.

    Args:
        needs_finite: whether it has a meaning only if loss and gradients are finite.
        needs_optimizer: whether it is about the optimizer.
    """

    def register(function: CheckFunction) -> CheckFunction:
        summary = (function.__doc__ or "").strip().partition("\n")[0]
        made = Check(function, needs_finite, needs_optimizer, summary)
        CHECKS.register(name=function.__name__)(made)
        return function

    return register
