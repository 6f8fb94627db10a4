"""Verdicts of checks: both sides of a statement, whether it holds, and what was not checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.text import Rendered, Table

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS = ("left", "right", "slack")


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Rendered):
    """One statement on one case, or the worst of many cases.

    Args:
        name: of the statement, such as "theorem_4_1".
        kind: "identity": both sides are equal; "bound": the left is at most the right.
        form: "exact", or as in the paper ("printed") or the encyclopaedia article ("article").
        lhs: the left side, by autograd if it is a derivative; a number, or a tensor.
        rhs: the right side, in closed form.
        holds: whether the relation between the sides holds within the tolerance.
        slack: rhs - lhs relative to the size of the terms; for tensors the largest in magnitude.
        tolerance: slack that rounding errors may cause.
        variant: part of the statement: "" or "norm_preserving".
        premise: condition of the statement; "" for none.
        premise_met: whether the case meets the premise; None if there is none.
        unit: index of the unit in its layer; None for a single unit, or for a whole layer.
        layer: name of the layer; None for plain tensors.
        cases: number of cases tried.
        failures: number of cases in which the relation failed although the premise was met.
        unmet: number of cases in which the premise was not met.

    Examples:
        >>> Verdict("theorem_4_1", "bound", "printed", 2.0, 1.0, False, -0.5).refuted
        True
    """

    name: str
    kind: str
    form: str
    lhs: float | Tensor
    rhs: float | Tensor
    holds: bool
    slack: float
    tolerance: float = 1e-8
    variant: str = ""
    premise: str = ""
    premise_met: bool | None = None
    unit: int | None = None
    layer: str | None = None
    cases: int = 1
    failures: int | None = None
    unmet: int = 0

    def __post_init__(self) -> None:
        if self.failures is None:
            object.__setattr__(
                self, "failures", int(not self.holds and self.premise_met is not False)
            )
            object.__setattr__(self, "unmet", int(self.premise_met is False))

    @property
    def refuted(self) -> bool:
        """Whether the statement is false here: the premise is met and the relation fails."""
        return bool(self.failures)

    @property
    def label(self) -> str:
        """The statement's name with its variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; for tensors their norm."""
        return vars(self) | {"lhs": _number(self.lhs), "rhs": _number(self.rhs)}

    def __str__(self) -> str:
        sign = {"identity": "=", "bound": "<="}[self.kind]
        state = "holds" if self.holds else "fails"
        state = "premise not met" if self.premise_met is False else state
        where = "" if self.layer is None else f" at {self.layer!r}, {_unit(self)}"
        many = f", {self.failures} of {self.cases} cases fail" if self.cases > 1 else ""
        return (
            f"{self.label}, {self.form}{where}: {_number(self.lhs):.6g} {sign} "
            f"{_number(self.rhs):.6g} {state} (slack {self.slack:.1e}){many}"
        )

    def _table(self) -> Table:
        return Verdicts([self])._table()


class Verdicts(Rendered, list[Verdict]):
    """A list of verdicts that prints as a table.

    Args:
        verdicts: in order.
        unchecked: what could not be checked, and why.
    """

    def __init__(
        self, verdicts: Iterable[Verdict] = (), unchecked: Iterable[Unchecked] = ()
    ) -> None:
        super().__init__(verdicts)
        self.unchecked = list(unchecked)

    @property
    def refuted(self) -> list[Verdict]:
        """The verdicts of false statements."""
        return [verdict for verdict in self if verdict.refuted]

    def to_dict(self) -> dict[str, Any]:
        """Return the verdicts as plain values, how many are false, and what was not checked."""
        return {
            "verdicts": [each.to_dict() for each in self],
            "refuted": len(self.refuted),
            "unchecked": [each.to_dict() for each in self.unchecked],
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per verdict."""
        import pandas as pd

        return pd.DataFrame([verdict.to_dict() for verdict in self])

    def _table(self) -> Table:
        rows, title = [_row(each) for each in self], "Statements" if self else ""
        if len({each.form for each in self}) == 1:
            title += f", {self[0].form} form"
            for row in rows:
                del row["form"]
        return Table(rows, title, list(map(repr, self.unchecked)), _NUMBERS)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the case with the least slack (for identities the largest in magnitude).

    Args:
        verdicts: of one statement in one form, at least one.

    Returns:
        The verdict of that case with the counts of all; it holds if no case failed.
    """
    every = list(verdicts)
    relevant = [each for each in every if each.premise_met is not False] or every
    chosen = min(relevant, key=_strain)
    failures = sum(each.failures or 0 for each in every)
    return replace(
        chosen,
        holds=failures == 0,
        cases=sum(each.cases for each in every),
        failures=failures,
        unmet=sum(each.unmet for each in every),
    )


def _strain(verdict: Verdict) -> float:
    slack = verdict.slack
    if slack != slack:  # NaN is the worst
        return -torch.inf
    return -abs(slack) if verdict.kind == "identity" else slack


def _number(side: float | Tensor) -> float:
    return float(side.norm()) if isinstance(side, Tensor) else side


def _unit(verdict: Verdict) -> str:
    if verdict.layer is None:
        return "-"
    return "total" if verdict.unit is None else str(verdict.unit)


def _state(verdict: Verdict) -> str:
    if verdict.premise_met is False:
        return "premise not met"
    state = "holds" if verdict.holds else "FAILS"
    return f"{state}, {verdict.failures}/{verdict.cases} fail" if verdict.cases > 1 else state


def _row(verdict: Verdict) -> dict[str, str]:
    return {
        "statement": verdict.label,
        "form": verdict.form,
        "unit": _unit(verdict),
        "kind": verdict.kind,
        "left": f"{_number(verdict.lhs):.5g}",
        "right": f"{_number(verdict.rhs):.5g}",
        "slack": f"{verdict.slack:.1e}",
        "verdict": _state(verdict),
    }


@dataclass(frozen=True)
class TooLarge:
    """The size of a batch that is too large for a statement that forms a matrix of it.

    Args:
        values: of a unit: samples times positions.
        limit: largest number that is checked.

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
    """A statement that could not be checked, and why.

    Args:
        name: of the statement.
        reason: one phrase.
        variant: part of the statement.
        layer: name of the layer.
        unit: index of the unit; None for all chosen units, or for the whole layer.
        too_large: the sizes, if the batch is too large; else None.

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
        """Return plain values; ``too_large`` as a dictionary of its sizes."""
        return asdict(self)

    def __repr__(self) -> str:
        where = "" if self.unit is None else f", unit {self.unit}"
        return f"{self.label}{where}, not checked: {self.reason}"
