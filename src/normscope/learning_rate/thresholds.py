"""Every number that decides an answer of `max_learning_rate`, with the data that chose it.

One range test is 100 training steps on the user's batches. The table in docs/learning_rate.md lists
these numbers. Networks marked as held out in a benchmark were not used to choose any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

# What counts as unstable (stability.py)

STEPS = 100
"""Steps within which an instability counts: a definition, the length of a range test."""
SQUARED_ERROR_GROWTH = 3.0
"""Multiple of its first value above which a squared error is unstable: a definition; see
"What unstable means" in docs/learning_rate.md."""
GROWTH = 1.5
"""The same for all other losses, whose gradients are bounded, so that they grow more slowly."""
EARLY_STEPS = 20
"""An instability within these is caused by the rate; a later one depends on the data order
(benchmarks/learning_rate_chance.py: relu deep none, fc deep none, conv none)."""
COLLAPSE_EVERY = 10
"""Steps between two checks for constant outputs: the cost of a check is below 1 % of these."""

# The search for the limit (verification.py)

TOLERANCE = 0.05
"""Relative, on a limit that is bisected to the end: part of the definition of the limit."""
RAMP_START = 1 / 8
"""Of the prediction: below the limit in all 48 cases of benchmarks/learning_rate_accuracy.py."""
RAMP_GROWTH = 1.08
"""Per step of a ramp: 2200 times in 100 steps."""
RAMP_DELAY = 2.0
"""A ramp becomes unstable at about this multiple of the limit (the dev cases of
benchmarks/learning_rate_accuracy.py)."""
RAMP_RESTART = 6
"""A ramp that becomes unstable within so many steps started too high, and is repeated lower."""
RAMP_FACTOR = 64.0
"""How much lower."""
WIDENING = 1.6
"""Ratio of two rates until the limit is enclosed."""
FAILURE_MARGIN = 2.0
"""The curvature bound is so far below a failure that the curvature did not foresee (no bound above
the onset in the 48 cases of benchmarks/learning_rate_accuracy.py)."""

# The advice (advice.py, advisor.py)

PREDICTION_FACTOR = 2.0
"""The interval of a prediction, either way: it covers most of the 48 cases of
benchmarks/learning_rate_accuracy.py."""
PREDICTION_BATCHES = 4
"""Batches whose features the prediction uses."""


@dataclass(frozen=True)
class Effort:
    """What one value of ``effort=`` buys.

    Args:
        name: the value.
        curvature_batches: batches on which the curvature is measured.
        limit_steps: training steps that may be spent on the limit.
    """

    name: str
    curvature_batches: int
    limit_steps: int


EFFORTS = {
    "quick": Effort("quick", curvature_batches=1, limit_steps=60),
    "default": Effort("default", curvature_batches=3, limit_steps=600),
    "thorough": Effort("thorough", curvature_batches=3, limit_steps=600),
}
"""By name. The steps follow from the goals: all of it within 1 range test for "quick", within 4 for
"default"."""
OBJECTIVES = ("half_limit",)
"""What the recommended rate may be chosen by."""

# Optimizers whose rule is not known (setup.py), and schedules (group_rates.py)

FIRST_STEP = 0.1
"""Share of the weights' norm that the first step changes at the guess of a limit: at the limits of
Lion, a Muon, NAdam, Adafactor, Adagrad and Adadelta it was 0.1 to 2 (fully connected networks on
the digits, with BatchNorm and without)."""
SCHEDULE_STEPS = 10_000
"""Steps of a schedule in which its largest rate is looked for; the runs see the first 100."""
