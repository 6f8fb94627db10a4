"""What a check found: the two sides of a statement, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.text import text_table
from normscope.theorems.unchecked import Unchecked

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Verdict", "Verdicts", "worst"]

_COLUMNS = ("statement", "form", "unit", "kind", "left", "right", "slack", "verdict")


@dataclass(frozen=True, eq=False)
class Verdict:
    """One statement on one case, or the worst of many cases.

    Args:
        name: of the statement, such as "theorem_4_1".
        kind: "identity": both sides are equal; "bound": the left is at most the right.
        form: "exact", or as the paper ("printed") or the encyclopaedia article ("article") has it.
        lhs: the left side, taken by autograd where it is a derivative; a number, or a tensor.
        rhs: the right side, in closed form.
        holds: whether the relation between the sides holds within the tolerance.
        slack: rhs - lhs relative to the size of the terms; of tensors the largest by magnitude.
        tolerance: the slack that rounding may take.
        variant: which part of the statement: "" or "norm_preserving".
        premise: what the statement supposes, in words; "" for nothing.
        premise_met: whether the case meets the premise; None where there is none.
        unit: number of the unit in its layer; None for one unit alone, or for a whole layer.
        layer: name of the layer; None for plain tensors.
        cases: how many cases were tried.
        failures: in how many the relation failed although the premise, if any, was met.
        unmet: in how many the premise was not met.

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
        """Whether the statement is false here: its premise is met and its relation fails."""
        return bool(self.failures)

    @property
    def label(self) -> str:
        """The statement's name with its variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; of tensors the norm."""
        return {
            "name": self.name,
            "variant": self.variant,
            "kind": self.kind,
            "form": self.form,
            "layer": self.layer,
            "unit": self.unit,
            "lhs": _number(self.lhs),
            "rhs": _number(self.rhs),
            "slack": self.slack,
            "holds": self.holds,
            "tolerance": self.tolerance,
            "premise": self.premise,
            "premise_met": self.premise_met,
            "cases": self.cases,
            "failures": self.failures,
            "unmet": self.unmet,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row."""
        return Verdicts([self]).to_dataframe()

    def __repr__(self) -> str:
        sign = {"identity": "=", "bound": "<="}[self.kind]
        state = "holds" if self.holds else "fails"
        state = "premise not met" if self.premise_met is False else state
        where = "" if self.layer is None else f" at {self.layer!r}, {_unit(self)}"
        many = f", {self.failures} of {self.cases} cases fail" if self.cases > 1 else ""
        return (
            f"{self.label}, {self.form}{where}: {_number(self.lhs):.6g} {sign} "
            f"{_number(self.rhs):.6g} {state} (slack {self.slack:.1e}){many}"
        )

    def _repr_html_(self) -> str:
        return Verdicts([self])._repr_html_()


class Verdicts(list[Verdict]):
    """A list of verdicts that prints as a table.

    Args:
        verdicts: one each.
        unchecked: what could not be put to the test, and why.
    """

    def __init__(
        self, verdicts: Iterable[Verdict] = (), unchecked: Iterable[Unchecked] = ()
    ) -> None:
        super().__init__(verdicts)
        self.unchecked = list(unchecked)

    @property
    def refuted(self) -> list[Verdict]:
        """Those that are false."""
        return [verdict for verdict in self if verdict.refuted]

    def to_dict(self) -> dict[str, Any]:
        """The verdicts as plain values, how many are false, and what was not checked."""
        return {
            "verdicts": [each.to_dict() for each in self],
            "refuted": len(self.refuted),
            "unchecked": [each.to_dict() for each in self.unchecked],
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row per verdict."""
        import pandas as pd

        return pd.DataFrame([verdict.to_dict() for verdict in self])

    def __str__(self) -> str:
        rows, title = self._rows(), "Statements"
        if len({each.form for each in self}) == 1:
            title += f", {self[0].form} form"
            rows = [{name: row[name] for name in _COLUMNS if name != "form"} for row in rows]
        table = text_table(rows, title if rows else "", numbers=("left", "right", "slack"))
        return "\n".join([table, *([""] if self.unchecked else []), *map(repr, self.unchecked)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        return table_html(self._rows(), "", "\n".join(map(repr, self.unchecked)))

    def _rows(self) -> list[dict[str, str]]:
        return [dict(zip(_COLUMNS, _cells(each), strict=True)) for each in self]


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The case with the least slack (of identities the largest by magnitude), with the counts.

    Args:
        verdicts: of one statement in one form, at least one.

    Returns:
        The verdict of that case; it holds if no case failed.
    """
    every = list(verdicts)
    counted = [each for each in every if each.premise_met is not False] or every
    chosen = min(counted, key=_strain)
    failures = sum(each.failures or 0 for each in every)
    changes = {
        "holds": failures == 0,
        "cases": sum(each.cases for each in every),
        "failures": failures,
        "unmet": sum(each.unmet for each in every),
    }
    return Verdict(**{**chosen.__dict__, **changes})


def _strain(verdict: Verdict) -> float:
    slack = verdict.slack
    if slack != slack:  # not a number: nothing is worse
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
        return "premise not met"  # whether its relation holds says nothing
    state = "holds" if verdict.holds else "FAILS"
    return f"{state}, {verdict.failures}/{verdict.cases} fail" if verdict.cases > 1 else state


def _cells(verdict: Verdict) -> list[str]:
    texts = [verdict.label, verdict.form, _unit(verdict), verdict.kind]
    texts += [f"{_number(verdict.lhs):.5g}", f"{_number(verdict.rhs):.5g}"]
    return [*texts, f"{verdict.slack:.1e}", _state(verdict)]
