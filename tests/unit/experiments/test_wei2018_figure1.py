"""Figure 1 at a small size: its data set, its panels and its verdicts."""

from dataclasses import replace

import pytest

from normscope.experiments import EXPERIMENTS, run

SIZES = {"width": 60, "channels": (6, 8, 10), "samples": (120, 40)}


@pytest.fixture(scope="module")
def result():
    gammas = {"gammas": (0.5, 1.0, 2.0), "measured_gammas": (0.5, 1.0)}
    return run("wei2018/figure1", seeds=3, **gammas, **SIZES)


def test_theory_and_measurement_stand_side_by_side(result):
    results = result.dataset
    assert results["lambda_max"].dims == ("architecture", "closure", "gamma")
    assert results["lambda_max_measured"].dims == (
        "architecture",
        "mode",
        "measured_gamma",
        "seed",
    )
    theory = results["lambda_max"].sel(architecture="fully_connected", closure="train", gamma=1.0)
    found = results["lambda_max_measured"].sel(architecture="fully_connected", mode="train")
    assert float(found.sel(measured_gamma=1.0)[0]) == pytest.approx(float(theory), rel=0.2)
    rates = results["max_learning_rate"] * results["lambda_max"]
    assert float(rates.min()) == pytest.approx(3.8)
    assert float(rates.max()) == pytest.approx(3.8)


def test_figure_has_four_panels(result):
    figure = result.figure()
    assert [axes.get_title(loc="left")[:3] for axes in figure.axes] == ["(a)", "(b)", "(c)", "(d)"]
    # three closures, two lines without normalization, two modes measured and one without
    assert all(len(axes.lines) == 8 for axes in figure.axes)


def test_verdicts_follow_the_numbers(result):
    judge = EXPERIMENTS["wei2018/figure1"].claims
    by_text = {claim.text: claim for claim in judge(result.dataset)}
    gamma = next(claim for text, claim in by_text.items() if text.startswith("the smaller gamma"))
    assert gamma.holds is True
    turned = result.dataset.copy(deep=True)
    turned["max_learning_rate_measured"] = 1 / turned["max_learning_rate_measured"]
    turned["lambda_max_measured"] = 2 * turned["lambda_max_measured"]
    verdicts = {claim.text: claim.holds for claim in judge(turned)}
    assert verdicts[gamma.text] is False
    train = next(text for text in verdicts if text.startswith("the train closure"))
    assert verdicts[train] is False


def test_verdicts_of_a_quick_run_say_that_they_are_of_one(result):
    _, said, *verdicts = str(result).splitlines()
    assert "shows that everything runs" in said
    assert len(verdicts) == len(result.claims) == 5
    assert all("reproduced in this quick run: " in line for line in verdicts)
    assert "holds in every measured network, 3 seeds)" in verdicts[0]  # the paper's come first
    small = str(replace(result, scale="small")).splitlines()
    assert all("reproduced: " in line for line in small[1:])
