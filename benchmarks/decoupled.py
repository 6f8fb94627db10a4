"""GDNP against gradient descent, Nesterov's method and L-BFGS on the logistic loss: one table.

Every method minimizes the same mean logistic loss over the same standardized inputs with an
intercept, and is stopped once its value is within a gap of the least value known. Where the
classes are separable there is no minimum; the target is then the gap itself. Steps count
evaluations of the gradient; seconds are those of the processor, so that other work on the machine
counts little, and hold the set-up of every method: moments, and the largest eigenvalue of S, which
gives GDNP, gradient descent and Nesterov's method their step. Run with
``OMP_NUM_THREADS=1 python benchmarks/decoupled.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_digits

from normscope.decoupled import Options, SampleObjective, SignedDesign, gdnp, margin_loss

Array = NDArray[np.float64]
Found = tuple[int, float, float]  # steps, seconds, what is left above the target


@dataclass(frozen=True)
class Case:
    """Inputs with a constant column, and signs."""

    name: str
    inputs: Array
    signs: Array

    def evaluate(self, w: Array) -> tuple[float, Array]:
        """The mean logistic loss and its gradient."""
        margins = -self.signs * (self.inputs @ w)
        slopes = -self.signs * expit(margins) / len(margins)
        return float(np.logaddexp(0, margins).mean()), self.inputs.T @ slopes

    def design(self) -> SignedDesign:
        """The samples with their moments, made again: it is part of what is timed."""
        return SignedDesign(self.inputs, self.signs, constant=False)

    def smoothness(self) -> float:
        """A bound of the Hessian's eigenvalues."""
        return self.design().moments.spectrum[0] / 4


def standardized(name: str, inputs: Array, signs: Array) -> Case:
    varying = inputs[:, inputs.std(axis=0) > 0]
    scaled = (varying - varying.mean(axis=0)) / varying.std(axis=0)
    return Case(name, np.column_stack([scaled, np.ones(len(scaled))]), signs)


def gaussian(dimensions: int, samples: int) -> Case:
    """Gaussian z = -yx of condition 30 whose classes overlap."""
    random = np.random.default_rng(dimensions)
    z = random.standard_normal((samples, dimensions)) * np.geomspace(1, 30**0.5, dimensions)
    z += random.standard_normal(dimensions) * 0.6 / dimensions**0.5
    signs = np.where(np.arange(samples) % 2 == 0, 1.0, -1.0)
    inputs = np.column_stack([-signs[:, None] * z, np.ones(samples)])
    return Case(f"Gaussian, {dimensions} dimensions", inputs, signs)


def digits(first: int, second: int) -> Case:
    inputs, labels = load_digits(return_X_y=True)
    used = (labels == first) | (labels == second)
    signs = np.where(labels[used] == first, 1.0, -1.0)
    return standardized(f"digits {first} and {second}", inputs[used], signs)


def cases() -> Iterator[Case]:
    inputs, labels = load_breast_cancer(return_X_y=True)
    signs = np.where(labels == 1, 1.0, -1.0)
    yield standardized("breast cancer", inputs, signs)
    yield standardized("breast cancer, 5 features", inputs[:, :5], signs)
    yield digits(3, 8)
    yield digits(4, 9)
    yield gaussian(100, 5000)
    yield gaussian(1000, 5000)


def by_gdnp(case: Case) -> Iterator[float]:
    design = case.design()
    objective = SampleObjective(design, margin_loss("logistic"))
    options = Options(length_tolerance=1e-10, length_accuracy=0.02)  # as GDNPClassifier does
    for point in gdnp(objective, -design.mean, options):  # a generator: the clock runs by now
        yield point.value


def by_descent(case: Case) -> Iterator[float]:
    w, rate = np.zeros(case.inputs.shape[1]), 1 / case.smoothness()
    while True:
        value, gradient = case.evaluate(w)
        yield value
        w = w - rate * gradient


def by_nesterov(case: Case) -> Iterator[float]:
    """With the momentum for convex functions, restarted where the value rises."""
    w = before = np.zeros(case.inputs.shape[1])
    rate, count, last = 1 / case.smoothness(), 0, np.inf
    while True:
        ahead = w + count / (count + 3) * (w - before)
        value, gradient = case.evaluate(ahead)
        yield value
        count = 0 if value > last else count + 1
        w, before, last = ahead - rate * gradient, w, value


def until(values: Iterator[float], target: float, seconds: float) -> Found:
    """Steps, seconds and what was left above the target when the time was up, or zero."""
    begun, count, value, spent = time.process_time(), 0, np.inf, 0.0
    for count, value in enumerate(values, 1):  # noqa: B007  # read after the loop
        spent = time.process_time() - begun
        if value <= target or spent > seconds:
            break
    return count, spent, max(value - target, 0.0)


class Reached(Exception):  # noqa: N818  # not an error: L-BFGS has no other way to stop at a value
    """The target was reached."""


def by_lbfgs(case: Case, target: float) -> Found:
    begun, calls = time.process_time(), 0

    def evaluate(w: Array) -> tuple[float, Array]:
        nonlocal calls
        calls += 1
        value, gradient = case.evaluate(w)
        if value <= target:
            raise Reached
        return value, gradient

    left = 0.0
    with contextlib.suppress(Reached):
        left = _least(evaluate, case.inputs.shape[1]) - target
    return calls, time.process_time() - begun, left


def _least(evaluate: Callable[[Array], tuple[float, Array]], size: int) -> float:
    options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 0.0, "gtol": 1e-11}
    start = np.zeros(size)
    return float(minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options).fun)


METHODS = {"GDNP": by_gdnp, "GD, 1/L": by_descent, "AGD": by_nesterov}


def cell(found: Found) -> str:
    steps, seconds, left = found
    return f"{steps}, {seconds:.3f} s" + (f": still {left:.0e} above" if left > 0 else "")


def row(case: Case, gap: float, seconds: float, rounds: int) -> str:
    least = _least(case.evaluate, case.inputs.shape[1])
    target = least + gap
    cells = []
    for make in METHODS.values():
        found = until(make(case), target, seconds)
        for _ in range(rounds - 1 if found[1] < 1 else 0):
            found = min(found, until(make(case), target, seconds), key=lambda each: each[1])
        cells.append(cell(found))
    fastest = min((by_lbfgs(case, target) for _ in range(rounds)), key=lambda each: each[1])
    kind = f"{least:.6f}" if least > 1e-6 else "0 (separable)"
    samples, size = case.inputs.shape
    return f"| {case.name} ({samples} x {size}) | {kind} | {' | '.join(cells)} | {cell(fastest)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gap", type=float, default=1e-6, help="of the mean loss")
    parser.add_argument("--seconds", type=float, default=5.0, help="for a method on a case")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts")
    options = parser.parse_args()
    heads = ["case", "least value", *METHODS, "L-BFGS"]
    print(f"Steps and seconds to a gap of {options.gap:g}.\n")
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for case in cases():
        print(row(case, options.gap, options.seconds, options.rounds), flush=True)


if __name__ == "__main__":
    main()
