"""Executable statements: registration, forms, and the sides they compare."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.registry import Registry, unknown_name
from normscope.theorems.layer_case import layer_case, smallest
from normscope.theorems.verdict import Verdict

FORMS = ("exact", "printed", "article")
TOLERANCE = 1e-8  # in float64, relative to the size of the terms


@dataclass(frozen=True, eq=False)
class Sides:
    """Both sides of a statement for some units.

    Args:
        kind: "identity" or "bound".
        lhs: (units,) or (units, ...).
        rhs: as ``lhs``.
        size: of the terms of the sides, (units,).
        premise: the condition; "" for none.
        premise_met: by which units, (units,); None if there is no premise.
    """

    kind: str
    lhs: Tensor
    rhs: Tensor
    size: Tensor
    premise: str = ""
    premise_met: Tensor | None = None


@dataclass(eq=False, repr=False)
class Statement:
    """A theorem under its name; called with a case and a form it returns both sides.

    Args:
        function: the statement; its docstring holds the formulas.
        forms: that it has.
        variants: its parts, "" for the first.
        case: makes the case from tensors; its arguments are the tensors' names.
        needs: names of the required tensors.
        sums: whether its sides may be summed over the units of a layer.
    """

    function: Callable[..., Sides]
    forms: tuple[str, ...]
    variants: tuple[str, ...]
    case: Callable[..., Any]
    needs: tuple[str, ...]
    sums: bool
    __name__: str = field(init=False)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function)

    def __call__(self, case: Any, form: str = "exact", variant: str = "") -> Sides:
        """Return both sides for a case.

        Args:
            case: as ``self.case`` makes it.
            form: one of ``self.forms``.
            variant: one of ``self.variants``.

        Returns:
            The sides.

        Raises:
            InputError: if the article does not have this statement or variant.
            UnknownNameError: if there is no such form or variant.
        """
        if form not in FORMS:
            raise unknown_name("form", form, FORMS)
        if form not in self.forms:
            raise InputError(
                f"{self.__name__} has no form {form!r}: choose among {', '.join(self.forms)}."
            )
        if variant not in self.variants:
            raise unknown_name(f"variant of {self.__name__}", variant, self.variants)
        if (form, variant) not in self.parts:
            raise InputError(f"the article does not have {self.__name__} in its {variant} variant.")
        options = {"variant": variant} if len(self.variants) > 1 else {}
        return self.function(case, form, **options)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Every form with its variants; the article has only the first."""
        pairs = [(form, variant) for form in self.forms for variant in self.variants]
        return [pair for pair in pairs if pair[0] != "article" or pair[1] == ""]

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors it takes."""
        return tuple(inspect.signature(self.case).parameters)


THEOREMS: Registry[Statement] = Registry("theorem", package="normscope.theorems")
"""The statements by name; `statement` registers one."""


def statement(
    forms: tuple[str, ...] = FORMS,
    variants: tuple[str, ...] = ("",),
    case: Callable[..., Any] = layer_case,
    needs: tuple[str, ...] = ("y", "g"),
    sums: bool = True,
) -> Callable[[Callable[..., Sides]], Statement]:
    """Decorator: register a statement under its function's name; arguments as of `Statement`."""

    def register(function: Callable[..., Sides]) -> Statement:
        return THEOREMS.register(Statement(function, forms, variants, case, needs, sums))

    return register


def verdict(
    theorem: Statement, form: str, variant: str, sides: Sides, index: int = 0, **place: Any
) -> Verdict:
    """Return the verdict on one unit.

    Args:
        theorem: the statement.
        form: its form.
        variant: its variant.
        sides: of some units.
        index: of the unit.
        **place: further fields of `Verdict`: unit, layer, tolerance.

    Returns:
        The verdict.

    Raises:
        InputError: if the sides are too large or too small to be compared.
    """
    lhs, rhs = sides.lhs[index], sides.rhs[index]
    slack = _slack(lhs, rhs, float(sides.size[index]))
    if math.isnan(slack):
        raise InputError(
            f"the sides of {theorem.__name__} are beyond what float64 holds with all its digits; "
            "measure y or the loss in another unit."
        )
    tolerance = place.get("tolerance", TOLERANCE)
    holds = abs(slack) <= tolerance if sides.kind == "identity" else slack >= -tolerance
    met = None if sides.premise_met is None else bool(sides.premise_met[index])
    left, right = (float(side) if side.dim() == 0 else side.detach() for side in (lhs, rhs))
    return Verdict(
        theorem.__name__,
        sides.kind,
        form,
        left,
        right,
        holds,
        slack,
        variant=variant,
        premise=sides.premise,
        premise_met=met,
        **place,
    )


def total(sides: Sides) -> Sides:
    """Return the sides of a whole layer: sum scalars, concatenate tensors over units."""
    if sides.lhs.dim() > 1:
        parts = [side.reshape(1, -1) for side in (sides.lhs, sides.rhs)]
        return Sides(sides.kind, parts[0], parts[1], sides.size.amax(0, keepdim=True))
    sums = [side.sum(0, keepdim=True) for side in (sides.lhs, sides.rhs, sides.size)]
    met = None if sides.premise_met is None else sides.premise_met.all(0, keepdim=True)
    return Sides(sides.kind, sums[0], sums[1], sums[2], sides.premise, met)


def _slack(lhs: Tensor, rhs: Tensor, size: float) -> float:
    """Return the largest difference relative to the size of the terms; NaN if undefined."""
    difference = (rhs - lhs).reshape(-1)
    usable = size == 0 or smallest(torch.float64) < size < math.inf
    if not (usable and torch.isfinite(difference).all()):
        return math.nan
    largest = float(difference[difference.abs().argmax()])
    if not largest:
        return 0.0
    return largest / size if size else math.nan
