"""The advice over batch size, momentum, normalization, loss and architecture: 96 cells.

    python benchmarks/learning_rate_cells.py --store DIR [--truth] [--cells NAME ...] [--no-runs]

Batch 4, 16, 64, 512 x momentum 0, 0.9, 0.99 x none, batch, layer, group norm x cross-entropy,
squared error; the architecture rotates over an MLP, a convolutional network and a transformer, each
in three variants. The third variant of each (other depth, width, activation, seed, for the
transformer other data) is held out: nothing was tuned on its cells. The truth is the slow search of
``learning_rate_truth.py`` at the batch size of the cell; ``--truth`` finds it and stops. Finished
cells are kept in DIR; ``--renew`` keeps only the truth.

Data: MNIST and CIFAR-10 where NORMSCOPE_DATA names them, the embedded digits otherwise.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from learning_rate_cases import SAMPLES, Batch, TransformerEncoder
from learning_rate_truth import LIMITS, Run, onsets_of
from torch import nn

from normscope.data import load
from normscope.errors import DataError
from normscope.layers import convert, normalization
from normscope.learning_rate import max_learning_rate
from normscope.learning_rate.prediction import predict_limit
from normscope.learning_rate.sample_trials import trial_batch_count
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.thresholds import PREDICTION_BATCHES
from normscope.learning_rate.update_rule import UpdateRule
from normscope.problem.loss import LOSSES
from normscope.problem.problem import Problem
from normscope.training import sgd

BATCH_SIZES = (4, 16, 64, 512)
MOMENTA = (0.0, 0.9, 0.99)
NORMS = ("none", "batch", "layer", "group")
LOSS_NAMES = ("cross_entropy", "squared_error")
ARCHITECTURES = ("mlp", "conv", "transformer")
Row = dict[str, Any]
HELD_OUT = 2  # the variant that nothing is tuned on


@dataclass(frozen=True)
class Cell:
    """One network with its loss, batch size and momentum."""

    batch_size: int
    momentum: float
    norm: str
    loss: str
    architecture: str
    variant: int

    @property
    def name(self) -> str:
        """The cell in one word."""
        parts = (self.architecture, "ABC"[self.variant], self.norm, self.loss, self.batch_size)
        return "-".join(map(str, (*parts, self.momentum)))

    @property
    def label(self) -> str:
        """The cell in a few words."""
        loss = "entropy" if self.loss == "cross_entropy" else "squares"
        net = f"{self.architecture} {'ABC'[self.variant]} {self.norm} {loss}"
        return f"{net}, batch {self.batch_size}, momentum {self.momentum:g}"

    @property
    def group(self) -> str:
        """The cells that may be tuned on are "dev"."""
        return "held out" if self.variant == HELD_OUT else "dev"

    @functools.cached_property
    def data(self) -> Batch:
        """Inputs and labels."""
        is_large = self.architecture == "conv" or self.variant == HELD_OUT
        name = "cifar10" if is_large and self.architecture != "mlp" else "mnist"
        x, y = _samples(name)
        if self.architecture == "conv":  # a step of the slow search should take milliseconds
            x = nn.functional.avg_pool2d(x, 2)
        return (_patches(x) if self.architecture == "transformer" else x), y

    def model(self) -> nn.Module:
        """The network at its initial weights, in training mode."""
        torch.manual_seed(self.variant)
        shape = tuple(self.data[0].shape[1:])
        return _BUILDERS[self.architecture](shape, self.norm, self.variant)


@functools.cache
def _samples(name: str) -> Batch:
    try:
        x, y = load(name).train
    except DataError:
        x, y = load("digits").train
        repeats = -(-SAMPLES // len(x))
        x, y = x.repeat(repeats, 1, 1, 1), y.repeat(repeats)
        x = x.expand(-1, 3 if name == "cifar10" else 1, -1, -1)
        x = nn.functional.interpolate(x, size=(28, 28) if name == "mnist" else (32, 32))
    return x[:SAMPLES].clone(), y[:SAMPLES].clone()


def _patches(images: torch.Tensor) -> torch.Tensor:
    """Cut images into nine patches: (samples, 1, 9, pixels and channels of a patch)."""
    side = images.shape[-1] // 3
    patches = images.unfold(2, side, side).unfold(3, side, side)  # (N, C, 3, 3, side, side)
    return patches.permute(0, 2, 3, 1, 4, 5).reshape(len(images), 1, 9, -1).contiguous()


def _mlp(shape: tuple[int, ...], norm: str, variant: int) -> nn.Module:
    depth, width, activation = ((3, 150, nn.ReLU), (3, 150, nn.Tanh), (4, 100, nn.GELU))[variant]
    sizes = [torch.Size(shape).numel(), *[width] * (depth - 1)]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), _norm(norm, outputs, 0), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


def _conv(shape: tuple[int, ...], norm: str, variant: int) -> nn.Module:
    channels, activation = (
        ((8, 16, 16), nn.ReLU),
        ((8, 8, 16), nn.SiLU),
        ((8, 12, 12, 24), nn.GELU),
    )[variant]
    layers: list[nn.Module] = []
    for place, (inputs, outputs) in enumerate(itertools.pairwise((shape[0], *channels))):
        stride = 2 if place < 2 else 1
        layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1), _norm(norm, outputs, 2)]
        layers += [activation()]
    side = shape[1] // 4
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * side**2, 10))


def _transformer(shape: tuple[int, ...], norm: str, variant: int) -> nn.Module:
    width, layers = ((24, 2), (32, 1), (16, 3))[variant]
    model = TransformerEncoder(shape, "layer", width, layers)
    if norm == "group":
        return _with_group_norm(model)
    return model if norm == "layer" else convert(model, to=norm)


class _TokenGroupNorm(nn.GroupNorm):
    """GroupNorm over the groups of features of every token, as of a row."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Normalize (samples, tokens, features)."""
        return super().forward(tokens.flatten(0, -2)).view_as(tokens)


def _with_group_norm(model: nn.Module) -> nn.Module:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.LayerNorm):
            parent, _, own = name.rpartition(".")
            width = module.normalized_shape[0]
            setattr(model.get_submodule(parent), own, _TokenGroupNorm(4, width))
    return model


def _norm(norm: str, features: int, dimensions: int) -> nn.Module:
    if norm == "group":
        return nn.GroupNorm(4 if features % 4 == 0 else 2, features)
    return normalization(norm, features, dimensions)


_BUILDERS: dict[str, Callable[[tuple[int, ...], str, int], nn.Module]] = {
    "mlp": _mlp,
    "conv": _conv,
    "transformer": _transformer,
}


def _cells() -> dict[str, Cell]:
    """All cells; architecture and variant rotate independently of each other."""
    found = {}
    axes = (BATCH_SIZES, MOMENTA, NORMS, LOSS_NAMES)
    for places in itertools.product(*(range(len(each)) for each in axes)):
        batch, momentum, norm, loss = places
        architecture = ARCHITECTURES[(batch + momentum + norm + loss) % 3]
        variant = (batch - momentum + norm + 2 * loss) % 3
        values = (axis[place] for axis, place in zip(axes, places, strict=True))
        cell = Cell(*values, architecture, variant)
        found[cell.name] = cell
    return found


CELLS = _cells()


def true_onsets(cell: Cell) -> list[float]:
    """The smallest unstable learning rate to 5 %, for each of three orders of the data."""
    return onsets_of(_run_of(cell), LIMITS[cell.loss])


def _run_of(cell: Cell) -> Run:
    """Return a function that trains a copy, giving the loss before every update."""
    model = cell.model()
    x, y = cell.data

    def run(rate_at: Callable[[int], float], order: int, steps: int) -> Iterator[float]:
        trained = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(trained.parameters(), lr=1.0, momentum=cell.momentum)
        generator = torch.Generator().manual_seed(1000 + order)
        permutation = torch.randperm(len(x), generator=generator)
        for step in range(steps):
            start = step * cell.batch_size % (len(x) - cell.batch_size + 1)
            chosen = permutation[start : start + cell.batch_size]
            loss = LOSSES[cell.loss](trained(x[chosen]), y[chosen])
            yield loss.item()
            optimizer.param_groups[0]["lr"] = rate_at(step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


class Store:
    """Finished cells in a JSON file, rewritten after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, row: Any) -> None:
        """Keep a row; a run that is cut off leaves the old file or the new one."""
        self.rows[name] = row
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.rows, indent=1) + "\n")
        unfinished.replace(self._path)


def find_truth(names: list[str], store: Store) -> None:
    """Search the onsets of the cells that have none yet."""
    for name in names:
        if name not in store.rows:
            store.add(name, true_onsets(CELLS[name]))
            print(name, [f"{each:.3g}" for each in store.rows[name]], flush=True)


def measured(cell: Cell, verify: bool) -> Row:
    """The advice on a cell, without runs and with them, and what the prediction takes."""
    model = cell.model()
    options = {"momentum": cell.momentum, "batch_size": cell.batch_size}
    begin = time.process_time()
    predicted = max_learning_rate(model, cell.loss, cell.data, **options, verify=False)
    seconds = time.process_time() - begin
    row = {
        "predicted": predicted.predicted,
        "bound": predicted.bound,
        "curvature_bound": predicted.curvature_bound,
        "interval": list(predicted.interval),
        "reason": predicted.prediction_reason or predicted.prediction.reason,
        "seconds": seconds,
        "prediction_seconds": prediction_seconds(cell, predicted.bound),
        "range_test_seconds": range_test_seconds(cell),
    }
    if verify:
        found = max_learning_rate(model, cell.loss, cell.data, **options, effort="thorough")
        row["verified"] = found.verification.onset
        row["verified_curvature_bound"] = found.curvature_bound
    return row


def prediction_seconds(cell: Cell, bound: float) -> float:
    """Seconds of the prediction alone: the least of two."""
    problem, rule = Problem(cell.model(), cell.loss, cell.data), UpdateRule("SGD", cell.momentum)
    setup = TrainingSetup(problem, sgd(1.0, cell.momentum), cell.batch_size, 0)

    def predict() -> None:
        count = max(PREDICTION_BATCHES, trial_batch_count(setup.batches(1)[0]))
        predict_limit(problem, setup.batches(count), rule, lambda: bound)

    return min(_seconds(predict) for _ in range(2))


def range_test_seconds(cell: Cell) -> float:
    """Seconds of 100 training steps: ten times the least of two runs of ten."""
    run = _run_of(cell)

    def train() -> None:
        for _ in run(lambda step: 1e-6, 0, 10):
            pass

    train()
    return 10 * min(_seconds(train) for _ in range(2))


def _seconds(call: Callable[[], None]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def onset_of(onsets: list[float]) -> float:
    """The median over the orders of the data."""
    return sorted(onsets)[len(onsets) // 2]


def ratios(rows: dict[str, Row], truth: dict[str, list[float]], key: str) -> dict[str, float]:
    """A rate of every cell over the true onset."""
    return {
        name: row[key] / onset_of(truth[name])
        for name, row in rows.items()
        if row.get(key) is not None
    }


def table(rows: dict[str, Row], truth: dict[str, list[float]]) -> str:
    """All cells as a Markdown table, the worst predictions first."""
    predicted = ratios(rows, truth, "predicted")
    lines = [
        "| cell | group | onset | predicted | interval holds | bound | verified | its bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in sorted(rows, key=lambda name: -_factor(predicted.get(name, 1.0))):
        row, onset = rows[name], onset_of(truth[name])
        low, high = row["interval"]
        shown = [row["predicted"], row["curvature_bound"]]
        shown += [row.get("verified"), row.get("verified_curvature_bound")]
        rate, bound, verified, lowered = (
            "-" if each is None else f"{each / onset:.2g}" for each in shown
        )
        held = "yes" if low <= onset <= high else "no"
        cells = (CELLS[name].label, CELLS[name].group, f"{onset:.3g}", rate, held, bound)
        lines.append(f"| {' | '.join((*cells, verified, lowered))} |")
    return "\n".join(lines)


def _factor(ratio: float) -> float:
    return max(ratio, 1 / ratio)


def summary(rows: dict[str, Row], truth: dict[str, list[float]]) -> str:
    """Medians and worst of the cells that may be tuned on, of those held out, and of all."""
    lines = []
    for group in ("dev", "held out", "all"):
        chosen = {n: row for n, row in rows.items() if group in ("all", CELLS[n].group)}
        if chosen:
            lines += [f"{group}: {line}" for line in _summary_lines(chosen, truth)]
    for key in ("prediction_seconds", "seconds"):
        shares = sorted(row[key] / row["range_test_seconds"] for row in rows.values())
        lines.append(
            f"{key} over those of a range test: {statistics.median(shares):.2f} median, "
            f"{shares[int(0.9 * len(shares))]:.2f} in nine of ten, {shares[-1]:.2f} at most"
        )
    return "\n".join(lines)


def _summary_lines(rows: dict[str, Row], truth: dict[str, list[float]]) -> list[str]:
    lines = []
    for key in ("predicted", "verified"):
        factors = sorted(map(_factor, ratios(rows, truth, key).values()))
        if factors:
            lines.append(
                f"{key} in {len(factors)} cells: factor {statistics.median(factors):.2f} median, "
                f"{factors[int(0.9 * len(factors))]:.2f} in nine of ten, {factors[-1]:.2f} worst, "
                f"{sum(each > 5 for each in factors)} beyond 5"
            )
    for key in ("bound", "curvature_bound", "verified_curvature_bound"):
        found = ratios(rows, truth, key)
        above = sum(each > 1 for each in found.values())
        if found:
            lines.append(f"{key} above the onset in {above} of {len(found)}")
    ends = {name: (*row["interval"], onset_of(truth[name])) for name, row in rows.items()}
    held = sum(low <= onset <= high for low, high, onset in ends.values())
    lines.append(f"the interval without runs holds the onset in {held} of {len(ends)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, required=True, metavar="DIR")
    parser.add_argument("--truth", action="store_true", help="find the onsets and stop")
    parser.add_argument("--cells", nargs="+", choices=CELLS, metavar="NAME", help="only these")
    parser.add_argument("--group", choices=("dev", "held out"), help="only these cells")
    parser.add_argument("--no-runs", action="store_true", help="leave the verifying runs out")
    parser.add_argument("--renew", action="store_true", help="keep only the truth")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.store.mkdir(parents=True, exist_ok=True)
    names = options.cells or list(CELLS)
    names = [name for name in names if options.group in (None, CELLS[name].group)]
    truth = Store(options.store / "truth.json")
    find_truth(names, truth)
    if options.truth:
        return
    store = Store(options.store / "advice.json")
    if options.renew:
        store.rows = {}
    for name in names:
        if "predicted" not in store.rows.get(name, {}):
            store.add(name, measured(CELLS[name], not options.no_runs))
            print(name, {k: v for k, v in store.rows[name].items() if k != "reason"}, flush=True)
    rows = {name: store.rows[name] for name in names}
    print(table(rows, truth.rows))
    print(summary(rows, truth.rows))


if __name__ == "__main__":
    main()
