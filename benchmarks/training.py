"""Steps per second of `normscope.training.train` against the textbook loop.

    python benchmarks/training.py [--quick] [--json FILE]

The textbook loop is a DataLoader over a TensorDataset, torch.optim.SGD as it comes, zero_grad,
forward, backward, step, loss.item(). The comparison is fair: both loops train copies of the same
model on the same data with the same batch size and the same optimizer settings, both read the
loss of every step, and before the clock starts both are fed the same batches and must end with
the same parameters to float tolerance. They take turns in one process, segment by segment, and
the shortest segment of each counts.

"gradient alone" is a forward and backward pass on one fixed batch: no data, no update. No loop
around the same model can be faster, so its ratio is the limit of what a loop can gain. "by hand",
on the fully connected net without momentum, is the ratio of a step written out without DataLoader,
modules, autograd and optimizer (training_floor.py), checked in the same way. "GFLOP/s"
counts the multiplications and additions of products and convolutions in our loop; "of product"
compares them with a product of matrices (1024 x 1000) (1000 x 1000) timed in the same run.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from timing import interleaved
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from training_floor import HandWritten, hand_written_steps

from normscope.models import build
from normscope.problem.loss import cross_entropy
from normscope.problem.problem import Problem
from normscope.training import sgd, train

sys.path.append(str(Path(__file__).parents[1]))  # where the tests keep their references
from tests.references.textbook_loop import textbook_step, textbook_steps

BATCH_SIZE = 128
LEARNING_RATE = 0.01
PRODUCT = (1024, 1000, 1000)


@dataclass(frozen=True)
class Case:
    """A net to train: its data, how many steps make a segment, and the ratio asked for."""

    name: str
    model: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    samples: int
    steps: int
    goal: float
    momentum: float = 0.0
    by_hand: bool = False


# The textbook loop has SGD as it comes, without momentum; the second row adds momentum to both
# loops, where the textbook's update takes longer. Each row is judged by itself.
CASES = [
    Case(
        *("fully_connected", lambda: build("fully_connected"), (1, 28, 28), 12800, 4, 1.2),
        by_hand=True,
    ),
    Case("fully_connected", lambda: build("fully_connected"), (1, 28, 28), 12800, 4, 1.2, 0.9),
    Case(
        "fully_connected, width 100",
        lambda: build("fully_connected", width=100),
        (1, 28, 28),
        12800,
        25,
        1.5,
    ),
    Case("conv_net", lambda: build("conv_net"), (3, 32, 32), 5120, 2, 1.0),
    Case("vgg, quarter width", lambda: build("vgg", width=0.25), (3, 32, 32), 2560, 1, 1.0),
]


@dataclass(frozen=True)
class Row:
    """Steps per second of both loops on one net, and what bounds them."""

    net: str
    momentum: float
    textbook: float
    ours: float
    ratio: float
    goal: float
    met: bool
    gradient_alone: float
    limit: float
    by_hand: float | None
    gigaflops: float
    product_gigaflops: float


def measure(case: Case, seconds: float) -> Row:
    print(f"{case.name}, momentum {case.momentum} ...", file=sys.stderr, flush=True)
    torch.manual_seed(0)
    data = (torch.randn(case.samples, *case.input_shape), torch.randint(10, (case.samples,)))
    model = case.model()
    check_same_arithmetic(model, data, case)
    shortest = interleaved(contenders(case, model, data), seconds=seconds)
    seconds_per_step = {name: time / case.steps for name, time in shortest.items()}
    textbook, ours = seconds_per_step["textbook"], seconds_per_step["ours"]
    alone = seconds_per_step["gradient alone"]
    rows, inner, columns = PRODUCT
    return Row(
        net=case.name,
        momentum=case.momentum,
        textbook=1 / textbook,
        ours=1 / ours,
        ratio=textbook / ours,
        goal=case.goal,
        met=textbook / ours >= case.goal,
        gradient_alone=1 / alone,
        limit=textbook / alone,
        by_hand=textbook / seconds_per_step["by hand"] if case.by_hand else None,
        gigaflops=flops_of_a_step(model, data) / ours / 1e9,
        product_gigaflops=2 * rows * inner * columns / shortest["product"] / 1e9,
    )


def contenders(
    case: Case, model: nn.Module, data: tuple[Tensor, Tensor]
) -> dict[str, Callable[[], object]]:
    """Segments of each loop, each on its own copy of the model."""
    settings = {"lr": LEARNING_RATE, "momentum": case.momentum}
    textbook = textbook_steps(copy.deepcopy(model), cross_entropy, data, BATCH_SIZE, **settings)
    problem = Problem(copy.deepcopy(model), cross_entropy, data)
    ours = train(problem, sgd(LEARNING_RATE, case.momentum), sys.maxsize, BATCH_SIZE)
    alone = gradients(copy.deepcopy(model), data)
    rows, inner, columns = PRODUCT
    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    found: dict[str, Callable[[], object]] = {
        "textbook": lambda: advance(textbook, case.steps),
        "ours": lambda: advance(ours, case.steps),
        "gradient alone": lambda: advance(alone, case.steps),
        "product": lambda: left @ right,
    }
    if case.by_hand:
        hand = HandWritten(model, BATCH_SIZE, LEARNING_RATE)
        by_hand = hand_written_steps(hand, data, BATCH_SIZE)
        found["by hand"] = lambda: advance(by_hand, case.steps)
    return found


def advance(steps: Iterator[object], count: int) -> None:
    for _ in range(count):
        next(steps)


def gradients(model: nn.Module, data: tuple[Tensor, Tensor]) -> Iterator[None]:
    inputs, targets = data[0][:BATCH_SIZE], data[1][:BATCH_SIZE]
    parameters = list(model.parameters())
    while True:
        loss = cross_entropy(model(inputs), targets)
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        yield


def check_same_arithmetic(
    model: nn.Module, data: tuple[Tensor, Tensor], case: Case, steps: int = 5
) -> None:
    """All loops, fed the same batches, end with the same parameters.

    In double precision: a few steps amplify the rounding of float32 differently net by net.
    """
    ours, theirs = copy.deepcopy(model).double(), copy.deepcopy(model).double()
    momentum, by_hand = case.momentum, case.by_hand
    optimizer = torch.optim.SGD(theirs.parameters(), lr=LEARNING_RATE, momentum=momentum)
    if by_hand:
        hand = HandWritten(ours, BATCH_SIZE, LEARNING_RATE)
    problem = Problem(ours, cross_entropy, data)
    for step in train(problem, sgd(LEARNING_RATE, momentum), steps, BATCH_SIZE):
        textbook_step(theirs, cross_entropy, optimizer, *step.batch)
        if by_hand:
            hand.step(step.batch[0].flatten(1), step.batch[1])
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))
    if by_hand:
        torch.testing.assert_close(hand.parameters(), [p.data for p in theirs.parameters()])


def flops_of_a_step(model: nn.Module, data: tuple[Tensor, Tensor]) -> int:
    with FlopCounterMode(display=False) as counter:
        next(gradients(copy.deepcopy(model), data))
    return counter.get_total_flops()


def table_of(rows: list[Row]) -> Table:
    table = Table(title=f"Steps per second, batch {BATCH_SIZE}, {torch.get_num_threads()} threads")
    columns = (
        "net",
        "momentum",
        "textbook",
        "ours",
        "ratio",
        "goal",
        "met",
        "gradient alone",
        "limit",
        "by hand",
    )
    for column in (*columns, "GFLOP/s", "of product"):
        table.add_column(column, justify="left" if column == "net" else "right")
    for row in rows:
        table.add_row(
            row.net,
            f"{row.momentum:g}",
            *(f"{value:.1f}" for value in (row.textbook, row.ours)),
            *(f"{value:.2f}" for value in (row.ratio, row.goal)),
            "yes" if row.met else "no",
            f"{row.gradient_alone:.1f}",
            f"{row.limit:.2f}",
            "" if row.by_hand is None else f"{row.by_hand:.2f}",
            f"{row.gigaflops:.0f}",
            f"{row.gigaflops / row.product_gigaflops:.0%}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds per net")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    seconds = 4.0 if options.quick else 20.0
    rows = [measure(case, seconds) for case in CASES]
    Console(width=120).print(table_of(rows))
    if options.json:
        environment = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
        }
        content = {**environment, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
