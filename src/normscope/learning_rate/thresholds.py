"""Numbers that decide an answer of `max_learning_rate`, with the data that chose them.

One range test is 100 training steps on the user's batches. Networks marked as held out in a
benchmark were not used to choose any of them. "Not tuned" is a number that was set once; no data
chose it. Numbers that only choose between two wordings are where the text is, and those that only
guard against rounding where the arithmetic is.
"""

from __future__ import annotations

from dataclasses import dataclass

# What counts as unstable (stability.py)

STEPS = 100
"""Steps within which an instability counts: a definition, the length of a range test."""
SQUARED_ERROR_GROWTH = 3.0
"""Multiple of its first value above which a squared error is unstable: a definition; see
"When a run is unstable" in docs/concepts/stability_limit.md."""
GROWTH = 1.5
"""The same for all other losses, whose gradients are bounded, so that they grow more slowly."""
HOPELESS_GROWTH = 1000.0
"""With a second moment: multiple of its first value beyond which a loss does not come back (the
``divergence_factor`` of sweeps)."""
RECOVERY_STEPS = 50
"""With a second moment: steps in a row above the limit of growth after which a run is unstable;
half of a run, so that a loss that comes back later is not waited for."""
RECOVERED_STEPS = 10
"""With a second moment: last steps of a run whose median must be below the limit of growth."""
EARLY_STEPS = 20
"""An instability within these is caused by the rate; a later one depends on the data order
(benchmarks/learning_rate_chance.py: relu deep none, fc deep none, conv none)."""
COLLAPSE_EVERY = 10
"""Steps between two checks for constant outputs: the cost of a check is below 1 % of these."""
COLLAPSE_CHECKS = 2
"""Checks in a row that must find constant outputs: momentum may leave the first. Not tuned."""
SHRUNK = 0.5
"""A network whose output is constant has not collapsed if a penalty or weight decay drove it to
zero: all weights have less than this share of their norm, and the product of these shares is below
the root of the rounding error. Networks with dead units keep at least 0.76 of it in some layer,
those with a strong penalty at most 0.46, nearly all 0.1 (five small networks on the digits,
momentum 0 and 0.9, weight decay 0 to 1)."""

# The search for the limit (verification.py)

LIMIT_TOLERANCE = 0.05
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
RAMP_FACTOR, RAMP_TRIES = 64.0, 4
"""How much lower, and how many ramps there are at most. Not tuned."""
WIDENING = 1.6
"""Ratio of two rates until the limit is enclosed."""
BRACKET_START = 2.0
"""A bracket of few runs starts at this multiple of the prediction: too high in most cases, so that
the first run is unstable and ends at once. It replaces the ramp, which passed the limit by 20 to
76 times in 7 of 30 cases of benchmarks/learning_rate_accuracy.py."""
BRACKET_WIDENING = 2.5
"""Ratio of two rates of a bracket while all hold: each costs 100 steps."""
BRACKET_FAILURES, SEARCH_FAILURES = 4, 6
"""After so many failures in a row a bracket, or the long search, checks the data without training.
Not tuned."""
FAR_GROWTH, FAR_FACTOR = 30.0, 4.0
"""A run whose loss exceeds so many times the first one is far too high: the next rate of a bracket
is so much lower."""
LEAST_STEPS = 20
"""A run of a bracket may have so few steps if no more are left: most instabilities are earlier."""
LEAST_FAILURE_STEPS = 5
"""So few are left for a rate above one that held: it counts only if it is unstable within them."""
SHORT_MARGIN = 1.5
"""The interval is so much wider below a rate that held for fewer than 100 steps."""
SHORT_MOMENTUM_MARGIN = 4.0
"""In place of it with momentum of at least `STRONG_MOMENTUM` and ``effort="quick"``, whose runs end
before momentum has built up. Chosen on 12 small convolutional networks on the digits with momentum
0.5 or 0.9: the thorough limit was below the interval on 4, by up to 5.3, and is on 1."""
ONE_ORDER_MARGIN = 1.4
"""The interval is so much wider, either way, if only one data order was tried (it then holds the
onset in 90 % of the cases of benchmarks/learning_rate_accuracy.py)."""
SECOND_MOMENT_STEPS = 60
"""Steps that a bracket may take with a second moment, whose best rates are far below the limit.
With four trials of 50 steps these are the 260 of the default effort."""
FAILURE_MARGIN = 2.0
"""The curvature bound is so far below a failure that the curvature did not foresee (no bound above
the onset in the 48 cases of benchmarks/learning_rate_accuracy.py)."""

# The choice of the recommended rate (choice.py): by replaying the loss curves of the networks of
# benchmarks/learning_rate_choice.py that are not held out

CHOICE_SPACING = 2.5
"""Ratio of two rates."""
CHOICE_DIVISOR = 20.0
"""With a second moment the first rate is the predicted limit over this: the best rates of the tuned
networks with AdamW are 10 to 60 times below it."""
CHOICE_AVERAGED = 0.25
"""Last part of a trial whose mean loss is compared."""
HORIZON_FACTOR = 0.8
"""The rate that is best after 50 steps, times this, is recommended: after 500 steps lower rates are
better than after 50."""
LARGEST_SHARE = 0.5
"""Largest share of the limit that is recommended: at half of a verified limit no run broke in
thirteen trials on networks of other packages."""
CAUTIOUS_SHARE, MOMENTUM_SHARE, STRONG_MOMENTUM = 1 / 3, 0.1, 0.5
"""Share of the limit that ``effort="quick"`` recommends: the second with momentum of the third at
least. On the tuned networks half of the limit was up to 26 % worse than the best rate without
momentum, a third up to 8 %; with momentum 0.9 half was up to 41 % worse, a tenth up to 4 %."""
UNHELD_SHARE = 0.1
"""Further share that is recommended if no full run was stable (networks with AdamW, clipping
and batches of 16, on which half of the lowest failure broke)."""
CHOICE_LEARNED = 0.97
"""Share of the first loss below which something has been learned; above it lower rates are tried,
and the answer says that none lowered the loss."""
CHECK_KEPT, CHECK_STEPS = 0.8, 200
"""With weight decay: if a weight keeps less than this share of its norm in the trial nearest to the
recommended rate, a run of so many steps there checks that training learns. Of the 100 trainings of
benchmarks/learning_rate_decay.py all that learned nothing kept less; after these steps their loss
was at least `CHOICE_LEARNED` of that of a constant output, or `RISEN` times that of earlier ones,
but for one."""
CHECK_GONE = 0.1
"""Largest share of its norm that a weight has left then, below which nothing is learned if the
outputs are not known (on these networks at most 0.12 without learning, at least 0.18 with)."""
RISEN = 1.05
"""Mean loss of the last quarter of these steps over that of the second, beyond which weight decay
undoes what was learned."""
CHOICE_KEPT = 3
"""Rates that ``effort="thorough"`` tries again with more steps."""

# The advice (advice.py, advisor.py)

PREDICTION_FACTOR = 2.5
"""The interval of a prediction, either way: it holds nine of ten dev cells of
benchmarks/learning_rate_cells.py."""
PREDICTION_BATCHES = 4
"""Batches whose features the prediction uses."""


@dataclass(frozen=True)
class Effort:
    """What one value of ``effort=`` buys.

    Args:
        name: the value.
        curvature_batches: batches on which the curvature is measured; 0: it is not.
        later_steps: steps after which it is measured again.
        curvature_tolerance: on the residual of an eigenvalue.
        limit_steps: training steps that may be spent on the limit.
        choice_steps: length of a trial that chooses the recommended rate.
        total_steps: training steps of the limit and of these trials together; two trials are made
            however many the limit took.
        final_steps: length of the trials at the best of these rates; 0: none.
        bisects: whether the limit is bisected on several data orders, or only enclosed on one.
    """

    name: str
    curvature_batches: int
    later_steps: tuple[int, ...]
    limit_steps: int
    total_steps: int = 0
    choice_steps: int = 50
    final_steps: int = 0
    bisects: bool = False
    curvature_tolerance: float = 0.05


EFFORTS = {
    "quick": Effort("quick", curvature_batches=0, later_steps=(), limit_steps=30),
    "default": Effort(
        "default", curvature_batches=1, later_steps=(), limit_steps=110, total_steps=260
    ),
    "thorough": Effort(
        "thorough",
        curvature_batches=3,
        later_steps=(1, 4, 16),
        limit_steps=600,
        total_steps=1000,
        final_steps=200,
        bisects=True,
        curvature_tolerance=0.01,
    ),
}
"""By name. The steps follow from the goals: all of it within 1 range test for "quick", and within 4
for "default", which about 22 of 24 networks meet (docs/research/learning_rate_choice.md). The
tolerance of the curvature moves its largest eigenvalue by 0.2 % at most on six of them."""
OBJECTIVES = ("fastest", "half_limit")
"""What the recommended rate may be chosen by."""

# The curvature (bound.py)

CURVATURE_PRODUCTS = 80
"""Most matvecs of one search. Not tuned: the searches of benchmarks/learning_rate_choice.py whose
cost was measured took 5 to 8 with the default effort."""
HALVINGS = 6
"""Times that the rate of the later checks is halved if its steps are unstable. Not tuned."""
PLATEAU_RISE = 4.0
"""Rise of the curvature beyond which the explanation speaks of a plateau; behind those that were
seen it is 50 to 130 times as large (docs/research/learning_rate_accuracy.md)."""

# Optimizers whose rule is not known (setup.py), schedules and accumulation (around_step.py)

FIRST_STEP, FIRST_STEP_DIVIDED = 0.1, 0.5
"""Share of the weights' norm that the first step changes at the guess of a limit: at the limits of
Lion and a Muon it was 0.1 to 0.6, at those of NAdam, Adafactor, Adagrad and Adadelta 0.1 to 30
(fully connected networks on the digits, with BatchNorm and without). The second one is for those
with a second moment: a twentieth of that guess begins the ladder near the default rate of NAdam."""
CONSTANT_SCHEDULE = 1.05
"""Ratio of the largest to the smallest rate of a schedule in the first 100 steps up to which it
counts as constant, so that the limit is predicted: the tolerance of the limit."""
ENDED_SCHEDULE = 0.01
"""Share of its largest rate below which a falling schedule counts as ended. Not tuned."""
SCHEDULE_STEPS = 10_000
"""Steps of a schedule in which its largest rate is looked for; the runs see the first 100."""

JOINED_DISTANCE = 0.01
"""Relative distance of the gradient of joined batches from the mean of theirs, up to which they are
measured as one: rounding is far below, batch statistics far above."""

# The prediction (prediction.py, sample_trials.py, trial_run.py, last_layer.py)

TRIAL_STEPS = 25
"""Steps after which a rate counts as stable in a trial, each on a batch of its own (the dev cells
of benchmarks/learning_rate_cells.py: a ninth decile of 2.0 at momentum 0.9; 2.8 with 20 steps)."""
TRIAL_ENOUGH = 15
"""Steps after which it does once a lower one did, or if no more gradients are left (the networks
without normalization of benchmarks/learning_rate_cases.py)."""
TRIAL_GRADIENTS = 48
"""Gradients of all trials: at most half a range test."""
TRIAL_LEAST_GRADIENTS = 18
"""Of these for the rates, however many leaving a plateau has taken (networks without normalization
of benchmarks/learning_rate_cases.py)."""
TRIAL_SAMPLES = 32
"""Samples of a trial's batch, or a fourth of the user's if that is more; smaller batches are used
whole (16 samples were biased, 64 no better at batch 128; networks without normalization)."""
TRIAL_LATE = 8
"""An instability from this step on is one that momentum and noise build up (dev cells); an earlier
one shows a rate that is far too high."""
TRIAL_START = 8.0
"""The first rate of the trials, over the curvature along the gradient: most often too high."""
TRIAL_DIVIDED_START = 4.0
"""With a second moment the first rate is so many times the root mean square weight. Not tuned."""
TRIAL_FAR, TRIAL_NEAR = 4.0, 2.0
"""Ratios of one rate to the next while no trial held: after an instability in 7 steps, or later.
The first also shortens a step that left a number not finite, or a run that leaves a plateau."""
STEP_TRIES, PLATEAU_TRIES = 4, 3
"""How often that step and that run are tried. Not tuned."""
TRIAL_RATIO = 1.5
"""Ratio of the enclosing rates at which the trials end."""
FIRST_LOSSES = 8
"""Batches whose losses before training are known; their mean stands for the others."""
MEAN_SHARE, NOISE_SHARE, TRAINED_SHARE = 0.75, 0.2, 0.75
"""Small batches stand for whole ones if their mean loss is this share of a whole one's at least,
their losses deviate by this share at most, and the network is not trained: its loss is above this
share of its mean output's (networks without normalization)."""
DECREASED, DECREASED_TRIAL = 0.95, 0.92
"""Share of its first value at which a loss has left a plateau, on whole batches and on the few
samples of a trial, which are fitted sooner (vgg none of benchmarks/learning_rate_cases.py)."""
PLATEAU_LOGITS, PLATEAU_OUTPUTS = 0.15, 0.03
"""Deviation of the outputs below which a network may be on a plateau: of the logits, and relative
to that of the targets of a squared error (networks on a plateau have at most 0.005)."""
PLATEAU_STEPS, PLATEAU_MOMENTUM = 32, 0.9
"""Most steps in which a plateau is left, and their momentum."""
PLATEAU_CAUTION, PLATEAU_CAUTION_TRIAL = 0.1, 0.2
"""Share of the bound at which it is left, for the curvature and for the trials."""
FEATURE_SAMPLES = 512
"""Samples of the batches on which the last layer is trained; four batches if that is more."""
GRID_RATIO, GRID_POINTS = 4.0, 6
"""The last layer is trained at rates of this ratio, then near the limit at so many to each: it is
found to about 12 %. Not tuned."""
GRID_RATES, GRID_SHIFTS = 5, 5
"""Rates of the first grid, and how often it is shifted. Not tuned: they cost time only."""
CONSISTENT = 4.0
"""Largest ratio of the last layer's limits before and after one step (the dev cases of
benchmarks/learning_rate_accuracy.py)."""
LAST_LAYER_STEPS = 15
"""The last layer decides if momentum acts within so many steps, 1 / (1 - mu), and the layer breaks
within them at twice its limit (dev cells: at 0.99 it was 10 times too high or 20 too low)."""
LATE_FACTOR = 4.0
"""As `PREDICTION_FACTOR`, where trials fail late: it holds nine of ten dev cells. Also in place of
`ONE_ORDER_MARGIN` where momentum acts for more than `LAST_LAYER_STEPS` steps: limits of one order
were up to 3.6 times those of three (fully connected networks, momentum 0.99, batches of 16)."""
CONTRADICTED = 0.8
"""A prediction below this share of the curvature bound contradicts it and lowers it (dev cells:
above the onset in 2 %, in 23 % without). Predictions of quadratics are within 12 % of theirs."""
