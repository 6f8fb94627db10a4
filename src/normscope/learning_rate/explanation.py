"""An advice as three lines, as rows of a table and as a paragraph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from normscope.learning_rate.bound import MeasuredCurvature
from normscope.learning_rate.thresholds import MOMENTUM_SHARE, STEPS
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
    if choice is None:
        return _share_remark(advice)
    if not choice.learned:
        return f"below the lowest rate tried, {choice.lowest:.3g}: none lowered the loss"
    count = len(choice.trials)
    with_options = f", warm-up {choice.warmup}" if choice.warmup is not None else ""
    if choice.weight_decay is not None:
        with_options += f", weight decay {choice.weight_decay:g}"
    if with_options:
        return f"near the best of {count} rates{with_options}"
    best = min(choice.trials, key=lambda each: (-each.steps, each.loss))
    reached = f"{best.rate:.3g}: loss {best.loss:.3g} at step {best.steps}"
    return f"near the best of {count} rates ({reached})"


def _share_remark(advice: Advice) -> str:
    """Return which share of the limit is recommended, without trials of rates."""
    if advice.verification is not None and not advice.verification.interval[0]:
        return f"{advice.recommended / advice.limit:.2g} times the limit: no rate held"
    if advice.rule.second_moment is not None and advice.objective != "half_limit":
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
    failure = _failure_below(found)
    where = ", below a collapse; perhaps" if found.collapsed_first else "; on other batches perhaps"
    where = "; perhaps" if failure else where  # to fit into one line
    return f"{advice.limit:.3g}{where} {_range(low, high)}{failure}"


def _none_unstable(advice: Advice, found: Verification) -> str:
    """Return up to which rate no run was unstable, or which run failed below that rate."""
    if found.known_failure > advice.limit:
        return f"no run was unstable up to {advice.limit:.3g}"
    return f"a run held at {advice.limit:.3g}{_failure_below(found)}"


def _failure_below(found: Verification) -> str:
    """Return which run failed below the rates that hold the limit, if one did."""
    if found.known_failure > found.limit or found.known_failure >= found.ends[1]:
        return ""
    if found.known_failure < found.lowest_failure:
        return f"; a growing rate failed at {found.known_failure:.3g}"
    return f"; one data order failed at {found.known_failure:.3g}"


def _range(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}" if math.isfinite(high) else f"{low:.3g} or more"


def _how_found(advice: Advice) -> str:
    found = advice.verification
    momentum = advice.rule.momentum if advice.rule.second_moment is None else 0.0
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
    runs = plural(len(found.all_runs) + trials, "run")
    return f"{runs}, {plural(found.steps + spent, 'step')}, {seconds}; {setting}"


def choice_rows(advice: Advice) -> list[tuple[str, str | None, str]]:
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
        *choice_rows(advice),
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
    return f"{where}on other batches perhaps {low:.3g} to {above}{_failure_below(found)}"


def _bound_remark(advice: Advice) -> str:
    found, bound, lowered = advice.verification, advice.bound, advice.curvature_bound
    if advice.curvature is None or bound is None or lowered is None:
        return f"none: {advice.curvature_reason}"
    if _lowered_by_prediction(advice):
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


def _lowered_by_prediction(advice: Advice) -> bool:
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
        f"{_module_label(name)} {share:.0%}" for name, share in largest if share >= 0.005
    )


def _module_label(name: str) -> str:
    """Return a module's name, or its number in a Sequential with the word layer.

    >>> _module_label("4"), _module_label("features.0"), _module_label("")
    ('layer 4', 'features.0', 'the model itself')
    """
    if not name:
        return "the model itself"
    return f"layer {name}" if name[0].isdigit() else name


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


def explain(advice: Advice) -> str:
    """Return a paragraph: where the numbers come from, and what would change them."""
    sentences = [
        _explain_limit(advice),
        _explain_choice(advice),
        *advice.notes,
        _explain_criterion(advice),
        _explain_held(advice),
        _explain_bound(advice),
        *_explain_difference(advice),
        "" if advice.curvature is None else _explain_later_curvature(advice.curvature),
        "" if advice.curvature is None else _explain_estimate(advice.rule),
        _explain_changes(advice),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _explain_limit(advice: Advice) -> str:
    found = advice.verification
    if found is None:
        if advice.prediction is not None and advice.predicted is None:
            return (
                f"The limit cannot be predicted: {advice.prediction.reason}. Half of that rate is "
                "recommended; runs (verify=True) find the limit."
            )
        source = "" if advice.prediction is None else f", from {advice.prediction.reason}"
        return (
            f"Training is expected to become unstable near {advice.limit:.3g}{source}; no run has "
            "verified it. Half of that is recommended."
        )
    if math.isinf(found.high) and not found.collapsed_first:
        return _explain_open_limit(advice, found)
    longest = max((each.steps for each in found.all_runs), default=STEPS)
    runs = f"In runs of {'' if longest >= STEPS else 'up to '}{plural(longest, 'step')}"
    if found.collapsed_first:
        usable, lowest = found.ends
        where = f"at {usable:.3g} it did not" if usable else "so did it at every rate tried"
        above = "at no rate tried" if math.isinf(found.high) else f"from {found.high:.3g} on"
        half = "" if advice.choice else f"; {advice.recommended:.3g} is recommended"
        return (
            f"{runs} the network collapsed at {lowest:.3g}: its output became the same for every "
            f"sample, and it learned nothing more; {where}. Its loss was unstable {above}. The "
            f"limit is below the collapse{half}."
        )
    if found.low == 0:
        half = ""
        if advice.choice is None:
            half = f"; {advice.recommended:.3g}, which no run has tried, is recommended"
        return (
            f"{runs} training was stable at no rate tried, down to {found.high:.3g}, which is "
            f"taken as the limit{half}."
        )
    half = "" if advice.choice else f"; {advice.recommended:.3g} is recommended"
    return f"{runs} training was stable at {found.low:.3g}, but not at {found.high:.3g}{half}."


def _explain_open_limit(advice: Advice, found: Verification) -> str:
    """Return what is known of a limit above all rates tried."""
    if found.known_failure <= found.low:
        return f"In short runs training was stable at {found.low:.3g}{_failure_below(found)}."
    text = f"No learning rate up to {found.low:.3g} was unstable in short runs."
    if advice.calibrated:
        return text
    # the best rates with a second moment are far below the curvature bound
    if advice.curvature_bound is None or advice.rule.second_moment is not None:
        return f"{text} If the loss is bounded, none is."
    return f"{text} If the loss is bounded, none is: prefer a rate near the curvature bound."


def _explain_choice(advice: Advice) -> str:
    """Return how the recommended rate was chosen, unless it is half the limit."""
    choice = advice.choice
    if choice is None:
        return ""
    if not choice.learned:
        return (
            f"Recommended is {choice.rate:.3g}, below the lowest rate tried, {choice.lowest:.3g}."
        )
    best = min(choice.trials, key=lambda each: (-each.steps, each.loss))
    return (
        f"Recommended is {choice.rate:.3g}: of {len(choice.trials)} rates, {best.rate:.3g} had the "
        f"lowest loss after {best.steps} steps, {best.loss:.3g}; over more steps slightly lower "
        "rates are better."
    )


def _explain_criterion(advice: Advice) -> str:
    if advice.growth_limit is None:
        return ""
    text = (
        f"Unstable: within {STEPS} steps the loss is not finite, or beyond {advice.growth_limit:g} "
        "times its first value."
    )
    if advice.rule.second_moment is not None:
        text += f" With {advice.rule.name} a loss that comes back is stable."
    if advice.calibrated:
        return text
    return (
        f"{text} This multiple and the prediction are calibrated on the cross-entropy and the "
        "squared error, not on this loss."
    )


def _explain_held(advice: Advice) -> str:
    """Return which norm layers use their running statistics, if any does."""
    if not advice.held:
        return ""
    several = len(advice.held) > 1
    which = f"{len(advice.held)} norm layers are" if several else f"{advice.held[0]} is"
    return (
        f"{which[0].upper()}{which[1:]} in eval mode: {'they divide' if several else 'it divides'} "
        "by running statistics, which are constants and do not stabilize training."
    )


def _explain_bound(advice: Advice) -> str:
    found, bound, curvature = advice.verification, advice.curvature_bound, advice.curvature
    if curvature is None or bound is None or advice.bound is None:
        return f"There is no curvature bound: {advice.curvature_reason}."
    text = _explain_curvature(advice, curvature, advice.bound)
    if _lowered_by_prediction(advice):
        return (
            f"{text}. The prediction, which counts the noise of the batches and momentum, is below "
            f"that: the curvature bound is lowered to {bound:.3g}, well below the prediction."
        )
    if found is not None and found.lowest_failure < advice.bound:
        collapsed = found.lowest_failure == found.lowest_collapse
        why = "the network collapsed" if collapsed else "its curvature grows later"
        return (
            f"{text}. A run failed at {found.lowest_failure:.3g} all the same: {why}, and the "
            f"curvature bound is lowered to {bound:.3g}."
        )
    if bound < advice.bound:
        if found is not None and bound == found.limit:
            return f"{text}. The limit is below that, and the curvature bound is at most the limit."
        return (
            f"{text}. The limit's interval begins below that, at {bound:.3g}: the curvature bound."
        )
    other = "half the limit" if advice.choice is None else "the recommended rate"
    margin = f"; it has no margin, unlike {other}, which is lower"
    return f"{text}, the curvature bound{margin if advice.recommended < bound else ''}."


def _explain_curvature(advice: Advice, curvature: MeasuredCurvature, bound: float) -> str:
    """Return a sentence without its end: the largest curvature and the rate that it allows."""
    allowed, start = advice.rule.largest_stable_rate(curvature.largest), max(curvature.values)
    name, share = next(iter(advice.shares.items()))
    where = f"{share:.0%} of its direction in {_module_label(name)}"
    size = curvature.batch_size or advice.batch_size  # without that of accumulation, if not joined
    if curvature.largest > start:  # the direction is known at the start only
        where = f"after the first steps; it is {start:.4g} at the start, {where}"
    text = (
        f"The largest curvature of a batch of {size} is {curvature.largest:.4g}, "
        f"{where}; a quadratic with that curvature is stable below {allowed:.3g}"
    )
    if curvature.largest <= 0:
        text = (
            f"The loss of a batch of {size} has no positive curvature; its weight "
            f"decay alone is stable below {allowed:.3g}"
        )
    if bound < allowed:
        text += f". A few steps at {2 * bound:.3g} were unstable, and the bound is {bound:.3g}"
    return text


def _explain_difference(advice: Advice) -> list[str]:
    """Return why limit and recommended rate differ from the curvature bound, if they do."""
    if advice.hooked:
        return [
            "The parameters or modules have gradient hooks: they run in every training step, but "
            "do not count in the curvature bound and the theory; those of modules do not count in "
            "the prediction either, only in short runs."
        ]
    bound = advice.curvature_bound
    if bound is None or advice.bound is None:
        return []
    gap = "" if bound < advice.bound else _explain_gap(advice, bound)
    return [gap, _explain_recommendation(advice, bound)]


def _explain_gap(advice: Advice, bound: float) -> str:
    """Return why the limit is at least 1.5 times the curvature bound, if it is."""
    factor = advice.limit / bound
    if factor < 1.5:
        return ""
    modules = {name.rpartition(".")[0] for name in advice.invariant or ()}
    share = sum(part for name, part in advice.shares.items() if name in modules)
    reason = _beyond_bound(advice.verification, bound)
    if share > 0.2:
        which = "that feed a norm layer, whose" if advice.norms else "whose"
        reason = (
            f"{share:.0%} of the top direction at the start is in weights {which} length does not "
            "matter; a step too large lengthens them, which shrinks the next."
        )
    return f"The limit is {factor:.1f} times that: {reason}"


def _beyond_bound(found: Verification | None, bound: float) -> str:
    """Return what the runs between the curvature bound and the limit showed."""
    if found is None:
        return "beyond the curvature bound the loss may jump at first."
    held = [run.worst for run in found.runs if not run.failed and run.rate > bound]
    if not held:
        return "no run beyond the curvature bound held; the limit is the middle of the rates tried."
    worst = max(held)
    # batches differ by 5 % without any rise
    rise = f"rose to at most {worst:.2g} times its first value" if worst > 1.05 else "did not rise"
    return f"in the runs beyond the curvature bound that held, the loss {rise}."


def _explain_recommendation(advice: Advice, bound: float) -> str:
    """Return when to prefer the curvature bound, if the recommended rate is above it."""
    if advice.recommended <= bound:
        return ""
    if advice.verification is None:
        return (
            "The recommended rate, which follows from the prediction, is above the curvature "
            "bound. Prefer the curvature bound until a run has verified the limit."
        )
    return (
        "The recommended rate is above the curvature bound: the short runs were stable there. "
        "Prefer the curvature bound where the loss must not jump at first, or where a run that "
        f"breaks after more than {STEPS} steps would cost much."
    )


def _explain_later_curvature(curvature: MeasuredCurvature) -> str:
    start = max(curvature.values)
    if curvature.largest <= 1.1 * max(start, 0.0):
        return ""
    if curvature.starts_on_plateau and curvature.beyond:
        return (
            "The network starts on a plateau: its loss is constant for some steps, and once it "
            f"decreases the curvature is {curvature.beyond / start:.0f} times as large."
        )
    if start <= 0:
        return "The curvature is positive only after the first steps, which determine the bound."
    return (
        f"The curvature is {curvature.largest / start:.1f} times as large after the first steps "
        "as at the start: they, not the start, determine the bound."
    )


def _explain_estimate(rule: UpdateRule) -> str:
    if rule.is_exact:
        return ""
    centered = " A centered divisor also shrinks as gradients agree, which lowers the limit."
    return (
        f"For {rule.name} the curvature bound is an estimate: its divisor changes with every "
        f"gradient.{centered if rule.centered else ''}"
    )


def _explain_changes(advice: Advice) -> str:
    """Return what would change the numbers, as docs/learning_rate.md measures."""
    batches = "Small batches lower the limit, large ones hardly raise it."
    if not advice.norms:
        layers = (
            "the norm layers in train mode"
            if advice.held
            else "normalization layers, whose gamma then sets the scale (compare shows by how much)"
        )
        return (
            f"What would change it: {layers}; smaller weights; fewer layers, since depth usually "
            f"increases the curvature. {batches}"
        )
    depth = "Depth usually increases the curvature and lowers the curvature bound"
    if {"batch", "noisy", "l1", "l2", "linf"} & set(advice.norms):
        depth += ", but hardly changed the limit of the BatchNorm networks measured"
        batches = "Small batches lower the limit and, by noisy statistics, the curvature bound."
    gamma = ""
    if advice.scaled_layer is not None and advice.scaled_layer == next(iter(advice.shares), None):
        gamma = (
            "a smaller gamma of the last norm layer, since the curvature of the last layer goes as "
            "its square; "
        )
    return (
        f"What would change it: {gamma}another normalization (compare shows which). "
        f"{batches} {depth}."
    )
