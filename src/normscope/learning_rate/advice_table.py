"""The advice as a table: each number with a remark on where it comes from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normscope.learning_rate.advice import Advice
    from normscope.learning_rate.rules import UpdateRule

__all__ = ["heading_of", "module_label", "rows_of", "rule_words"]

_SHOWN_LAYERS = 5
_FAR = 2.0  # a prediction this far from the runs is said to be
_THEORY_FAR = 4.0  # likewise the theory's bound, which need not be the onset
_STEEPER = 1.03  # from here on a curvature after the first steps is told apart from that before


def module_label(name: str) -> str:
    """A module's name as it is said; those of a Sequential are numbers.

    >>> module_label("4"), module_label("features.0"), module_label("")
    ('layer 4', 'features.0', 'the model itself')
    """
    if not name:
        return "the model itself"
    return f"layer {name}" if name[0].isdigit() else name


def heading_of(advice: Advice) -> str:
    """What stands over the table.

    Args:
        advice: the numbers.

    Returns:
        Optimizer and batch size.
    """
    kind = "" if advice.rule.is_exact else ", an estimate"
    words = rule_words(advice.rule)
    return f"Learning rate for {words}, batch size {advice.batch_size}{kind}"


def rule_words(rule: UpdateRule) -> str:
    """An optimizer in a few words.

    >>> from normscope.learning_rate.rules import UpdateRule
    >>> rule_words(UpdateRule("SGD", momentum=0.9, nesterov=True, weight_decay=0.01))
    'SGD, momentum 0.9 (Nesterov), weight decay 0.01'
    >>> rule_words(UpdateRule("Adam", momentum=0.9, dampening=0.9, second_moment=0.999))
    'Adam, beta1 0.9'
    """
    # Adam's running mean of the gradients goes by another name, and bounds the rate otherwise
    is_mean = rule.second_moment is not None and rule.dampening > 0
    name = "beta1" if is_mean else "momentum"
    momentum = f", {name} {rule.momentum:g}" if rule.momentum else ""
    if rule.dampening and not is_mean:
        momentum += f", dampening {rule.dampening:g}"
    nesterov = " (Nesterov)" if rule.nesterov else ""
    decay = f", weight decay {rule.weight_decay:g}" if rule.weight_decay else ""
    return f"{rule.name}{momentum}{nesterov}{decay}"


def rows_of(advice: Advice) -> list[dict[str, str | None]]:
    """The rows of the table.

    Args:
        advice: the numbers.

    Returns:
        Quantity, value and remark of each.
    """
    found = advice.verification
    rows: list[tuple[str, str | None, str]] = [
        ("recommended", f"{advice.recommended:.3g}", "half the limit"),
        ("limit", f"{advice.limit:.3g}", _limit_remark(advice)),
        ("curvature bound", f"{advice.curvature_bound:.3g}", _bound_remark(advice)),
        ("predicted", f"{advice.predicted:.3g}", _prediction_remark(advice)),
        ("theory", _rate(advice.theory), _theory_remark(advice)),
        ("verified", _rate(found.low or None if found else None), _verified_remark(advice)),
        ("lambda_max", f"{max(advice.curvature.values):.4g}", _curvature_remark(advice)),
        *_steepest_met(advice),
        ("steepest in", "", _steepest_remark(advice)),
    ]
    return [dict(zip(("quantity", "value", "remark"), row, strict=True)) for row in rows]


def _limit_remark(advice: Advice) -> str:
    low, high = advice.interval
    above = f"{high:.3g}" if math.isfinite(high) else "no end found"
    found = advice.verification
    if found is None:
        return f"predicted; it may be anywhere from {low:.3g} to {above}"
    where = "below where the net dies; " if found.died_first else ""
    remark = f"{where}on other batches perhaps {low:.3g} to {above}"
    if found.lowest_failure >= low:
        return remark
    # which the median over the orders, and with it the interval, leaves aside
    return f"{remark}; one order of the data failed at {found.lowest_failure:.3g}"


def _bound_remark(advice: Advice) -> str:
    found = advice.verification
    if found is not None and found.lowest_failure < advice.bound:
        failure = f"{found.lowest_failure:.3g}"
        return f"lowered: a run failed at {failure}, below what the curvature allows"
    if advice.curvature_bound < advice.bound:
        return (
            f"the limit; the steepest curvature met is trained stably below {advice.bound:.3g}, "
            "which no run has tried"
        )
    if advice.bound < advice.rule.largest_stable_rate(advice.curvature.binding):
        return f"lowered: a few steps at {2 * advice.bound:.3g} broke the loss"
    return "the steepest curvature met is trained stably below it"


def _prediction_remark(advice: Advice) -> str:
    off = advice.limit / advice.predicted
    who = "the curvature bound is" if advice.verification is None else "the runs say"
    far = f"; {who} {off:.2g} times that" if not 1 / _FAR <= off <= _FAR else ""
    return f"{advice.prediction.reason}{far}"


def _theory_remark(advice: Advice) -> str:
    found = advice.mean_field
    if found.rate is None:
        return f"none: {found.reason}"
    words = []
    if found.fisher is not None and found.factor is not None:
        words += [
            f"lambda_max predicted {found.fisher * found.factor:.4g}: {found.fisher:.4g} of the "
            f"Fisher matrix times {found.factor:.3g} for this loss, weights alone"
        ]
    if found.frozen:
        words += [f"as if {_frozen_words(found.frozen)} trained"]
    off = advice.limit / found.rate
    if not 1 / _THEORY_FAR <= off <= _THEORY_FAR:
        words += [f"far off: the limit is {off:.2g} times that"]
    return "; ".join(words)


def _frozen_words(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return f"{names[0]}, which is frozen, were"
    return f"the {len(names)} frozen weight tensors were"


def _curvature_remark(advice: Advice) -> str:
    rule = advice.rule
    values = ", ".join(f"{value:.4g}" for value in advice.curvature.values)
    matrix = {"ggn": "Gauss-Newton matrix"}.get(advice.curvature.kind, "Hessian")
    decay = " and its weight decay" if rule.weight_decay and not rule.decoupled else ""
    scaled = "" if rule.is_exact else f"{decay} over {rule.name}'s scale"
    return f"measured: {matrix} of the loss{scaled}, all trained parameters; by batch {values}"


def _steepest_met(advice: Advice) -> list[tuple[str, str | None, str]]:
    """A row for what the bound follows from, where that is not the curvature at the start."""
    start, met = max(advice.curvature.values), advice.curvature.binding
    if met <= _STEEPER * max(start, 0.0):
        return []
    times = f", {met / start:.3g} times lambda_max at the start" if start > 0 else ""
    remark = f"after the first steps{times}; it sets the curvature bound"
    return [("steepest met", f"{met:.4g}", remark)]


def _verified_remark(advice: Advice) -> str:
    found = advice.verification
    if found is None:
        return "not asked for"
    stable = "stable" if found.low else "no rate was stable"
    above = "no instability found" if math.isinf(found.high) else f"{found.high:.3g} unstable"
    died = f"; the net died at {found.fatal:.3g}" if found.died_first else ""
    return f"{stable}, {above}{died}; {len(found.trials)} runs, {found.steps} steps"


def _steepest_remark(advice: Advice) -> str:
    largest = list(advice.shares.items())[:_SHOWN_LAYERS]
    return ", ".join(
        f"{module_label(name)} {share:.0%}" for name, share in largest if share >= 0.005
    )


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"
