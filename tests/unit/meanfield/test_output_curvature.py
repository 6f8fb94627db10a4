"""The cross-entropy's curvature in the outputs: closed forms, sampling, and measured networks."""

import numpy as np
import pytest
import torch

from normscope.curvature import top_eigenvalue
from normscope.data import load
from normscope.errors import InputError
from normscope.meanfield import predict
from normscope.meanfield.integrals import expectation
from normscope.meanfield.output_curvature import output_curvature, softmax_curvature
from normscope.models import build


@pytest.mark.parametrize("classes", [2, 3, 10, 200])
def test_outputs_that_vanish_give_one_over_classes(classes):
    assert softmax_curvature(0.0, 0.0, classes) == pytest.approx(1 / classes)


@pytest.mark.parametrize(("own", "pair"), [(0.5, 0.4), (2.0, 1.0), (10.0, 3.0)])
def test_two_classes_are_a_single_integral(own, pair):
    """diag p - p p' = p (1 - p) (1, -1; -1, 1): the shared part is no matter."""

    def slope(difference):
        return 0.25 / np.cosh(difference / 2) ** 2

    exact = 2 * float(expectation(slope, np.array(0.0), np.array(np.sqrt(2 * own))))
    assert softmax_curvature(own, pair, 2) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("own", "pair", "tolerance"), [(0.5, 0.45, 0.02), (5.0, 2.0, 0.02), (10.0, 0.0, 0.07)]
)
def test_fixed_points_are_as_good_as_many_random_ones(own, pair, tolerance):
    random, classes = np.random.default_rng(7), 10
    tops = []
    for _ in range(500):
        shared = np.sqrt(pair) * random.standard_normal(classes)
        scores = shared + np.sqrt(own - pair) * random.standard_normal((1000, classes))
        likely = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        bent = np.diag(likely.mean(0)) - likely.T @ likely / len(likely)
        tops.append(np.linalg.eigvalsh(bent)[-1])
    assert softmax_curvature(own, pair, classes) == pytest.approx(np.mean(tops), rel=tolerance)


def test_moments_of_a_sweep_give_one_number_each():
    found = softmax_curvature(np.array([1.0, 2.0, np.nan]), np.array([0.5, 0.5, 1.0]), 10)
    assert found.shape == (3,)
    assert found[0] == softmax_curvature(1.0, 0.5, 10)
    assert np.isnan(found[2])


def test_surer_outputs_bend_less_and_shared_ones_more():
    assert softmax_curvature(8.0, 0.5, 10) < softmax_curvature(2.0, 0.5, 10)
    assert softmax_curvature(1.0, 0.9, 10) > softmax_curvature(1.0, 0.1, 10)


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_measured_curvature_of_the_losses_has_this_ratio(gamma):
    """Largest eigenvalues of both losses' curvature, fully connected nets with BatchNorm.

    Over six seeds and gamma from 0.5 to 3 the mean ratio over the theory's was 0.90 to 0.97 at
    width 100 and 1.04 to 1.18 at width 300, with a spread of 0.1 to 0.16 from seed to seed, so
    that the mean of three seeds is within 25 %. One over classes would be 1.5 to 2.3 times off.
    """
    data = load("digits").train
    batch = (data.x[:256], data.y[:256])
    ratios = []
    for seed in range(3):
        net = build("fully_connected", input_shape=(1, 8, 8), width=200, gamma=gamma, seed=seed)
        tops = [
            top_eigenvalue(net, loss, batch, kind="ggn", mode="train", tol=1e-2).value
            for loss in ("cross_entropy", "squared_error")
        ]
        found = predict(net, (1, 8, 8), data=batch[0])
        ratios.append(tops[0] / tops[1] / output_curvature("cross_entropy", found, 10))
    assert np.mean(ratios) == pytest.approx(1, abs=0.25)


def test_other_losses_and_single_outputs_are_refused():
    found = predict(torch.nn.Sequential(torch.nn.Linear(4, 3)), (4,))
    assert output_curvature("squared_error", found, 3) == 1.0
    with pytest.raises(InputError, match="got 'hinge'"):
        output_curvature("hinge", found, 3)
    with pytest.raises(InputError, match="two classes or more, got 1"):
        softmax_curvature(1.0, 0.5, 1)
