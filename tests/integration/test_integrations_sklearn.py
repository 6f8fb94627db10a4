"""The GDNP estimators inside scikit-learn's own tools."""

import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from normscope.decoupled import GDNPClassifier, GDNPMLPClassifier

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def data():
    return load_breast_cancer(return_X_y=True)


def pipelines():
    return {
        "linear": make_pipeline(StandardScaler(), GDNPClassifier(max_iter=200, tol=1e-4)),
        "mlp": make_pipeline(StandardScaler(), GDNPMLPClassifier(max_iter=10, random_state=0)),
    }


@pytest.mark.parametrize("name", ["linear", "mlp"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_pipeline_classifies_as_well_as_logistic_regression(name, data):
    pipeline = pipelines()[name]
    ours = cross_val_score(pipeline, *data, cv=3).mean()
    theirs = cross_val_score(make_pipeline(StandardScaler(), LogisticRegression()), *data, cv=3)
    assert ours > theirs.mean() - 0.03


@pytest.mark.parametrize("name", ["linear", "mlp"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_clone_of_a_fitted_pipeline_learns_the_same(name, data):
    fitted = pipelines()[name].fit(*data)
    again = clone(fitted)
    assert not hasattr(again[-1], "classes_")
    again.fit(*data)
    assert np.array_equal(again.decision_function(data[0]), fitted.decision_function(data[0]))


def test_grid_search_sets_the_parameter_and_keeps_the_best(data):
    pipeline = make_pipeline(StandardScaler(), GDNPClassifier(max_iter=50, tol=1e-3))
    choices = {"gdnpclassifier__max_length": [0.01, 4.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search = GridSearchCV(pipeline, choices, scoring="neg_log_loss", cv=3).fit(*data)
    assert search.best_params_ == {"gdnpclassifier__max_length": 4.0}
    assert search.best_estimator_[-1].max_length == 4.0
    assert search.score(*data) > search.cv_results_["mean_test_score"].min()


def test_example_classifies_unseen_samples_as_well_as_logistic_regression(capsys):
    """Without a penalty, which the estimator has not either."""
    names = runpy.run_path(str(EXAMPLES / "gdnp_pipeline.py"))
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=np.inf, max_iter=10_000))
    plain.fit(names["X_train"], names["y_train"])
    unseen = names["X_test"], names["y_test"]
    assert names["search"].score(*unseen) >= plain.score(*unseen)
    assert "accuracy on unseen samples" in capsys.readouterr().out
