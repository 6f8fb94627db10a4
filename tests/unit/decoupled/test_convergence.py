"""How the halfspace estimator ends: at its bound, within its tolerance, or short of it."""

import itertools

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from tests.references.decoupled import gaussian_halfspace as gaussian

from normscope.decoupled import GDNPClassifier, MarginLoss, margin_loss


def test_separable_classes_end_at_the_bound_even_where_the_slope_underflows():
    model = GDNPClassifier().fit([[-1.0], [-1.0], [1.0], [1.0]], [0, 0, 1, 1])
    assert model.at_bound_
    assert model.converged_
    np.testing.assert_allclose(model.coef_, 1000.0)
    shorter = GDNPClassifier(max_length=900.0).fit([[-1.0], [-1.0], [1.0], [1.0]], [0, 0, 1, 1])
    np.testing.assert_allclose(shorter.coef_, 900.0)


def test_overlapping_classes_do_not_end_at_the_bound():
    assert not GDNPClassifier().fit(*gaussian()).at_bound_


def test_too_few_steps_are_said():
    inputs, signs = gaussian()
    with pytest.warns(ConvergenceWarning, match="in 2 steps.*raise max_iter"):
        model = GDNPClassifier(max_iter=2).fit(inputs, signs)
    assert not model.converged_
    assert model.n_iter_ == 2


def test_path_that_ends_itself_does_not_ask_for_more_steps():
    inputs, signs = gaussian(samples=100)
    true, calls = margin_loss("logistic"), itertools.count()
    # a value that rises with every call, whatever the slopes say: no step ever lowers it
    rising = MarginLoss(lambda m: true.value(m) + next(calls), true.slope, true.curvature)
    with pytest.warns(ConvergenceWarning, match="stopped after 0 steps") as caught:
        model = GDNPClassifier(rising).fit(inputs, signs)
    assert "max_iter" not in str(caught[0].message)
    assert not model.converged_
