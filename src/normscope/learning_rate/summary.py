"""An advice as three lines and as rows of a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from normscope.learning_rate.bound import MeasuredCurvature
from normscope.learning_rate.choice import Choice
from normscope.learning_rate.thresholds import MOMENTUM_SHARE, STEPS, Effort
from normscope.learning_rate.update_rule import UpdateRule
from normscope.learning_rate.verification import Verification
from normscope.text import format_duration, plural

if TYPE_CHECKING:
    from normscope.learning_rate.advice import Advice


def summary_lines(advice: Advice) -> list[str]:
    """Return the answer in three lines: the recommended rate, the limit, how they were found.

    A sentence follows for each thing that the rates depend on, such as a schedule.
    """
    lines = {
        "recommended": f"{advice.recommended:.3g}, {_recommended_remark(advice)}",
        "limit": _limit_summary(advice),
        "found by": _how_found(advice),
    }
    return [*(f"{name:<13}{text}" for name, text in lines.items()), *advice.notes]


def _recommended_remark(advice: Advice) -> str:
    choice = advice.choice
    if advice.check is not None and advice.check.learned_nothing:
        return f"but nothing is learned there in {advice.check.steps} steps"
    if choice is None:
        return _share_remark(advice)
    count = len(choice.trials)
    if not choice.learned and advice.effort == "quick":
        return f"below the lowest rate tried, {choice.lowest:.3g}: none lowered the loss"
    if not choice.learned:
        return f"but none of {count} rates lowered the loss"
    with_options = f", warm-up {choice.warmup}" if choice.warmup is not None else ""
    if choice.weight_decay is not None:
        with_options += f", weight decay {choice.weight_decay:g}"
    if with_options:
        return f"near the best of {count} rates{with_options}"
    if choice.untried:
        return f"near the best of {count} rates; {choice.untried} ones were not tried"
    best = min(choice.trials, key=lambda each: (-each.steps, each.loss))
    reached = f"{best.rate:.3g}: loss {best.loss:.3g} at step {best.steps}"
    return f"near the best of {count} rates ({reached})"


def _share_remark(advice: Advice) -> str:
    """Return which share of the limit is recommended, without trials of rates."""
    if advice.verification is not None and not advice.verification.interval[0]:
        return f"{advice.recommended / advice.limit:.2g} times the limit: no rate held"
    if advice.has_second_moment and advice.objective != "half_limit":
        return f"far below the limit, as the best rates of {advice.rule.name} are"
    if advice.objective == "half_limit" or advice.verification is None:
        return "half the limit"
    if advice.recommended == advice.verification.interval[0]:
        return "the lower end of the limit's interval"
    share = "a third" if advice.cautious_share > MOMENTUM_SHARE else "a tenth"
    is_limit = advice.recommended == advice.limit * advice.cautious_share
    return f"{share} of the {'' if is_limit else 'predicted '}limit"


def _limit_summary(advice: Advice) -> str:
    found, (low, high) = advice.verification, advice.interval
    if found is None and advice.predicted is None:
        return f"above {advice.limit:.3g}: not predicted, no trial on a few samples was unstable"
    if found is None:
        return f"{advice.limit:.3g} predicted, perhaps {_range(low, high)}"
    if math.isinf(found.ends[1]):
        return f"above {low:.3g}: {_none_unstable(advice, found)}"
    if found.ends[0] == 0:
        return f"not verified: no full run was stable; below {advice.limit:.3g}"
    failure = failure_below(found)
    where = ", below a collapse; perhaps" if found.collapsed_first else "; on other batches perhaps"
    where = "; perhaps" if failure else where  # to fit into one line
    return f"{advice.limit:.3g}{where} {_range(low, high)}{failure}"


def _none_unstable(advice: Advice, found: Verification) -> str:
    """Return up to which rate no run was unstable, or which run failed below that rate."""
    if found.known_failure > advice.limit:
        return f"no run was unstable up to {advice.limit:.3g}"
    return f"a run held at {advice.limit:.3g}{failure_below(found)}"


def failure_below(found: Verification) -> str:
    """Return which run failed below the rates that hold the limit, if one did."""
    if found.known_failure > found.limit or found.known_failure >= found.ends[1]:
        return ""
    if found.known_failure < found.lowest_failure:
        return f"; a growing rate failed at {found.known_failure:.3g}"
    return f"; a run failed at {found.known_failure:.3g}"


def _range(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}" if math.isfinite(high) else f"{low:.3g} or more"


def _how_found(advice: Advice) -> str:
    found = advice.verification
    momentum = 0.0 if advice.has_second_moment else advice.rule.momentum
    moving = f" {momentum:g}" if momentum else ""
    setting = f"{advice.rule.name}{moving}, batch size {advice.batch_size}"
    seconds = format_duration(advice.seconds)
    if found is None:
        how = "a few trial steps" if advice.predicted is None else "predicted without runs"
        return f"not verified: {how}; {seconds}; {setting}"
    spent, trials = 0, 0
    if advice.choice is not None:
        spent = advice.choice.spent
        trials = sum(not each.reused for each in advice.choice.trials)
    if advice.check is not None:
        spent, trials = spent + advice.check.steps, trials + 1
    runs = plural(len(found.all_runs) + trials, "run")
    return f"{runs}, {plural(found.steps + spent, 'step')}, {seconds}; {setting}"


def _choice_rows(advice: Advice) -> list[tuple[str, str | None, str]]:
    """Return a row of the table for each rate that was tried for the recommended one."""
    trials = () if advice.choice is None else advice.choice.trials
    return [
        (f"loss at {each.rate:.3g}", _rate(each.loss), f"mean of the last of {each.steps} steps")
        if math.isfinite(each.loss)
        else (f"loss at {each.rate:.3g}", None, "unstable")
        for each in trials
    ] + _option_rows(advice)


def _option_rows(advice: Advice) -> list[tuple[str, str | None, str]]:
    options = () if advice.choice is None else advice.choice.options
    return [
        (
            f"{each.option.replace('_', ' ')} {each.value:g}",
            _rate(each.loss) if math.isfinite(each.loss) else None,
            f"loss after {each.steps} steps{'; recommended' if each.chosen else ''}",
        )
        for each in options
    ]


def table_title(advice: Advice) -> str:
    """Return the title of the table: optimizer and batch size."""
    kind = "" if advice.rule.is_exact or advice.rule.unknown else ", an estimate"
    return f"Learning rate for {advice.rule}, batch size {advice.batch_size}{kind}"


def table_rows(advice: Advice) -> list[dict[str, str | None]]:
    """Return quantity, value and remark of each row of the table."""
    found = advice.verification
    rows: list[tuple[str, str | None, str]] = [
        ("recommended", f"{advice.recommended:.3g}", _recommended_remark(advice)),
        ("limit", f"{advice.limit:.3g}", _limit_remark(advice)),
        ("curvature bound", _rate(advice.curvature_bound), _bound_remark(advice)),
        ("predicted", _rate(advice.predicted), _prediction_remark(advice)),
        ("theory", _rate(advice.theory), _theory_remark(advice)),
        ("verified", _rate(found.low or None if found else None), _verified_remark(found)),
        *_curvature_rows(advice),
        *_choice_rows(advice),
    ]
    return [dict(zip(("quantity", "value", "remark"), row, strict=True)) for row in rows]


def _limit_remark(advice: Advice) -> str:
    low, high = advice.interval
    above = f"{high:.3g}" if math.isfinite(high) else "no end found"
    found = advice.verification
    if found is None:
        how = "predicted" if advice.predicted is not None else "at least: no trial was unstable"
        return f"{how}; it may be anywhere from {low:.3g} to {above}"
    where = "below where the network collapses; " if found.collapsed_first else ""
    return f"{where}on other batches perhaps {low:.3g} to {above}{failure_below(found)}"


def _bound_remark(advice: Advice) -> str:
    found, bound, lowered = advice.verification, advice.bound, advice.curvature_bound
    if advice.curvature is None or bound is None or lowered is None:
        return f"none: {advice.curvature_reason}"
    if lowered_by_prediction(advice):
        return f"lowered from {bound:.3g}: the prediction, with noise and momentum, is lower"
    if found is not None and found.lowest_failure < bound:
        base = "that rate" if found.lowest_failure <= found.limit else "the limit"
        divisor = min(found.lowest_failure, found.limit) / lowered
        share = "half" if divisor < 2.005 else f"{1 / divisor:.2g} times"
        failed = f"a run failed at {found.lowest_failure:.3g}, below the bound {bound:.3g}"
        return f"{failed}: lowered to {share} {base}"
    if found is not None and lowered < bound:
        end = "the limit" if lowered == found.limit else "the lower end of the limit's interval"
        return f"{end}; the bound itself, {bound:.3g}, was not tried"
    if bound < advice.rule.largest_stable_rate(advice.curvature.largest):
        return f"lowered: a few steps at {2 * bound:.3g} were unstable"
    return "a quadratic with the largest curvature measured is stable below it"


def lowered_by_prediction(advice: Advice) -> bool:
    """Return whether the curvature bound is what the prediction leaves of it."""
    if advice.prediction is None or advice.bound is None:
        return False
    return advice.curvature_bound == advice.prediction.lowered_bound(advice.bound) < advice.bound


def _prediction_remark(advice: Advice) -> str:
    if advice.prediction is None:
        return f"none: {advice.prediction_reason}"
    if advice.prediction.is_lower_end:
        return f"none: {advice.prediction.reason}"
    ratio = advice.limit / advice.prediction.rate
    source = "the curvature bound is" if advice.verification is None else "the runs found"
    far = f"; {source} {ratio:.2g} times that" if not 1 / 2 <= ratio <= 2 else ""
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
    if len(found.frozen) == 1:
        words += [f"as if {found.frozen[0]}, which is frozen, were trained"]
    elif found.frozen:
        words += [f"as if the {len(found.frozen)} frozen weight tensors were trained"]
    ratio = advice.limit / found.rate
    if not 1 / 4 <= ratio <= 4:
        words += [f"far off: the limit is {ratio:.2g} times that"]
    return "; ".join(words)


def _curvature_rows(advice: Advice) -> list[tuple[str, str | None, str]]:
    """Return the rows of the measured curvature, if there is one."""
    curvature = advice.curvature
    if curvature is None:
        return []
    return [
        ("lambda_max", f"{max(curvature.values):.4g}", _curvature_remark(advice.rule, curvature)),
        *_later_row(curvature),
        ("top direction", "", _shares_remark(advice)),
    ]


def _curvature_remark(rule: UpdateRule, curvature: MeasuredCurvature) -> str:
    values = ", ".join(f"{value:.4g}" for value in curvature.values)
    matrix = {"ggn": "Gauss-Newton matrix"}.get(curvature.kind, "Hessian")
    decay = " and its weight decay" if rule.weight_decay and not rule.decoupled else ""
    scaled = "" if rule.is_exact else f"{decay} over {rule.name}'s scale"
    return f"measured: {matrix} of the loss{scaled}, all trained parameters; by batch {values}"


def _later_row(curvature: MeasuredCurvature) -> list[tuple[str, str | None, str]]:
    """Return a row for the largest eigenvalue, if it was measured after the first steps."""
    start, largest = max(curvature.values), curvature.largest
    if largest <= 1.03 * max(start, 0.0):
        return []
    times = f", {largest / start:.3g} times lambda_max at the start" if start > 0 else ""
    remark = f"after the first steps{times}; it determines the curvature bound"
    return [("later lambda_max", f"{largest:.4g}", remark)]


def _verified_remark(found: Verification | None) -> str:
    if found is None:
        return "not asked for"
    stable = "stable" if found.low else "no rate was stable"
    above = "no instability found" if math.isinf(found.high) else f"{found.high:.3g} unstable"
    collapse = f"; the network collapsed at {found.ends[1]:.3g}" if found.collapsed_first else ""
    count = f"{plural(len(found.all_runs), 'run')}, {plural(found.steps, 'step')}"
    return f"{stable}, {above}{collapse}; {count}"


def _shares_remark(advice: Advice) -> str:
    largest = list(advice.shares.items())[:5]
    return ", ".join(
        f"{module_label(name)} {share:.0%}" for name, share in largest if share >= 0.005
    )


def module_label(name: str) -> str:
    """Return a module's name, or its number in a Sequential with the word layer.

    >>> module_label("4"), module_label("features.0"), module_label("")
    ('layer 4', 'features.0', 'the model itself')
    """
    if not name:
        return "the model itself"
    return f"layer {name}" if name[0].isdigit() else name


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


def limit_notes(found: Verification | None, effort: Effort) -> list[str]:
    """Return what the runs leave open: data orders that were not tried, or later steps.

    A limit that short runs enclose has an interval that is wider for it.

    Args:
        found: the runs, if there are any.
        effort: that they were made with.
    """
    if found is None:
        return []
    return [*_shrinking_note(found), *_open_notes(found, effort)]


def _shrinking_note(found: Verification) -> list[str]:
    """Return the lowest rate run at which a penalty drove the weights to zero, if one did."""
    lowest = min((run.rate for run in found.runs if run.shrunk), default=None)
    if lowest is None:
        return []
    return [
        f"The penalty on the weights drove them to zero within {STEPS} steps at {lowest:.3g}, the "
        "lowest such rate that was run: stable, but nothing is learned; use less weight decay."
    ]


def _open_notes(found: Verification, effort: Effort) -> list[str]:
    longest = max((run.steps for run in found.all_runs), default=0)
    is_quick = effort.limit_steps < STEPS
    if longest >= STEPS or not (is_quick or math.isinf(found.ends[1])):
        return []
    return [
        f"Not verified over {STEPS} steps: no run had more than {longest}. Training may break "
        f'later; effort="{"default" if is_quick else "thorough"}" tries more.'
    ]


def unlearned_note(choice: Choice | None, effort: Effort, rule: UpdateRule) -> list[str]:
    """Return the sentence that no rate lowered the loss, if none did, and what may help.

    Args:
        choice: the rates that were tried; None if all runs failed.
        effort: that they were tried with.
        rule: of the optimizer.
    """
    if choice is not None and choice.learned:
        return []
    steps = effort.choice_steps if choice is None else choice.steps
    text = f"No rate tried lowered the loss in {steps} steps"
    if choice is None or effort.name == "quick":
        return [f"{text}: a lower one is recommended, which no run has tried."]
    decay = ["less weight decay"] if rule.weight_decay else []
    longer = [] if effort.name == "thorough" else ['effort="thorough"']
    remedies = " or ".join(decay + longer) or "another initialization"
    return [f"{text}, so that nothing may be learned at the recommended one: try {remedies}."]
