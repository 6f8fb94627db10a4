"""Time and memory of the points on the gradient's ray, against the naive way and the limit.

    python benchmarks/probes.py [--quick] [--json FILE]

A measured step of `normscope.Scope` with the three ray probes (loss, gradient and smoothness along
the gradient) at K points is compared with

- the limit: K forward and backward passes of the same batch, nothing else;
- the naive way: for each point a deep copy of the model, loaded with the moved parameters, run
  forward and backward, its gradient compared with the first one.

Both take the gradient at the parameters from ``.grad`` as the training left it, the scope being
given the training's loss: K passes. The scope's time holds everything it does: checks, copies of
the parameters and buffers, random states, results. Before the clock starts both ways must agree.
They take turns in one process, and the shortest run of each counts.

Memory is the peak of what torch allocates above the start, in units of the parameters' size: for
the scope two buffers, and what a pass takes by itself ("one pass": activations, and gradients as
far as they do not take the place of the last ones).
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from timing import interleaved
from torch import Tensor, nn

import normscope as ns
from normscope.problem.loss import cross_entropy

sys.path.append(str(Path(__file__).parents[1]))  # where the tests keep their references
from tests.references.allocation import peak_allocation

LEARNING_RATE = 0.1
GOAL = 1.15  # times the limit
PROBES = ["loss_variation", "gradient_predictiveness", "effective_smoothness"]


@dataclass(frozen=True)
class Case:
    """A net on random data."""

    name: str
    model: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    batch_size: int = 128


CASES = [
    Case("vgg, quarter width", lambda: ns.models.build("vgg", width=0.25), (3, 32, 32)),
    Case("fully_connected", lambda: ns.models.build("fully_connected"), (1, 28, 28)),
]
QUICK = [
    Case("vgg, 1/16 width", lambda: ns.models.build("vgg", width=1 / 16), (3, 32, 32), 16),
    Case(
        "fully_connected, width 100",
        lambda: ns.models.build("fully_connected", width=100),
        (1, 28, 28),
        32,
    ),
]


@dataclass(frozen=True)
class Measured:
    """One row of the table; times in seconds, memory in sizes of the parameters."""

    case: str
    points: int
    limit: float
    scope: float
    naive: float
    parameters_megabytes: float
    memory_pass: float
    memory_scope: float
    memory_naive: float

    @property
    def ratio(self) -> float:
        """Time of the scope over the limit."""
        return self.scope / self.limit


class Bench:
    """The three ways, on the same model and batch."""

    def __init__(self, case: Case, points: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.model = case.model()
        self.x = torch.randn(case.batch_size, *case.input_shape, generator=generator)
        self.y = torch.randint(0, 10, (case.batch_size,), generator=generator)
        self.distances = np.linspace(0.5, 4.0, points).tolist()
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE)
        self.scope = ns.Scope(
            self.model, "cross_entropy", self.optimizer, PROBES, 1, distances=self.distances
        )
        self.loss = self.one_pass().item()  # and the gradient that the training left
        self.scope.step(self.x, self.y, self.loss)  # the first step checks that gradient

    def one_pass(self) -> Tensor:
        """A forward and backward pass, as in a training."""
        loss = cross_entropy(self.model(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        return loss

    def limit(self) -> None:
        """K passes."""
        for _ in self.distances:
            self.one_pass()

    def by_scope(self) -> None:
        """A measured step."""
        self.scope.step(self.x, self.y, self.loss)

    def naive(self) -> list[tuple[float, float, float]]:
        """Loss, distance and cosine at each point."""
        state = self.model.state_dict()
        start = {name: p.grad for name, p in self.model.named_parameters()}
        flat = torch.cat([gradient.flatten() for gradient in start.values()])
        found = []
        for distance in self.distances:
            step = distance * LEARNING_RATE
            moved = {name: state[name] - step * gradient for name, gradient in start.items()}
            model = copy.deepcopy(self.model)
            model.load_state_dict({**state, **moved})
            model.zero_grad()
            loss = cross_entropy(model(self.x), self.y)
            loss.backward()
            there = torch.cat([p.grad.flatten() for p in model.parameters()])
            cosine = torch.nn.functional.cosine_similarity(there, flat, dim=0)
            found.append((loss.item(), (there - flat).norm().item(), cosine.item()))
        return found

    def check(self) -> None:
        """Both ways must see the same."""
        expected = np.array(self.naive()).T
        self.by_scope()
        results = self.scope.results.isel(step=-1)
        names = ("ray_loss", "gradient_distance", "gradient_cosine")
        for name, values in zip(names, expected, strict=True):
            np.testing.assert_allclose(results[name], values, rtol=2e-3, atol=2e-5, err_msg=name)


def measure(case: Case, points: int, seconds: float) -> Measured:
    bench = Bench(case, points)
    bench.check()
    ways = {"limit": bench.limit, "scope": bench.by_scope, "naive": bench.naive}
    times = interleaved(ways, seconds=seconds, least_rounds=3)
    size = sum(p.numel() * p.element_size() for p in bench.model.parameters()) / 2**20
    peaks = [_in_sizes(case, points, way, size) for way in ("one_pass", "by_scope", "naive")]
    return Measured(case.name, points, times["limit"], times["scope"], times["naive"], size, *peaks)


def _in_sizes(case: Case, points: int, way: str, size: float) -> float:
    bench = Bench(case, points)
    bench.one_pass()
    return peak_allocation(getattr(bench, way)) / 2**20 / size


def show(rows: list[Measured]) -> None:
    table = Table(title=f"K points on the ray; goal: at most {GOAL} times the limit")
    for column in ("net", "K", "limit", "scope", "naive", "scope/limit", "naive/scope"):
        table.add_column(column, justify="left" if column == "net" else "right")
    for column in ("parameters", "peak: one pass", "scope", "naive"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.case,
            str(row.points),
            *(f"{seconds * 1e3:.0f} ms" for seconds in (row.limit, row.scope, row.naive)),
            f"{row.ratio:.3f} {'ok' if row.ratio <= GOAL else 'MISSED'}",
            f"{row.naive / row.scope:.2f}",
            f"{row.parameters_megabytes:.1f} MB",
            *(f"{x:.1f} x" for x in (row.memory_pass, row.memory_scope, row.memory_naive)),
        )
    Console(width=130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small nets, a second each")
    parser.add_argument("--seconds", type=float, default=None, help="for each row")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    seconds = arguments.seconds or (1.0 if arguments.quick else 30.0)
    cases = QUICK if arguments.quick else CASES
    rows = [measure(case, points, seconds) for case in cases for points in (8, 20)]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}")
    show(rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
