"""Does the advice say so where weight decay lets nothing be learned at its recommended rate?

    python benchmarks/learning_rate_decay.py

Four networks, five optimizers and five weight decays, from moderate to far too strong. Each network
is trained for 300 steps at `recommended`, in another data order. It has learned nothing if the mean
loss of the last 20 steps is at least 0.97 of that of the best constant output. The last two columns
say whether the answer has a note about it, without and with the check at the recommended rate.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from normscope.data import load
from normscope.learning_rate import Advice, max_learning_rate
from normscope.learning_rate.network_properties import constant_output_loss
from normscope.problem.problem import Problem
from normscope.training.loop import train

DECAYS = (0.03, 0.3, 1.0, 3.0, 10.0)
BATCH, STEPS, LAST = 64, 300, 20
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": SGD,
    "momentum": lambda parameters, **options: SGD(parameters, momentum=0.9, **options),
    "AdamW": AdamW,
    "Adam": Adam,
    "RMSprop": RMSprop,
}


class Row(NamedTuple):
    """One network with an optimizer and a weight decay."""

    network: str
    optimizer: str
    decay: float
    advice: Advice
    loss: float  # over that of the best constant output

    @property
    def learned_nothing(self) -> bool:
        return not self.loss < 0.97

    def is_noted(self, with_check: bool) -> bool:
        check = self.advice.check
        added = () if check is None or with_check else check.notes
        notes = (note for note in self.advice.notes if note not in added)
        return any("learned" in note or "rises again" in note for note in notes)


def networks() -> dict[str, Problem]:
    digits = load("digits").train
    rows = digits[0].flatten(1)
    torch.manual_seed(3)
    regression = rows, rows @ torch.randn(rows.shape[1], 3) + 5
    torch.manual_seed(0)
    large = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    with torch.no_grad():
        large[-1].weight *= 8
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    normed = [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    normed += [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    smooth = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    return {
        "large outputs": Problem(large, "cross_entropy", digits),
        "plain": Problem(plain, "cross_entropy", digits),
        "batch norm": Problem(
            nn.Sequential(nn.Flatten(), *normed, nn.Linear(64, 10)), "cross_entropy", digits
        ),
        "regression": Problem(smooth, nn.MSELoss(), regression),
    }


def measure(name: str, problem: Problem, optimizer: str, decay: float) -> Row:
    def make(parameters: list[Tensor], rate: float = 1e-3) -> Optimizer:
        return OPTIMIZERS[optimizer](parameters, lr=rate, weight_decay=decay)

    start = {key: value.clone() for key, value in problem.model.state_dict().items()}
    given = problem.model, problem.loss, problem.data
    advice = max_learning_rate(*given, optimizer=make, batch_size=BATCH)
    run = train(problem, lambda p: make(p, advice.recommended), STEPS, BATCH, seed=7)
    losses = [step.loss for step in run]
    problem.model.load_state_dict(start)
    last = statistics.fmean(losses[-LAST:]) if len(losses) == STEPS else math.inf
    constant = constant_output_loss(problem, [problem.data])
    assert constant is not None
    return Row(name, optimizer, decay, advice, last / constant)


def main() -> None:
    warnings.simplefilter("ignore")
    found = []
    print("| network | optimizer | decay | recommended | loss / constant | before | now |")
    for name, problem in networks().items():
        for optimizer in OPTIMIZERS:
            for decay in DECAYS:
                row = measure(name, problem, optimizer, decay)
                found.append(row)
                noted = ["yes" if row.is_noted(check) else "-" for check in (False, True)]
                numbers = f"{row.advice.recommended:.3g} | {row.loss:.2f}"
                cells = " | ".join(noted)
                print(f"| {name} | {optimizer} | {decay:g} | {numbers} | {cells} |", flush=True)
    nothing = [row for row in found if row.learned_nothing]
    silent = [sum(not row.is_noted(check) for row in nothing) for check in (False, True)]
    others = [row for row in found if not row.learned_nothing]
    print(
        f"{len(nothing)} of {len(found)} learned nothing; not said before {silent[0]}, now", end=" "
    )
    said = sum(row.is_noted(with_check=True) for row in others)
    print(f"{silent[1]}; of the others {said} have a note, {_worse(others)}")


def _worse(rows: list[Row]) -> str:
    losses = [row.loss for row in rows if row.is_noted(with_check=True)]
    return f"with a loss of {min(losses):.2f} of the constant's at least" if losses else "none"


if __name__ == "__main__":
    main()
