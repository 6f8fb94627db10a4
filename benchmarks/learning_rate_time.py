"""What `Advice.predicted` costs, beside torch-lr-finder's range test of 100 steps.

    python benchmarks/learning_rate_time.py [--cases NAME ...] [--rounds N]

Both take turns in one process, and the shortest time of each counts. Timed is all that the
prediction needs, from the model on: the features of four batches twice, one gradient and the
simulated last layer; or where that does not settle it, trial runs on a few samples
(marked "trial runs"). The goal, a fifth, is for nets whose lambda_max takes fewer than ten
products: those of `top_eigenvalue` with its defaults, for the Gauss-Newton matrix of one batch.
"advice" is `max_learning_rate(..., verify=False)`, with the curvature bound. The time of the advice
with its runs, at each effort, is measured on other networks by ``learning_rate_choice.py``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from learning_rate_accuracy import timed
from learning_rate_cases import BATCH_SIZE, CASES, Case
from learning_rate_finder import seconds_of_range_test

from normscope.curvature import top_eigenvalue
from normscope.learning_rate import max_learning_rate
from normscope.learning_rate.bound import measure_curvature
from normscope.learning_rate.prediction import LimitPrediction, predict_limit
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.update_rule import UpdateRule
from normscope.problem.problem import Problem
from normscope.training import sgd

GOAL = 0.2
FEW_PRODUCTS = 10


@dataclass(frozen=True)
class Cost:
    """Seconds of one case."""

    prediction: float
    advice: float
    range_test: float
    trial_runs: bool
    products: float

    @property
    def share(self) -> float:
        """Of a range test."""
        return self.prediction / self.range_test

    @property
    def has_goal(self) -> bool:
        """Whether lambda_max takes few products."""
        return self.products < FEW_PRODUCTS


def measure(case: Case, rounds: int) -> Cost:
    model = case.model()
    problem = Problem(model, case.loss, case.samples())
    batches = TrainingSetup(problem, sgd(1.0, case.momentum), BATCH_SIZE, 0).batches(4)
    rule = UpdateRule("SGD", momentum=case.momentum)

    def predict() -> LimitPrediction:
        return predict_limit(
            problem,
            batches,
            rule,
            lambda: measure_curvature(problem, batches[:3], rule).bound(rule),
        )

    def advise() -> object:
        sizes = {"momentum": case.momentum, "batch_size": BATCH_SIZE}
        return max_learning_rate(model, case.loss, case.samples(), verify=False, **sizes)

    def test() -> object:
        return seconds_of_range_test(case, model)

    turns = [[timed(each)[1] for each in (predict, advise, test)] for _ in range(rounds)]
    prediction, advice, range_test = map(min, zip(*turns, strict=True))
    top = top_eigenvalue(model, case.loss, batches[0], kind="ggn", mode="train")
    return Cost(prediction, advice, range_test, predict().layer is None, top.matvecs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    costs = {}
    for name in options.cases:
        cost = costs[name] = measure(CASES[name], options.rounds)
        print(
            f"{name}: {cost.prediction * 1e3:.0f} of {cost.range_test * 1e3:.0f} ms, "
            f"{cost.share:.3f}{', trial runs' * cost.trial_runs}; advice "
            f"{cost.advice / cost.range_test:.2f}; {cost.products:.1f} products",
            flush=True,
        )
    goals = [cost.share for cost in costs.values() if cost.has_goal]
    met = sum(share <= GOAL for share in goals)
    worst = f", {max(goals):.3f} at worst" if goals else ""
    print(f"under {FEW_PRODUCTS} products: at most {GOAL} in {met} of {len(goals)} cases{worst}")


if __name__ == "__main__":
    main()
