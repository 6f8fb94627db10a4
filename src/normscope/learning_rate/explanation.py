"""The advice in words: where the number comes from, and what would change it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from normscope.learning_rate.advice_table import module_label
from normscope.learning_rate.onset import STEPS

if TYPE_CHECKING:
    from normscope.learning_rate.advice import Advice
    from normscope.learning_rate.verified import Verification

__all__ = ["explained"]

_LOOSE = 1.5  # a limit this far above the curvature bound needs a reason
_STEEPER = 1.1
_RISEN = 1.05  # of the first loss: less is the difference between batches
_OVER_THE_BATCH = {"batch", "noisy", "l1", "l2", "linf"}


def explained(advice: Advice) -> str:
    """One paragraph about an advice.

    Args:
        advice: the numbers.

    Returns:
        Full sentences.
    """
    sentences = [
        _limit(advice),
        _criterion(advice),
        _bound(advice),
        _gap(advice),
        _above_bound(advice),
        _sharpening(advice),
        _estimate(advice),
        _changes(advice),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _limit(advice: Advice) -> str:
    if advice.verification is None:
        return (
            f"Training is expected to become unstable near {advice.limit:.3g}, from "
            f"{advice.prediction.reason}; no run has verified it. Half of that is recommended."
        )
    found = advice.verification
    if found.died_first:
        return _death(found)
    if math.isinf(found.high):
        return f"No learning rate up to {found.low:.3g} was unstable in short runs."
    if found.low == 0:
        return (
            "In runs of 100 steps on copies training was stable at no rate tried, down to "
            f"{found.high:.3g}, which is taken for the limit; half of it is recommended, which no "
            "run has tried."
        )
    return (
        f"In runs of 100 steps on copies training was stable at {found.low:.3g}, but not at "
        f"{found.high:.3g}; half the limit is recommended."
    )


def _death(found: Verification) -> str:
    """Of a net that dies at rates that are not unstable yet."""
    alive, fatal = found.ends
    where = f"at {alive:.3g} it lived" if alive else "at no rate tried did it live"
    above = "at no rate tried" if math.isinf(found.high) else f"from {found.high:.3g} on"
    return (
        f"In runs of 100 steps on copies the net died at {fatal:.3g}: its output became the same "
        f"for every sample, and it learned nothing more; {where}. Its loss, which then stays where "
        f"it is, was unstable {above}. The limit is below its death; half of it is recommended."
    )


def _criterion(advice: Advice) -> str:
    """What counts as unstable: sweeps have another limit, which is why it is said."""
    if advice.growth_limit is None:
        return ""
    return (
        f"Unstable: within {STEPS} steps the loss is not finite, or beyond {advice.growth_limit:g} "
        "times its first value."
    )


def _bound(advice: Advice) -> str:
    curvature = advice.curvature
    name, share = next(iter(advice.shares.items()))
    bound, curved = advice.bound, advice.rule.largest_stable_rate(curvature.binding)
    start = max(curvature.values)
    place = f"{share:.0%} of its direction in {module_label(name)}"
    if curvature.binding > start:  # the direction is known at the start only
        place = f"after the first steps; it is {start:.4g} at the start, {place}"
    text = (
        f"The steepest curvature that a batch of {advice.batch_size} meets is "
        f"{curvature.binding:.4g}, {place}; a quadratic that steep is trained stably below "
        f"{curved:.3g}"
    )
    if curvature.binding <= 0:
        text = (
            f"The loss of a batch of {advice.batch_size} curves upwards in no direction; its "
            f"weight decay alone is trained stably below {curved:.3g}"
        )
    if bound < curved:
        text += f". A few steps at {2 * bound:.3g} broke the loss, and the bound is {bound:.3g}"
    found = advice.verification
    if found is not None and found.lowest_failure < bound:
        died = found.lowest_failure == found.fatal
        why = "the net died" if died else "the net grows steeper later"
        return (
            f"{text}. A run failed at {found.lowest_failure:.3g} all the same: {why}, and the "
            f"curvature bound is lowered to {advice.curvature_bound:.3g}."
        )
    if advice.curvature_bound < bound:
        return f"{text}. The limit is below that, and the curvature bound no more than the limit."
    if advice.recommended < advice.curvature_bound:
        return (
            f"{text}, the curvature bound; it has no margin, unlike half the limit, which is lower."
        )
    return f"{text}, the curvature bound."


def _gap(advice: Advice) -> str:
    factor = advice.limit / advice.curvature_bound
    if factor < _LOOSE or advice.curvature_bound < advice.bound:
        return ""
    modules = {name.rpartition(".")[0] for name in advice.invariant}
    share = sum(part for name, part in advice.shares.items() if name in modules)
    if share > 0.2:
        return (
            f"The limit is {factor:.1f} times that: {share:.0%} of the steepest direction at the "
            "start lies in weights that feed a norm layer, whose length does not matter; a step "
            "too large lengthens them and thereby shrinks the next."
        )
    return f"The limit is {factor:.1f} times that: {_beyond_bound(advice)}"


def _beyond_bound(advice: Advice) -> str:
    """What the runs between the curvature bound and the limit saw."""
    found = advice.verification
    if found is None:
        return "beyond the curvature bound the loss may jump at first."
    runs = found.trials[found.ramps :]
    beyond = [run.worst for run in runs if not run.failed and run.rate > advice.curvature_bound]
    if not beyond:
        return (
            "no run beyond the curvature bound held; the limit is the middle of what they enclose."
        )
    worst = max(beyond)
    if worst <= _RISEN:
        return "the runs beyond the curvature bound that held saw no rise of the loss."
    return (
        f"in the runs beyond the curvature bound that held, the loss rose to at most {worst:.2g} "
        "times its first value."
    )


def _above_bound(advice: Advice) -> str:
    """Why the recommended rate may be above the curvature bound, and when to take which."""
    if advice.recommended <= advice.curvature_bound:
        return ""
    if advice.verification is None:
        return (
            "The recommended rate is above the curvature bound. That is no contradiction: below "
            "the bound the curvature of the first steps is enough to expect stability; up to the "
            "limit it takes the prediction. Prefer the curvature bound until a run has verified "
            "the limit."
        )
    return (
        "The recommended rate is above the curvature bound. That is no contradiction: up to the "
        "bound the curvature of the first steps is enough to expect stability, and the short runs "
        "were stable beyond it. Prefer the curvature bound where the loss must not jump at first, "
        "or where a run that breaks after more than 100 steps would cost much."
    )


def _sharpening(advice: Advice) -> str:
    start, binding = max(advice.curvature.values), advice.curvature.binding
    if binding <= _STEEPER * max(start, 0.0):
        return ""
    if advice.curvature.begins_flat and advice.curvature.beyond:
        return (
            "The net begins on a plateau: its loss stands still for some steps, and where it has "
            f"begun to fall the curvature is {advice.curvature.beyond / start:.0f} times as large."
        )
    if start <= 0:
        return "The curvature is positive after the first steps only: they, not the start, bind."
    return (
        f"The curvature is {binding / start:.1f} times as large after the first steps "
        "as at the start: they, not the start, bind."
    )


def _estimate(advice: Advice) -> str:
    if advice.rule.is_exact:
        return ""
    centered = (
        " A centered divisor also shrinks as gradients come to agree, which lowers the onset."
    )
    return (
        f"For {advice.rule.name} the curvature bound is an estimate: its divisor changes with "
        "every gradient, which the curvature at one moment does not know."
        f"{centered if advice.rule.centered else ''}"
    )


def _changes(advice: Advice) -> str:
    """What would move the numbers, as measured on the nets of docs/learning_rate.md."""
    batches = "Small batches lower the limit, large ones hardly raise it."
    if not advice.norms:
        return (
            "What would change it: normalization layers, whose gamma then sets the scale (compare "
            "shows by how much); smaller weights; fewer layers, since depth usually makes a net "
            f"steeper. {batches}"
        )
    depth = "Depth usually makes a net steeper and the curvature bound lower"
    if _OVER_THE_BATCH & set(advice.norms):
        depth += ", but hardly moved the limit of the BatchNorm nets measured"
        batches = (
            "Small batches lower the limit and, by their noisy statistics, the curvature bound."
        )
    return (
        "What would change it: a smaller gamma of the last norm layer, since the curvature of the "
        "last layer goes as its square; another normalization (compare shows which). "
        f"{batches} {depth}."
    )
