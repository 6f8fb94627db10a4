"""An advice as a paragraph: why its numbers are what they are, and what would change them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from normscope.learning_rate.bound import MeasuredCurvature
from normscope.learning_rate.summary import failure_below, lowered_by_prediction, module_label
from normscope.learning_rate.thresholds import STEPS
from normscope.learning_rate.update_rule import UpdateRule
from normscope.learning_rate.verification import Verification
from normscope.text import plural

if TYPE_CHECKING:
    from normscope.learning_rate.advice import Advice


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
        return f"In short runs training was stable at {found.low:.3g}{failure_below(found)}."
    text = f"No learning rate up to {found.low:.3g} was unstable in short runs."
    if advice.calibrated:
        return text
    # the best rates with a second moment are far below the curvature bound
    if advice.curvature_bound is None or advice.has_second_moment:
        return f"{text} If the loss is bounded, none is."
    return f"{text} If the loss is bounded, none is: prefer a rate near the curvature bound."


def _explain_choice(advice: Advice) -> str:
    """Return how the recommended rate was chosen, unless it is half the limit."""
    choice = advice.choice
    if choice is None:
        return ""
    if not choice.learned and advice.effort == "quick":
        return (
            f"Recommended is {choice.rate:.3g}, below the lowest rate tried, {choice.lowest:.3g}."
        )
    best = min(choice.trials, key=lambda each: (-each.steps, each.loss))
    is_open = choice.learned and choice.untried
    open_end = f" No {choice.untried} one was tried." if is_open else ""
    return (
        f"Recommended is {choice.rate:.3g}: of {len(choice.trials)} rates, {best.rate:.3g} had the "
        f"lowest loss after {best.steps} steps, {best.loss:.3g}"
        f"{'; over more steps slightly lower rates are better' if choice.learned else ''}."
        f"{open_end}"
    )


def _explain_criterion(advice: Advice) -> str:
    if advice.growth_limit is None:
        return ""
    text = (
        f"Unstable: within {STEPS} steps the loss is not finite, or beyond {advice.growth_limit:g} "
        "times its first value."
    )
    if advice.has_second_moment:
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
    if lowered_by_prediction(advice):
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
    where = f"{share:.0%} of its direction in {module_label(name)}"
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
