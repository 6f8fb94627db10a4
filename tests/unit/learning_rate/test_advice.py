"""The numbers and words of an advice whose parts are given."""

import math
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, RMSprop

from normscope.errors import StateError
from normscope.learning_rate import Advice, max_learning_rate
from normscope.learning_rate.bound import MeasuredCurvature
from normscope.learning_rate.choice import Choice, RateTrial
from normscope.learning_rate.prediction import LimitPrediction, MeanFieldBound
from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.summary import table_rows, table_title
from normscope.learning_rate.update_rule import UpdateRule, rule_of
from normscope.learning_rate.verification import Verification


def verified(low, high):
    runs = (ShortRun(high, 0, True, 9, 3.0),) + (
        (ShortRun(low, 1, False, 100, 1.0),) if low else ()
    )
    return Verification(low, high, runs, 0)


def advice(values=(4.0,), later=(), verification=None, rate=1.0, **rule):
    shares = {"0": 0.75, "3": 0.25}
    return Advice(
        rule=UpdateRule(**{"name": "SGD", **rule}),
        curvature=MeasuredCurvature(tuple(values), tuple(later), shares, "ggn", True, 9.0, 0.1),
        prediction=LimitPrediction(rate, "3", rate, "the last layer"),
        mean_field=MeanFieldBound(None, "no theory"),
        verification=verification,
        invariant=(),
        batch_size=64,
        growth_limit=1.5,
        seconds=0.1,
        has_second_moment=rule.get("second_moment") is not None,
    )


def row(found, quantity):
    return next(each for each in table_rows(found) if each["quantity"] == quantity)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_text_is_as_wide_as_asked_for(width):
    table, words = advice().details(width).split("\n\n")
    assert width - 12 < max(map(len, words.splitlines())) <= width
    assert " ".join(words.split("\n")) == advice().explanation
    assert max(map(len, table.splitlines())) <= width
    assert max(map(len, advice().text(width).splitlines())) <= width
    assert str(advice()) == advice().text(80)


def test_safe_rate_without_any_stable_run_is_half_the_lowest_that_failed():
    found = advice(verification=verified(0.0, 0.3))
    assert found.bound == 0.5
    assert found.curvature_bound == 0.15
    assert row(found, "curvature bound")["remark"] == (
        "a run failed at 0.3, below the bound 0.5: lowered to half that rate"
    )
    assert row(found, "verified") == {
        "quantity": "verified",
        "value": None,
        "remark": "no rate was stable, 0.3 unstable; 1 run, 9 steps",
    }
    assert "stable at no rate tried, down to 0.3" in found.explanation
    assert "stable at 0" not in found.explanation


@pytest.mark.parametrize(
    ("low", "high", "curvature_bound", "remark"),
    [
        (0.2, 0.45, 0.15, "a run failed at 0.45, below the bound 0.5: lowered to half the limit"),
        (0.2, 0.5, 0.1**0.5, "the limit; the bound itself, 0.5, was not tried"),
        (0.6, 0.7, 0.5, "a quadratic with the largest curvature measured is stable"),
    ],
)
def test_safe_rate_is_lowered_by_runs_that_failed_and_never_above_the_limit(
    low, high, curvature_bound, remark
):
    found = advice(verification=verified(low, high))
    assert found.bound == 0.5
    assert found.curvature_bound == pytest.approx(curvature_bound)
    assert found.curvature_bound <= found.limit
    assert row(found, "curvature bound")["remark"].startswith(remark)
    assert ("A run failed at 0.45 all the same" in found.explanation) == (high == 0.45)
    assert ("The limit is below that, and the curvature bound is at most" in found.explanation) == (
        high == 0.5
    )


def test_one_failure_below_the_bound_lowers_the_safe_rate_by_what_the_orders_differ():
    runs = (ShortRun(0.2, 0, True, 60, 3.0), ShortRun(0.8, 1, False, 100, 1.0))
    found = advice(verification=Verification(0.8, 1.0, runs, 0))
    assert found.curvature_bound == pytest.approx(0.2 / 4)
    assert "A run failed at 0.2 all the same" in found.explanation
    assert row(found, "curvature bound")["remark"].endswith("lowered to 0.25 times that rate")


def test_plateau_is_told():
    curvature = MeasuredCurvature((4.0,), (80.0,), {"0": 1.0}, "ggn", True, 9.0, 0.1, beyond=80.0)
    found = replace(advice(), curvature=curvature)
    assert "starts on a plateau" in found.explanation
    assert "the curvature is 20 times as large" in found.explanation
    assert found.to_dict()["lambda_max_beyond"] == 80.0


def test_rate_that_broke_the_loss_at_once_is_told():
    curvature = MeasuredCurvature((4.0,), (), {"0": 1.0}, "ggn", True, 9.0, 0.1, stable_rate=0.125)
    found = replace(advice(), curvature=curvature)
    assert found.bound == found.curvature_bound == 0.125
    told = "is stable below 0.5. A few steps at 0.25 were unstable, and the bound is 0.125"
    assert told in found.explanation
    assert row(found, "curvature bound")["remark"] == "lowered: a few steps at 0.25 were unstable"


def test_lowered_safe_rate_is_told():
    found = advice(verification=verified(0.2, 0.3))
    assert row(found, "curvature bound")["remark"] == (
        "a run failed at 0.3, below the bound 0.5: lowered to half the limit"
    )
    assert "A run failed at 0.3 all the same" in found.explanation
    assert "the curvature bound is lowered to 0.122." in found.explanation
    assert "stable at 0.2, but not at 0.3" in found.explanation


def test_interval_goes_from_the_steepest_batch_to_the_flattest():
    values = (1.0, 8.0, 2.0)
    assert advice(values).interval == pytest.approx((1.0 * 2 / 8 / 2.5, 1.0 * 2 / 1 * 2.5))
    found = advice(values, verification=verified(0.2, 0.3))
    assert found.interval == pytest.approx((0.2 * 2 / 8, 0.3 * 2 / 1))


def test_reason_of_the_interval_is_told():
    assert row(advice(), "limit")["remark"].startswith("predicted; it may be anywhere from")
    found = advice(verification=verified(0.6, 0.7))
    assert row(found, "limit")["remark"].startswith("on other batches perhaps")


def test_single_order_that_failed_below_what_the_runs_enclose_is_told():
    runs = (
        ShortRun(0.9, 0, True, 9, 3.0),  # a ramp
        ShortRun(0.5, 0, True, 9, 3.0),
        ShortRun(0.5, 1, False, 100, 1.0),
        ShortRun(0.5, 2, False, 100, 1.0),
        ShortRun(0.6, 0, False, 100, 1.0),
        ShortRun(0.7, 0, True, 9, 3.0),
    )
    found = advice(verification=Verification(0.6, 0.7, runs, 1))
    assert found.interval == (0.5, 0.7)  # the failure of one order is in it
    told = "on other batches perhaps 0.5 to 0.7; a run failed at 0.5"
    assert row(found, "limit")["remark"] == told
    same = replace(found, verification=Verification(0.5, 0.7, runs, 1))
    assert row(same, "limit")["remark"] == told
    agreed = replace(found, verification=Verification(0.4, 0.5, runs, 1))
    assert row(agreed, "limit")["remark"] == "on other batches perhaps 0.4 to 0.5"


def test_batch_that_curves_downwards_bounds_nothing():
    found = advice((4.0, 6.0, -1.0), later=(6.0,))
    assert found.interval == (0.4, math.inf)
    assert "no end found" in found.details()


@pytest.mark.parametrize("values", [(0.0, 0.0), (-1.0, -2.0)])
def test_loss_that_is_flat_but_for_weight_decay_is_told(values):
    found = advice(values, weight_decay=0.01, rate=200.0)
    assert found.curvature_bound == 200.0
    assert found.interval == (80.0, 500.0)
    assert "after the first steps" not in found.details()
    assert "has no positive curvature; its weight decay alone" in found.explanation
    later = advice(values, later=(4.0,), weight_decay=0.01)
    assert "positive only after the first steps" in later.explanation


def test_direction_is_that_of_the_start_where_later_steps_bind():
    now = advice((4.0,), later=(3.0,))
    assert "a batch of 64 is 4, 75% of its direction in layer 0; a quadratic" in now.explanation
    later = advice((4.0,), later=(8.0,))
    assert (
        "of 64 is 8, after the first steps; it is 4 at the start, 75% of its direction in layer 0;"
        in later.explanation
    )
    assert "2.0 times as large after the first steps" in later.explanation


def test_curvature_that_the_safe_rate_follows_from_has_a_row():
    steeper = advice((3.0, 4.0), later=(8.0, 5.0), momentum=0.9)
    found = row(steeper, "later lambda_max")
    assert found["value"] == "8"
    assert "after the first steps, 2 times lambda_max" in found["remark"]
    assert steeper.curvature_bound == pytest.approx(2 * 1.9 / float(found["value"]))
    assert row(steeper, "lambda_max")["value"] == "4"
    flat = row(advice((0.0,), later=(4.0,)), "later lambda_max")
    assert flat["value"] == "4"
    assert "times lambda_max" not in flat["remark"]


@pytest.mark.parametrize("values", [(4.0,), (0.0,), (-1.0,)])
@pytest.mark.parametrize("later", [(), (-2.0,)])
def test_curvature_no_steeper_than_at_the_start_has_no_second_row(values, later):
    found = advice(values, later=later, weight_decay=0.01)
    assert "later lambda_max" not in {each["quantity"] for each in table_rows(found)}


@pytest.mark.parametrize(("later", "told"), [(4.1, False), (4.2, True)])
def test_steepest_curvature_has_a_row_beyond_a_few_per_cent(later, told):
    found = advice((4.0,), later=(later,))
    assert ("later lambda_max" in {each["quantity"] for each in table_rows(found)}) is told


def test_decay_in_a_divided_gradient_is_named_with_the_matrix():
    adaptive = {"name": "Adam", "second_moment": 0.999, "weight_decay": 0.1}
    told = row(advice(**adaptive), "lambda_max")["remark"]
    assert "of the loss and its weight decay over Adam's scale" in told
    apart = row(advice(**adaptive, decoupled=True), "lambda_max")["remark"]
    assert "of the loss over Adam's scale" in apart


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (partial(Adam, betas=(0.8, 0.99)), "Adam, beta1 0.8, batch"),
        (partial(AdamW, weight_decay=0.1), "AdamW, beta1 0.9, weight decay 0.1, batch"),
        (partial(Adam, betas=(0.0, 0.99)), "Adam, batch"),
        (partial(RMSprop, momentum=0.5), "RMSprop, momentum 0.5, batch"),
        (partial(SGD, momentum=0.5), "SGD, momentum 0.5, batch"),
        (partial(SGD, momentum=0.5, dampening=0.1), "SGD, momentum 0.5, dampening 0.1, batch"),
    ],
)
def test_heading_names_the_settings_as_the_optimizer_does(optimizer, words):
    rule = rule_of(optimizer([torch.zeros(1)], lr=1e-3))
    assert table_title(advice(**vars(rule))).startswith(f"Learning rate for {words} size 64")


def test_centered_divisor_is_told():
    rule = {"name": "RMSprop", "second_moment": 0.99}
    assert "centered divisor" in advice(**rule, centered=True).explanation
    assert "centered divisor" not in advice(**rule).explanation


@pytest.mark.parametrize(("rate", "limit"), [(0.45, 0.5), (0.8, 0.8)])
def test_unverified_limit_is_not_below_the_safe_rate(rate, limit):
    found = advice(rate=rate)
    assert (found.curvature_bound, found.predicted, found.limit) == (0.5, rate, limit)
    assert found.recommended == limit / 2


def test_prediction_far_below_the_bound_lowers_it():
    found = advice(rate=0.3)
    assert (found.bound, found.curvature_bound, found.limit) == (0.5, pytest.approx(0.12), 0.3)
    assert row(found, "curvature bound")["remark"].startswith("lowered from 0.5: the prediction")
    assert "the curvature bound is lowered to 0.12, well below the prediction" in found.explanation
    late = replace(found, prediction=replace(found.prediction, rate=0.8, is_late=True))
    assert (late.curvature_bound, late.limit) == (pytest.approx(0.2), 0.8)
    assert late.interval == pytest.approx((0.2, 3.2))
    held = replace(late, verification=verified(0.6, 0.7))
    assert held.curvature_bound == pytest.approx(0.2)


def test_end_that_no_run_found_is_told():
    found = advice(
        verification=Verification(0.7, math.inf, (ShortRun(0.7, 0, False, 100, 1.0),), 0)
    )
    assert "No learning rate up to 0.7 was unstable in short runs." in found.explanation
    assert "inf" not in found.explanation


@pytest.mark.parametrize("died", [True, False])
def test_death_of_the_net_is_told(died):
    runs = (ShortRun(0.7, 0, not died, 60, 1.0, died=died), ShortRun(0.6, 0, False, 100, 1.0))
    found = advice(verification=Verification(0.6, 0.9 if died else 0.7, runs, 0))
    assert ("the network collapsed at 0.7: its output became the same" in found.explanation) is died
    assert ("at 0.6 it did not" in found.explanation) is died
    assert ("not at 0.7; 0.324 is recommended" in found.explanation) is not died
    assert ("; the network collapsed at 0.7; 2 runs" in " ".join(found.details().split())) is died
    assert "one data order" not in found.details()
    assert (
        "below where the network collapses; on other" in " ".join(found.details().split())
    ) is died


def test_limit_and_interval_end_below_where_the_net_dies():
    runs = (
        ShortRun(0.2, 0, False, 100, 1.0),
        ShortRun(0.3, 0, False, 60, 1.0, died=True),
        ShortRun(0.8, 0, False, 60, 1.0, died=True),
        ShortRun(0.9, 0, True, 9, 3.0),
    )
    found = advice(verification=Verification(0.8, 0.9, runs, 0))
    assert found.limit == pytest.approx(0.06**0.5)
    assert found.recommended == pytest.approx(0.06**0.5 / 2)
    assert found.interval == (0.2, 0.3)
    assert found.verified == (0.8, 0.9)
    assert found.to_dict()["died_at"] == 0.3
    assert "unstable from 0.9 on" in found.explanation
    assert "A run failed at 0.3 all the same: the network collapsed, and" in found.explanation
    endless = replace(found, verification=Verification(0.8, math.inf, runs[1:3], 0))
    assert "so did it at every rate tried" in endless.explanation
    assert "was unstable at no rate tried" in endless.explanation


@pytest.mark.parametrize(
    ("rate", "margin", "above"),
    [(0.9, True, False), (1.0, False, False), (1.1, False, True)],  # the curvature bound is 0.5
)
def test_recommended_rate_is_set_against_the_safe_one(rate, margin, above):
    told = advice(rate=rate).explanation
    assert ("it has no margin, unlike half the limit, which is lower" in told) is margin
    assert ("is above the curvature bound. Prefer" in told) is above
    assert "is stable below 0.5, the curvature bound" in told
    assert "were unstable" not in told


@pytest.mark.parametrize(
    ("rate", "invariant", "reason"),
    [
        (0.70, (), None),
        (0.80, (), "the loss may jump at first"),
        (0.80, ("0.weight",), "75% of the top direction at the start is in weights"),
        (0.80, ("3.weight",), "25% of the top direction at the start is in weights"),
        (
            0.80,
            ("4.weight",),
            "the loss may jump at first",
        ),  # of which the steepest direction has nothing
    ],
)
def test_limit_far_above_the_safe_rate_has_a_reason(rate, invariant, reason):
    told = replace(advice(rate=rate), invariant=invariant).explanation
    assert ("The limit is 1.6 times that" in told) is (reason is not None)
    assert "The limit is 1.4" not in told
    if reason is not None:
        assert reason in told


@pytest.mark.parametrize(
    ("worst", "told"),
    [(1.04, "the loss did not rise"), (1.4, "the loss rose to at most 1.4 times its first")],
)
def test_what_the_runs_beyond_the_safe_rate_saw_is_told(worst, told):
    runs = (
        ShortRun(9.0, 0, True, 40, 8.0),  # the ramp
        ShortRun(0.4, 0, False, 100, 2.0),  # below the curvature bound
        ShortRun(0.9, 0, False, 100, worst),
        ShortRun(1.0, 0, True, 10, 3.0),
    )
    found = advice(verification=Verification(0.9, 1.0, runs, 1))
    assert found.curvature_bound == 0.5
    assert told in found.explanation


def test_runs_of_which_none_held_beyond_the_safe_rate_are_told():
    found = advice(verification=verified(0.45, 2.0))
    assert found.limit > 1.5 * found.curvature_bound
    assert "no run beyond the curvature bound held" in found.explanation


def test_lowered_safe_rate_needs_no_other_reason():
    found = advice(verification=verified(0.2, 0.3))
    assert found.limit / found.curvature_bound == pytest.approx(2.0)
    assert "times that" not in found.explanation


def test_net_a_little_steeper_beyond_began_on_no_plateau():
    curvature = MeasuredCurvature((4.0,), (6.0,), {"0": 1.0}, "ggn", True, 9.0, 0.1, beyond=6.0)
    told = replace(advice(), curvature=curvature).explanation
    assert "plateau" not in told
    assert "1.5 times as large after the first steps" in told


@pytest.mark.parametrize(("later", "told"), [(4.3, False), (4.5, True)])
def test_curvature_that_grows_by_more_than_a_tenth_is_told(later, told):
    found = advice((4.0,), later=(later,))
    assert ("they, not the start, determine the bound" in found.explanation) is told


@pytest.mark.parametrize(
    ("norms", "gamma", "batch"),
    [((), "normalization layers, whose gamma", False)]
    + [((each,), "a smaller gamma of the last", True) for each in ("batch", "noisy", "l2")]
    + [((each,), "a smaller gamma of the last", False) for each in ("layer", "other")]
    + [(("batch", "layer"), "a smaller gamma of the last", True)],
)
def test_what_would_change_it_depends_on_the_norms(norms, gamma, batch):
    told = replace(advice(), norms=norms, scaled_layer="0").explanation
    assert f"What would change it: {gamma}" in told
    assert ("hardly changed the limit of the BatchNorm" in told) is batch
    assert ("by noisy statistics, the curvature bound" in told) is batch
    assert ("large ones hardly raise it" in told) is not batch


@pytest.mark.parametrize("layer", [None, "3"])  # layer 0 has the largest share
def test_gamma_is_named_only_if_it_scales_the_layer_with_the_largest_share(layer):
    told = replace(advice(), norms=("batch",), scaled_layer=layer).explanation
    assert "What would change it: another normalization" in told
    assert "gamma" not in told


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (0.24, "far off: the limit is 4.2 times that"),
        (0.26, ""),
        (3.9, ""),
        (5.0, "far off: the limit is 0.2 times that"),
    ],
)
def test_theory_far_off_the_limit_is_said_to_be(rate, words):
    found = replace(advice(), mean_field=MeanFieldBound(rate, "head"))
    assert found.limit == 1.0
    assert row(found, "theory")["remark"] == words


@pytest.mark.parametrize(
    ("frozen", "words"),
    [
        ((), ""),
        (("0.weight",), "; as if 0.weight, which is frozen, were trained"),
        (("0.weight", "2.weight"), "; as if the 2 frozen weight tensors were trained"),
    ],
)
def test_theory_is_said_to_count_frozen_weights(frozen, words):
    found = replace(advice(), mean_field=MeanFieldBound(0.5, "head", 2.0, 2.0, frozen))
    assert row(found, "theory")["remark"].endswith(f"for this loss, weights alone{words}")
    assert found.to_dict()["theory_frozen"] == list(frozen)


def test_plain_data_tell_the_bound_from_the_lowered_safe_rate():
    plain = advice(later=(3.0, 2.0), verification=verified(0.2, 0.3)).to_dict()
    assert (plain["bound"], plain["curvature_bound"]) == (0.5, pytest.approx(math.sqrt(0.06) / 2))
    assert plain["verified"] == [0.2, 0.3]
    assert plain["lambda_max_later"] == [3.0, 2.0]
    assert plain["exact"] is True
    assert advice(name="Adam", second_moment=0.999).to_dict()["exact"] is False


def test_dataset_tells_ramps_from_runs_and_holds_the_theory():
    runs = (ShortRun(0.9, 0, True, 30, 3.0), *verified(0.2, 0.3).all_runs)
    found = replace(
        advice(verification=Verification(0.2, 0.3, runs, 1)), mean_field=MeanFieldBound(0.4, "")
    )
    data = found.to_xarray()
    assert data["is_ramp"].values.tolist() == [True, False, False]
    assert data["rate"].values.tolist() == [0.9, 0.3, 0.2]
    assert data.attrs["theory"] == 0.4
    assert math.isnan(advice().to_xarray().attrs["theory"])
    assert (data.attrs["low"], data.attrs["high"]) == found.interval


@pytest.mark.parametrize(
    ("rate", "ends", "words"),
    [
        (0.9, (1.9, 2.1), "the last layer; the runs found 2.2 times that"),
        (1.1, (1.9, 2.1), "the last layer"),
        (3.9, (1.9, 2.1), "the last layer"),
        (4.1, (1.9, 2.1), "the last layer; the runs found 0.49 times that"),
    ],
)
def test_prediction_far_off_the_limit_is_said_to_be(rate, ends, words):
    found = advice(rate=rate, verification=verified(*ends))
    assert row(found, "predicted")["remark"] == words


def test_advice_without_curvature_and_prediction_is_that_of_the_runs():
    found = replace(
        advice(verification=verified(0.2, 0.3)),
        curvature=None,
        prediction=None,
        curvature_reason="the rule of Lion is not known",
        prediction_reason="the rule of Lion is not known",
    )
    assert (found.bound, found.curvature_bound, found.predicted) == (None, None, None)
    assert found.limit == pytest.approx(0.06**0.5)
    assert found.interval == (0.2, 0.3)
    assert found.shares == {}
    for quantity in ("curvature bound", "predicted"):
        expected = {"value": None, "remark": "none: the rule of Lion is not known"}
        assert row(found, quantity) == {"quantity": quantity, **expected}
    assert "There is no curvature bound: the rule of Lion is not known." in found.explanation
    plain = found.to_dict()
    assert (plain["bound"], plain["predicted"], plain["lambda_max"]) == (None, None, [])
    assert plain["predicted_reason"] == plain["curvature_reason"] == "the rule of Lion is not known"
    assert found.scalars()["lambda_max"] is None
    assert math.isnan(found.to_xarray().attrs["predicted"])
    assert found.plot().get_xlabel() == "learning rate"


def lines(found):
    """The three lines, without their names."""
    names = ("recommended  ", "limit        ", "found by     ")
    shown = str(found).splitlines()
    assert len(shown) == 3
    assert all(len(line) <= 80 for line in shown)
    assert all(line.startswith(name) for line, name in zip(shown, names, strict=True))
    return [line[13:] for line in shown]


def test_answer_has_three_lines():
    best, limit, how = lines(advice(verification=verified(0.2, 0.3)))
    assert best == "0.122, half the limit"
    assert limit == "0.245; on other batches perhaps 0.2 to 0.3"
    assert how == "2 runs, 109 steps, 0.1 s; SGD, batch size 64"


def test_answer_says_how_the_rate_was_chosen():
    trials = (RateTrial(0.1, 50, 1.5), RateTrial(0.2, 50, 2.5, reused=True))
    choice = Choice(0.08, 1.5, 50, trials, 50)
    found = replace(advice(verification=verified(0.2, 0.3)), choice=choice, objective="fastest")
    best, _, how = lines(found)
    assert found.recommended == 0.08
    assert best == "0.08, near the best of 2 rates (0.1: loss 1.5 at step 50)"
    assert how == "3 runs, 159 steps, 0.1 s; SGD, batch size 64"
    assert row(found, "loss at 0.2")["value"] == "2.5"
    assert "Recommended is 0.08: of 2 rates, 0.1 had the lowest loss" in found.explanation
    assert "half the limit" not in found.explanation
    assert found.to_dict()["choice"]["trials"][0]["loss"] == 1.5


@pytest.mark.parametrize(
    ("found", "limit", "how"),
    [
        (None, "1 predicted, perhaps 0.4 to 2.5", "not verified: predicted without runs; "),
        (verified(0.0, 0.3), "not verified: no full run was stable; below 0.3", "1 run, 9 steps, "),
        (
            Verification(0.7, math.inf, (ShortRun(0.7, 0, False, 100, 1.0),), 0),
            "above 0.7: no run was unstable up to 0.7",
            "1 run, 100 steps, ",
        ),
    ],
)
def test_answer_says_what_was_not_verified(found, limit, how):
    shown = lines(advice(verification=found))
    assert shown[1] == limit
    assert shown[2].startswith(how)


def test_answer_says_that_the_network_collapses():
    runs = (ShortRun(0.7, 0, False, 60, 1.0, died=True), ShortRun(0.6, 0, False, 100, 1.0))
    shown = lines(advice(verification=Verification(0.6, 0.9, runs, 0)))
    assert shown[1] == "0.648, below a collapse; perhaps 0.6 to 0.7"


def test_ramp_that_failed_below_a_rate_that_held_is_named():
    runs = (ShortRun(2.84, 0, True, 20, 2.0), ShortRun(3.6, 0, False, 100, 1.0))
    found = advice(verification=Verification(3.6, math.inf, runs, 1, 1.4))
    assert lines(found)[1] == "above 2.57: a run held at 3.6; a growing rate failed at 2.84"
    assert "stable at 3.6; a growing rate failed at 2.84." in found.explanation
    assert "was unstable" not in found.explanation
    enclosed = replace(found, verification=Verification(3.6, 5.0, runs, 1, 1.4))
    assert lines(enclosed)[1].endswith("2.57 to 7; a growing rate failed at 2.84")


def test_order_that_failed_at_the_largest_rate_that_held_is_named():
    runs = (ShortRun(0.7, 0, True, 20, 2.0), ShortRun(0.7, 1, False, 100, 1.0))
    found = advice(verification=Verification(0.7, math.inf, runs, 0))
    assert lines(found)[1] == "above 0.7: a run held at 0.7; a run failed at 0.7"


def test_curvature_bound_at_the_end_of_the_interval_is_not_called_the_limit():
    found = advice(verification=replace(verified(0.3, 0.6), margin=1.4))
    assert found.curvature_bound == pytest.approx(0.3 / 1.4)
    remark = "the lower end of the limit's interval; the bound itself, 0.5, was not tried"
    assert row(found, "curvature bound")["remark"] == remark
    assert "The limit's interval begins below that, at 0.214" in found.explanation


@pytest.mark.parametrize("moment", [None, 0.999])
def test_rate_near_the_curvature_bound_is_preferred_without_a_second_moment(moment):
    found = advice(verification=verified(0.7, math.inf), second_moment=moment)
    found = replace(found, calibrated=False)
    assert ("prefer a rate near the curvature bound" in found.explanation) == (moment is None)
    assert "prefer" not in replace(found, curvature=None).explanation


def test_explanation_has_the_steps_that_were_run():
    found = advice(verification=verified(0.0, 0.3))
    assert "In runs of up to 9 steps training was stable at no rate tried" in found.explanation
    assert "In runs of 100 steps" in advice(verification=verified(0.2, 0.3)).explanation


def test_trials_without_an_instability_are_not_a_prediction():
    open_ended = LimitPrediction(1.0, None, None, "no rate up to 1 was unstable", is_lower_end=True)
    found = replace(advice(), prediction=open_ended)
    assert found.predicted is None
    assert (found.limit, found.recommended) == (1.0, 0.5)
    assert found.interval == (0.4, math.inf)
    _, limit, how = lines(found)
    assert limit == "above 1: not predicted, no trial on a few samples was unstable"
    assert how.startswith("not verified: a few trial steps; ")
    assert row(found, "predicted") == {
        "quantity": "predicted",
        "value": None,
        "remark": "none: no rate up to 1 was unstable",
    }
    assert "cannot be predicted: no rate up to 1 was unstable" in found.explanation
    assert found.to_dict()["predicted"] is None
    assert math.isnan(found.to_xarray().attrs["predicted"])


def test_prediction_with_a_second_moment_has_no_upper_end():
    found = advice(name="Adam", second_moment=0.999)
    assert found.interval == (found.limit / 2.5, math.inf)
    assert (
        lines(found)[1] == f"{found.limit:.3g} predicted, perhaps {found.interval[0]:.3g} or more"
    )


def test_html_has_the_answer_first_and_the_table_folded():
    html = advice()._repr_html_()
    assert html.index("recommended") < html.index("<details>") < html.index("<table>")


def test_advice_needs_a_prediction_or_runs():
    with pytest.raises(StateError, match=r"cannot be predicted \(unknown rule\).*verify=True"):
        replace(advice(), prediction=None, prediction_reason="unknown rule")


def test_seconds_are_those_of_the_call():
    line = torch.nn.Linear(1, 1, bias=False)
    data = (torch.full((4, 1), 2.0), torch.full((4, 1), 20.0))
    begin = time.perf_counter()
    found = max_learning_rate(line, "squared_error", data, verify=False)
    assert 0 < found.seconds <= time.perf_counter() - begin


OPEN = Verification(0.8, math.inf, (ShortRun(0.8, 0, False, 30, 1.0),), 0, 1.4)


@pytest.mark.parametrize(
    ("found", "predicted", "rule", "expected", "words"),
    [
        (verified(0.8, 1.25), 1.0, {}, 1 / 3, "a third of the limit"),
        (verified(0.8, 1.25), 1.0, {"momentum": 0.9}, 0.1, "a tenth of the limit"),
        (replace(verified(0.8, 1.25), margin=4.0), 1.0, {}, 0.2, "the lower end of the"),
        (verified(0.0, 0.4), 1.0, {}, 0.02, "0.05 times the limit: no rate held"),
        (OPEN, 0.5, {}, 0.5 / 3, "a third of the predicted limit"),
        (OPEN, 0.5, {"momentum": 0.9}, 0.05, "a tenth of the predicted limit"),
        (OPEN, 4.0, {}, 0.8 / 3, "a third of the limit"),
        (verified(0.8, 1.25), 1.0, {"name": "Adam", "second_moment": 0.999}, 0.05, "far below"),
    ],
)
def test_few_runs_recommend_with_caution(found, predicted, rule, expected, words):
    made = replace(advice(verification=found, rate=predicted, **rule), objective="cautious")
    assert made.recommended == pytest.approx(expected)
    assert lines(made)[0].startswith(f"{made.recommended:.3g}, {words}")
    assert replace(made, objective="half_limit").recommended == made.limit / 2
