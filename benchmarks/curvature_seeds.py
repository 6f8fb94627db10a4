"""How often the largest eigenvalue misses 1e-3, over seeds, for both stopping rules.

    python benchmarks/curvature_seeds.py [--seeds N]

Nets of moderate width, where the eigenvalues of a Fisher matrix (one for each output) are close
but not equal, so that a search may end at the second of them. The truth is our own block search in
float64, three vectors wide, to a residual of 1e-5.
"""

from __future__ import annotations

import argparse
import copy
from collections import defaultdict
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from normscope.curvature import top_eigenvalue
from normscope.layers import population_statistics
from normscope.models import build

ACCURACY = 1e-3
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "fc_bn": (lambda: build("fully_connected", width=150), (1, 28, 28), 256),
    "fc": (lambda: build("fully_connected", width=150, norm="none"), (1, 28, 28), 256),
    "conv_bn": (lambda: build("conv_net", channels=(12, 16, 24)), (3, 32, 32), 192),
}

Case = tuple[str, str, str, str]  # net, kind, mode, stopping rule


def measure(name: str, seed: int, found: dict[Case, list[tuple[float, float]]]) -> None:
    make, shape, samples = NETS[name]
    torch.manual_seed(seed)
    model = make()
    data = torch.randn(samples, *shape) * (1 + seed % 3), torch.randint(10, (samples,))
    has_statistics = any(True for _ in model.buffers())
    if has_statistics:
        population_statistics(model, data)
    exact = data[0].double(), data[1]
    for mode in ("train", "eval") if has_statistics else ("eval",):
        for kind in ("fisher", "hessian"):
            wide = copy.deepcopy(model).double()
            truth = top_eigenvalue(
                wide, "cross_entropy", exact, kind, mode, k=3, tol=1e-5, max_products=600
            )
            for stop in ("value", "residual"):
                top = top_eigenvalue(
                    model, "cross_entropy", data, kind, mode, tol=ACCURACY, stop=stop
                )
                error = abs(top.value / truth.value - 1)
                found[name, kind, mode, stop].append((error, top.matvecs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, metavar="N")
    options = parser.parse_args()
    found: dict[Case, list[tuple[float, float]]] = defaultdict(list)
    for name in NETS:
        for seed in range(options.seeds):
            measure(name, seed, found)
    table = Table(title=f"largest eigenvalue to {ACCURACY:g}, {options.seeds} seeds")
    for column in ("net", "kind", "mode", "stop", "missed", "worst error", "products"):
        table.add_column(column)
    for case, rows in sorted(found.items()):
        errors = [error for error, _ in rows]
        missed = sum(error > ACCURACY for error in errors)
        products = sum(count for _, count in rows) / len(rows)
        table.add_row(*case, f"{missed} of {len(rows)}", f"{max(errors):.0e}", f"{products:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
