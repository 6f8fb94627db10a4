"""What both estimators share: input checks, classes, one binary problem per class."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from normscope.errors import InputError

__all__ = ["OneVersusRest", "signs_of"]

Array = NDArray[np.float64]
Self = TypeVar("Self", bound="OneVersusRest")


def signs_of(labels: Any, classes: Any) -> list[Array]:
    """+1 and -1 per sample: one vector for two classes, one per class for more.

    >>> signs_of(np.array([3, 5]), np.array([3, 5]))
    [array([-1.,  1.])]
    """
    positive = classes[1:] if len(classes) == 2 else classes
    return [np.where(labels == each, 1.0, -1.0) for each in positive]


def _is_logistic(estimator: Any) -> bool:
    return bool(isinstance(estimator.loss, str) and estimator.loss == "logistic")


class OneVersusRest(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """A classifier of binary problems: one for two classes, one against the rest for more.

    Subclasses have an argument ``loss``.
    """

    def fit(self: Self, X: Any, y: Any) -> Self:  # noqa: N803  # scikit-learn's name
        """Fit the model.

        Args:
            X: (samples, features), dense or sparse.
            y: a class label for each sample.

        Returns:
            The estimator.
        """
        inputs, labels = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise InputError(
                f"{type(self).__name__} needs samples of at least two classes, got one class, "
                f"{self.classes_[0]!r}; a halfspace has two sides."
            )
        self._fit_binary(inputs, signs_of(labels, self.classes_))
        return self

    @abstractmethod
    def _fit_binary(self, inputs: Any, problems: list[Array]) -> None:
        """Fit one binary problem for each vector of signs."""

    @abstractmethod
    def _scores(self, inputs: Any) -> Array:
        """Scores (samples, problems)."""

    def decision_function(self, X: Any) -> Array:  # noqa: N803  # scikit-learn's name
        """Scores: positive for the second of two classes, or one column per class.

        Args:
            X: (samples, features), dense or sparse.

        Returns:
            (samples,) for two classes, (samples, classes) for more.
        """
        check_is_fitted(self)
        inputs = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        scores = self._scores(inputs)
        return np.asarray(scores[:, 0] if len(self.classes_) == 2 else scores)

    def predict(self, X: Any) -> Any:  # noqa: N803  # scikit-learn's name
        """The class of every sample.

        Args:
            X: (samples, features), dense or sparse.

        Returns:
            Labels (samples,).
        """
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[chosen]

    @available_if(_is_logistic)  # type: ignore[untyped-decorator]  # sklearn has no types
    def predict_proba(self, X: Any) -> Array:  # noqa: N803  # scikit-learn's name
        """Probabilities of the classes; only the logistic loss has them.

        Args:
            X: (samples, features), dense or sparse.

        Returns:
            (samples, classes).
        """
        scores = expit(self.decision_function(X))
        if scores.ndim == 1:
            return np.stack([1 - scores, scores], axis=1)
        total = scores.sum(axis=1, keepdims=True)
        # no class wants the sample at all: none is preferred
        shares = scores / np.where(total > 0, total, 1)
        return np.asarray(np.where(total > 0, shares, 1 / scores.shape[1]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
