"""Figures 2, 3 and 4 at a small size: their data sets, their boundaries, their verdicts."""

import numpy as np
import pytest
import xarray as xr

from normscope.experiments import EXPERIMENTS, run
from normscope.results import Store

RATES = np.array([0.01, 0.1, 1.0, 10.0])
FINE = np.geomspace(0.01, 10.0, 31)  # steps of 0.1 decades
GAMMAS = np.array([0.5, 1.0, 2.0])


def made_up(limits, best=0.1, theory=None, grid=RATES):
    """A diagram with boundaries at the limits and the lowest loss at one rate."""
    rates = grid[None, :, None]
    shape = (3, len(grid), 2)
    exploded = np.broadcast_to(rates > np.array(limits)[:, None, None], shape).copy()
    loss = 1 + np.log10(rates / best) ** 2 + GAMMAS[:, None, None] * np.ones((1, 1, 2))
    line = np.array(limits if theory is None else theory, dtype=float)
    return xr.Dataset(
        {
            "diverged": (("gamma", "learning_rate", "seed"), exploded),
            "test_loss": (
                ("gamma", "learning_rate", "seed"),
                np.where(exploded, np.nan, np.broadcast_to(loss, exploded.shape)),
            ),
            "critical_learning_rate": (("closure", "gamma"), np.stack([line, 30 * line])),
        },
        {
            "gamma": GAMMAS,
            "learning_rate": grid,
            "seed": [0, 1],
            "closure": ["train", "printed"],
        },
    )


def both(panel):
    return panel.expand_dims(loss=["squared_error"])


def judged(panel):
    """Claims of Figure 2: of the train closure, of the printed one, and of the best rate."""
    claims = EXPERIMENTS["wei2018/figure2_mnist_fully_connected"].claims(both(panel))
    return [claims[0], claims[1], claims[3]]  # the best rate against the train closure


def assert_boundary(panel, expected):
    """The measured boundary is there in the rows in which it is expected, and nowhere else."""
    line = xr.full_like(panel["critical_learning_rate"], 1.0) * np.array(expected)
    train, *_ = judged(panel.assign(critical_learning_rate=line))
    known = np.isfinite(expected).sum()
    if not known:
        assert train.measured == "0 of 3 rows have both"
        return
    assert f"worst 0.00 decades in {known} of 3 rows" in train.measured
    everywhere = panel.assign(critical_learning_rate=line.fillna(1.0))
    assert f"in {known} of 3 rows" in judged(everywhere)[0].measured


def test_boundary_lies_between_the_last_stable_and_the_first_exploded_rate():
    # no run exploded in the last row
    assert_boundary(made_up([0.05, 0.5, 50.0]), [np.sqrt(0.001), np.sqrt(0.1), np.nan])
    assert_boundary(made_up([1e-9] * 3), [np.nan] * 3)


def test_one_seed_that_explodes_is_enough():
    panel = made_up([5.0] * 3)
    panel["diverged"][0, 1, 1] = True
    assert_boundary(panel, [np.sqrt(0.001), np.sqrt(10), np.sqrt(10)])


def test_order_of_the_rates_is_no_matter():
    panel = made_up([0.05, 0.5, 50.0])
    turned = panel.isel(learning_rate=[2, 0, 3, 1])
    assert_boundary(turned, [np.sqrt(0.001), np.sqrt(0.1), np.nan])
    assert [str(claim) for claim in judged(turned)] == [str(claim) for claim in judged(panel)]


def test_failed_cells_are_not_stable():
    panel = made_up([0.5, 0.5, 0.5])  # stable at 0.01 and 0.1, exploded from 1 on
    panel["test_loss"][0, 1, 0] = np.nan  # one seed failed at 0.1
    panel["test_loss"][1, :2] = np.nan  # nothing below is known
    assert_boundary(panel, [np.sqrt(0.01), np.nan, np.sqrt(0.1)])  # between 0.01 and 1
    rates = panel.assign(critical_learning_rate=panel["critical_learning_rate"] * 0 + 0.02)
    # the best rates are 0.01 and 0.1, and half the critical one is 0.01
    assert "median 0.50, worst 1.00 decades in 2 rows" in judged(rates)[2].measured


def test_cells_without_a_result_did_not_diverge():
    panel = made_up([0.5, 0.5, 0.5])  # stable at 0.01 and 0.1, exploded from 1 on
    panel["diverged"] = panel["diverged"].astype(float)
    panel["diverged"][0, 1] = np.nan  # as in a sweep that goes on: nothing is known at 0.1
    panel["test_loss"][0, 1] = np.nan
    assert_boundary(panel, [np.sqrt(0.01), np.sqrt(0.1), np.sqrt(0.1)])  # between 0.01 and 1


def test_best_rate_is_judged_by_the_median_and_the_worst_is_told():
    panel = made_up([5.0] * 3, best=0.1, theory=[0.2, 0.2, 2000.0])
    *_, claim = judged(panel)
    assert claim.holds is None  # the best rate is known to half a decade
    assert claim.resolve == "a finer grid of learning rates"
    fine = made_up([5.0] * 3, best=0.1, theory=[0.2, 0.2, 2000.0], grid=FINE)
    assert judged(fine)[2].holds is True
    assert "by the median over the rows" in claim.text
    assert "median 0.00, worst 4.00 decades in 3 rows" in claim.measured
    assert "grid step 1.00 decades" in claim.measured
    # 1 decade below, 1 and 2 above: at least half a decade, wherever the best rates are
    far = made_up([5.0] * 3, best=0.1, theory=[0.02, 2.0, 20.0])
    assert judged(far)[2].holds is False


@pytest.mark.parametrize(
    ("limits", "holds"),
    [
        ([5.0, 0.5, 0.05], True),
        ([5.0, 5.0, 0.05], True),
        ([0.5, 0.5, 0.5], None),  # flat: what falls is less than a bracket
        ([0.5, 5.0, 0.05], False),
        ([0.05, 0.5, 5.0], False),
        ([5.0, 0.5, 50.0], None),  # two rows have a boundary
    ],
)
def test_larger_weights_must_lower_the_boundary(limits, holds):
    panel = both(made_up(limits)).rename(gamma="sigma_w")
    *_, claim = EXPERIMENTS["wei2018/figure3"].claims(panel)
    assert claim.text.startswith("the larger the initial weights")
    assert claim.holds is holds
    assert holds is None or "grid step 1.00 decades" in claim.measured
    assert (holds is None) == bool(claim.resolve)


def curves(losses):
    """Final training losses (gamma, seed) as Figure 4 has them."""
    values = np.array(losses, dtype=float)[None]
    gammas = [0.1, 0.5, 1.0, 2.0][: values.shape[1]]
    return xr.Dataset(
        {"train_loss": (("model", "gamma", "seed"), values)},
        {"model": ["vgg16"], "gamma": gammas, "seed": list(range(values.shape[2]))},
    )


def test_gamma_that_loses_seeds_does_not_converge_faster():
    judge = EXPERIMENTS["wei2018/figure4"].claims
    (faster,) = judge(curves([[1, 1], [2, 2], [3, 3]]))
    assert faster.holds is True
    (slower,) = judge(curves([[3, 3], [2, 2], [1, 1]]))
    assert slower.holds is False
    lost = [[0.1, np.nan], [3, 3], [2, 2], [1, 1]]
    (partly,) = judge(curves(lost))
    assert partly.holds is False
    assert "not every seed ended at gamma 0.1" in partly.measured
    (few,) = judge(curves([[1, 1], [2, 2]]))
    assert few.holds is None


def test_curve_ends_where_a_seed_diverged():
    steps = np.array([[[[3.0, 2.0, 1.0], [3.0, np.nan, np.nan]]]])
    found = xr.Dataset(
        {
            "loss": (("model", "gamma", "seed", "step"), steps),
            "test_accuracy_by_epoch": (("model", "gamma", "seed", "epoch"), steps[..., :2]),
        },
        {"model": ["vgg16"], "gamma": [1.0], "seed": [0, 1], "step": [0, 1, 2], "epoch": [1, 2]},
    )
    drawn = EXPERIMENTS["wei2018/figure4"].figure(found).axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(drawn, [3.0, np.nan, np.nan])


def test_agreement_is_measured_in_decades():
    measured = [np.sqrt(0.001), np.sqrt(0.1), np.sqrt(10)]
    panel = made_up([0.05, 0.5, 5.0], theory=measured)
    train, printed, _ = judged(panel)
    assert train.holds is None  # boundaries are known to half a decade, a factor of 3
    assert "bisection" in train.resolve
    assert "median 0.00, worst 0.00 decades in 3 of 3 rows, grid step 1.00" in train.measured
    assert printed.holds is False
    assert "median 1.48" in printed.measured
    near = made_up([0.05, 0.5, 5.0], theory=[0.05, 0.5, 5.0], grid=FINE)
    assert judged(near)[0].holds is True
    one_far = made_up([0.05, 0.5, 5.0], theory=[0.05, 0.5, 30.0], grid=FINE)
    assert judged(one_far)[0].verdict == "partly"
    most_far = made_up([0.05, 0.5, 5.0], theory=[0.05, 3.0, 30.0], grid=FINE)
    assert judged(most_far)[0].holds is False
    assert [each.origin for each in judged(near)] == [
        "beyond the paper",
        "paper",
        *["beyond the paper"],
    ]


def test_bisected_boundaries_are_judged_where_they_are():
    panel = made_up([0.05, 0.5, 5.0], theory=[0.05, 0.5, 5.0])
    search = {
        "boundary_low": (("boundary_gamma", "boundary_seed"), [[0.049, 0.06], [0.49, 0.7]]),
        "boundary_high": (("boundary_gamma", "boundary_seed"), [[0.051, 0.062], [0.51, 0.72]]),
        "boundary_theory": (("closure", "boundary_gamma"), [[0.06, 0.6], [0.2, 9.0]]),
    }
    train, printed, _ = judged(panel.assign(search))
    assert train.holds is True
    assert (
        "worst 0.08 decades in 2 of 2 rows, bisected, brackets of at most 0.017" in train.measured
    )
    assert printed.holds is False


def test_verdicts_follow_the_numbers():
    judge = EXPERIMENTS["wei2018/figure2_mnist_fully_connected"].claims
    panel = made_up([0.3, 0.3, 0.3], best=0.1, theory=[0.2, 0.2, 0.2], grid=FINE)
    verdicts = {claim.text: claim.holds for claim in judge(both(panel))}
    lower = "the smaller gamma, the lower the test loss it can reach (squared_error)"
    assert verdicts[lower] is None  # three rows have no interval
    best = next(
        text
        for text in verdicts
        if text.endswith("(train closure, squared_error)") and "best" in text
    )
    assert verdicts[best] is True
    assert "worst 0.00 decades in 3 rows" in judged(panel)[2].measured  # 0.1 in each row
    turned = panel.assign(test_loss=10 - panel["test_loss"])
    verdicts = {claim.text: claim.holds for claim in judge(both(turned))}
    assert verdicts[best] is False
    for each, holds in ((panel, True), (turned, False)):
        as_numbers = each.assign(diverged=each["diverged"].astype(float))
        eight = as_numbers.interp(gamma=np.linspace(0.5, 2.0, 8))
        assert {claim.text: claim.holds for claim in judge(both(eight))}[lower] is holds
    nothing = made_up([1e-9] * 3)
    assert {claim.holds for claim in judge(both(nothing))} == {None}


@pytest.fixture(scope="module")
def panel():
    options = {"gammas": (0.5, 2.0), "learning_rates": (0.01, 100.0), "width": 16, "epochs": 1.0}
    with Store(":memory:") as store:
        result = run("wei2018/figure2_mnist_fully_connected", store=store, **options)
        cells = len(store.select("phase_diagram"))
    return result, cells


def test_panel_holds_both_losses(panel):
    result, cells = panel
    assert cells == 2 * 2 * 2
    assert result.dataset["test_loss"].dims == ("loss", "gamma", "learning_rate", "seed")
    assert list(result.dataset["loss"].values) == ["squared_error", "cross_entropy"]
    ratio = result.dataset["critical_learning_rate"].isel(loss=1) / result.dataset[
        "critical_learning_rate"
    ].isel(loss=0)
    # the softmax at the initial outputs: between one over classes and a quarter
    assert ((ratio > 3) & (ratio < 12)).all()


def test_panel_says_its_settings(panel):
    text = panel[0].figure()._supxlabel.get_text().replace("\n", " ")
    for words in ("samples all", "batch_size 128", "epochs 1.0", "momentum 0.9", "1 seed"):
        assert words in text


def test_panel_draws_a_heat_map_for_each_loss(panel):
    figure = panel[0].figure()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[:2] == ["squared error", "cross entropy"]


def test_panel_searches_the_boundary_where_it_is_asked_to():
    options = {"gammas": (0.5, 2.0), "learning_rates": (0.01, 100.0), "width": 16, "epochs": 1.0}
    search = {"losses": ("squared_error",), "boundary_gammas": (1.0,), "boundary_seeds": 2}
    name = "wei2018/figure2_mnist_fully_connected"
    result = run(name, **options, **search, tolerance=0.3)
    low, high = (
        result.dataset[f"boundary_{end}"].sel(boundary_gamma=1.0) for end in ("low", "high")
    )
    assert (high / low).values.ravel() == pytest.approx([1.15] * 2, abs=0.15)
    assert result.dataset["boundary_theory"].dims == ("loss", "closure", "boundary_gamma")
    assert all("bisected" in claim.measured for claim in result.claims[:3])
    figure = result.figure()
    assert "measured, bisected" in [str(each.get_label()) for each in figure.axes[0].containers]
    figure.canvas.draw()
    (legend,) = figure.legends  # of one panel, which is narrow
    width, ends = figure.bbox.width, legend.get_window_extent()
    assert 0 <= ends.x0 < ends.x1 <= width


def test_figure_three_is_over_the_weights_deviation():
    options = {"deviations": (0.7, 2.0), "learning_rates": (1e-4, 100.0), "width": 16}
    result = run("wei2018/figure3", epochs=1.0, **options)
    assert list(result.dataset["sigma_w"].values) == [0.7, 2.0]
    theory = result.dataset["critical_learning_rate"].sel(loss="squared_error", closure="train")
    assert float(theory[0]) > float(theory[1])  # larger weights, larger curvature
    result.figure()


def test_figure_three_searches_the_boundary_over_the_weights_deviation():
    grid = {"deviations": (0.7, 2.0), "learning_rates": (1e-4, 100.0), "width": 16}
    search = {"boundary_deviations": (0.7, 1.2, 2.0), "boundary_seeds": 1, "tolerance": 0.3}
    result = run("wei2018/figure3", epochs=1.0, losses=("squared_error",), **grid, **search)
    low, high = (result.dataset[f"boundary_{end}"].squeeze() for end in ("low", "high"))
    assert low["boundary_sigma_w"].values.tolist() == [0.7, 1.2, 2.0]
    assert (high / low).values == pytest.approx([1.15] * 3, abs=0.15)
    assert result.dataset["boundary_theory"].dims == ("loss", "closure", "boundary_sigma_w")
    *_, falling = result.claims
    assert falling.holds is True
    assert "0 rises in 3 rows, bisected" in falling.measured
    (panel, *_) = result.figure().axes
    assert "measured, bisected" in [str(each.get_label()) for each in panel.containers]


def test_panel_from_a_read_only_store_lists_what_it_lacks(tmp_path):
    options = {"gammas": (0.5, 2.0), "width": 16, "epochs": 1.0, "losses": ("squared_error",)}
    search = {"boundary_gammas": (1.0,), "boundary_seeds": 1, "tolerance": 0.3}
    name, path = "wei2018/figure2_mnist_fully_connected", tmp_path / "runs.sqlite"
    with Store(path) as store:
        whole = run(name, store=store, learning_rates=(0.01, 100.0), **options, **search)
    with Store(path, read_only=True) as store:
        again = run(name, store=store, learning_rates=(0.01, 100.0), **options, **search)
        more = run(name, store=store, learning_rates=(0.01, 0.1, 100.0), **options, **search)
    assert again.dataset.identical(whole.dataset)
    assert (again.missing, more.missing) == ([], ["2 of 6 trainings of the grid"])


def test_figure_four_has_a_curve_for_each_gamma():
    options = {"models": ("preact_resnet18",), "samples": 64, "epochs": 1}
    result = run("wei2018/figure4", **options)
    curves = result.dataset["test_accuracy_by_epoch"]
    assert curves.dims == ("model", "gamma", "seed", "epoch")
    assert np.isfinite(curves).all()
    text = result.figure()._supxlabel.get_text()
    assert "64 samples, batch size 32, 1 epochs" in text


def test_paper_scale_is_the_papers():
    for name in ("mnist", "cifar10"):
        settings = EXPERIMENTS[f"wei2018/figure2_{name}_fully_connected"].settings("paper", {})
        assert settings["data"] == name
        assert settings["width"] == 1000
        assert (settings["epochs"], settings["seeds"], settings["momentum"]) == (5.0, 5, 0.9)
        conv = EXPERIMENTS[f"wei2018/figure2_{name}_conv_net"].settings("paper", {})
        assert tuple(conv["channels"]) == (30, 60, 90)
        assert conv["samples"] is None
