"""The largest eigenvalue of the Fisher matrix at initialization against mean-field theory.

    python benchmarks/meanfield_curvature.py [--quick] [--table gamma|depth|networks] [--json FILE]
    python benchmarks/meanfield_curvature.py --table networks --networks resnet18/64 --seeds 2

Fully connected ReLU nets at initialization, iid normal inputs. With train-mode BatchNorm only the
linear head has a mean gradient, and the largest eigenvalue is N gamma^2 / (2 pi), N the width,
while the net is shallow; with the statistics frozen, every layer adds to it. In deep nets the
gradients explode and the eigenvalue leaves that branch. The theory is about the weights of the
linear layers, and so are the rows that it is compared with. Biases, gamma and beta add to the
eigenvalue what does not shrink with gamma (the bias of the head alone adds one), which shows at
small gamma: the rows "train, all" have every parameter. "reference" are values measured once by
another implementation, by power iteration, on other draws.

The table "networks" has networks that people train, with torch's default initialization, on 128
samples of iid normal pixels or, with --data cifar10, of CIFAR-10: the prediction of the theory,
mean over the initializations, and the measured eigenvalue over the weights.

Reference: wei2018, Section 4 and Eq. (10).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from networks import ResNet18, SmallConvNeXt, SmallViT
from rich.console import Console
from rich.table import Table
from torch import nn

from normscope.curvature import top_eigenvalue
from normscope.data import gaussian_inputs, load
from normscope.meanfield import predict
from normscope.models import build

TOLERANCE = 0.02  # of the head term, at every gamma
# gamma -> train, frozen; 784-1000x3-10, sigma_w^2 = 2, sigma_b^2 = 0.5, 1000 samples
BY_GAMMA = {
    0.1: (1.60, 4.04),
    0.5: (40.0, 99.7),
    1.0: (160.0, 410.0),
    2.0: (640.0, 1644.0),
    3.0: (1441.0, 3616.0),
}
# linear layers -> train, frozen; 200-300x(L-1)-10, sigma_b = 0, 300 samples
BY_DEPTH = {
    3: (48.5, 94.5),
    6: (49.6, 203.0),
    10: (155.0, 387.0),
    15: (1490.0, 2551.0),
    20: (12287.0, 21493.0),
}


CASES = {"train": "train", "train, all": "train", "frozen": "frozen"}  # row -> mode


@dataclass(frozen=True)
class Row:
    """One net over several seeds."""

    table: str
    setting: float | str
    case: str
    theory: float | None
    reference: float | None
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return sum(self.values) / len(self.values)

    @property
    def within(self) -> bool | None:
        """Whether every seed is within the tolerance of the theory; None where there is none."""
        if self.theory is None:
            return None
        return all(abs(value / self.theory - 1) <= TOLERANCE for value in self.values)


def head_term(width: int, gamma: float) -> float:
    return width * gamma**2 / (2 * math.pi)


def measured(model: nn.Module, inputs: torch.Tensor, case: str) -> float:
    targets = torch.zeros(len(inputs), 10)  # the Fisher matrix does not depend on them
    layers = (nn.Linear, nn.Conv2d)
    weights = [layer.weight for layer in model.modules() if isinstance(layer, layers)]
    params = None if case.endswith("all") else weights
    batch = (inputs, targets)
    found = top_eigenvalue(model, "squared_error", batch, "fisher", CASES[case], params=params)
    return found.value


def gamma_rows(gammas: list[float], seeds: range) -> list[Row]:
    def model(gamma: float, seed: int) -> nn.Module:
        shape = (784,)
        return build(
            "fully_connected", seed=seed, gamma=gamma, input_shape=shape, sigma_w2=2.0, sigma_b2=0.5
        )

    theory = {gamma: head_term(1000, gamma) for gamma in gammas}
    inputs = {seed: gaussian_inputs((784,), 1000, seed) for seed in seeds}
    return rows_of("gamma", model, inputs, {gamma: BY_GAMMA[gamma] for gamma in gammas}, theory)


def depth_rows(depths: list[int], seeds: range) -> list[Row]:
    def model(depth: float, seed: int) -> nn.Module:
        sizes = {"input_shape": (200,), "width": 300, "depth": int(depth)}
        return build("fully_connected", seed=seed, sigma_w2=2.0, sigma_b2=0.0, **sizes)

    inputs = {seed: gaussian_inputs((200,), 300, seed) for seed in seeds}
    return rows_of("depth", model, inputs, {depth: BY_DEPTH[depth] for depth in depths}, {})


def rows_of(
    table: str,
    model: Callable[[float, int], nn.Module],
    inputs: dict[int, torch.Tensor],
    references: Mapping[float, tuple[float, float]],
    theory: Mapping[float, float],
) -> list[Row]:
    rows = []
    for setting, (train, frozen) in references.items():
        networks = {seed: model(setting, seed) for seed in inputs}
        for case in CASES:
            values = tuple(measured(networks[seed], inputs[seed], case) for seed in inputs)
            reference = {"train": train, "frozen": frozen}.get(case)
            expected = theory.get(setting) if case == "train" else None
            rows.append(Row(table, setting, case, expected, reference, values))
    return rows


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet18/16": lambda: ResNet18(16),
    "resnet18/32": lambda: ResNet18(32),
    "resnet18/64": lambda: ResNet18(64),
    "vit/64": lambda: SmallViT(64),
    "vit/128": lambda: SmallViT(128),
    "vit/256": lambda: SmallViT(256),
    "convnext/32": lambda: SmallConvNeXt(32),
    "convnext/64": lambda: SmallConvNeXt(64),
}
SAMPLES = 128


def network_rows(names: list[str], seeds: range, data: str | None) -> list[Row]:
    rows = []
    for name in names:
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in seeds:
            torch.manual_seed(seed)
            model = NETWORKS[name]()
            inputs = network_inputs(seed, data)
            given = None if data is None else inputs
            batch_norm = any(isinstance(each, nn.BatchNorm2d) for each in model.modules())
            for mode in ("frozen", "train") if batch_norm else ("frozen",):
                theory = predict(model, (3, 32, 32), mode, given, batch_size=SAMPLES).lambda_max
                found.setdefault(mode, []).append((theory, measured(model, inputs, mode)))
        for mode, pairs in found.items():
            theory = sum(each[0] for each in pairs) / len(pairs)
            values = tuple(each[1] for each in pairs)
            rows.append(Row("networks", name, mode, theory, None, values))
        print(rows[-1], flush=True)
    return rows


def network_inputs(seed: int, data: str | None) -> torch.Tensor:
    if data is None:
        return gaussian_inputs((3, 32, 32), SAMPLES, seed)
    images = load(data).train[0]
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:SAMPLES]
    return torch.as_tensor(images[chosen]).float()


def show_networks(rows: list[Row]) -> None:
    table = Table(title=f"{SAMPLES} samples, {len(rows[0].values)} seeds, weights")
    for column in ("network", "statistics", "predicted", "measured", "lowest", "highest", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        numbers = (row.theory, row.mean, min(row.values), max(row.values), row.theory / row.mean)
        table.add_row(str(row.setting), row.case, *(f"{each:.3g}" for each in numbers))
    Console(width=100).print(table)


def show(title: str, rows: list[Row]) -> None:
    table = Table(title=title)
    names = (rows[0].table, "statistics", "theory", "mean", "lowest", "highest", "reference", "")
    for name in names:
        table.add_column(name, justify="left" if name == "statistics" else "right")
    for row in rows:
        words = {None: "", True: "within 2 %", False: "OUTSIDE 2 %"}[row.within]
        numbers = (row.theory, row.mean, min(row.values), max(row.values), row.reference)
        cells = ("-" if number is None else f"{number:.4g}" for number in numbers)
        table.add_row(f"{row.setting}", row.case, *cells, words)
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, two settings of each table")
    tables = ["gamma", "depth", "networks"]
    parser.add_argument("--table", choices=tables, help="only this one")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), help="only these")
    parser.add_argument("--data", help="a data set for the networks, such as cifar10")
    parser.add_argument("--seeds", type=int, default=3, help="how many (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    seeds = range(1 if options.quick else options.seeds)
    rows: list[Row] = []
    if options.table in (None, "gamma"):
        gammas = [0.1, 1.0] if options.quick else list(BY_GAMMA)
        rows += (by_gamma := gamma_rows(gammas, seeds))
        show(f"784-1000x3-10, 1000 samples, {len(seeds)} seeds; theory: N gamma^2/(2 pi)", by_gamma)
    if options.table in (None, "depth"):
        depths = [3, 10] if options.quick else list(BY_DEPTH)
        rows += (by_depth := depth_rows(depths, seeds))
        head = head_term(300, 1.0)
        show(f"200-300x(L-1)-10, 300 samples, {len(seeds)} seeds; head term {head:.1f}", by_depth)
    if options.table in (None, "networks"):
        names = options.networks or (["resnet18/16", "vit/64"] if options.quick else list(NETWORKS))
        rows += (by_network := network_rows(names, seeds, options.data))
        show_networks(by_network)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
