"""Forward and backward pass of the layers against torch's and against plain tensor operations.

    python benchmarks/layers.py [--quick] [--json FILE]

One process; the contenders of a shape take turns and the shortest time of each is kept. A pass is
a forward in training mode and a backward to input, weight and bias, in float32 on the CPU.

The bytes counted are the least any implementation must move: the forward reads x and writes y, the
backward reads g and x and writes dx, five tensors. "of copy" compares these bytes per second with
those of copying a tensor of the same size between two existing ones (read and write counted).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from timing import interleaved
from torch import Tensor, nn

from normscope.layers import (
    BatchNorm1d,
    BatchNorm2d,
    LpNorm1d,
    LpNorm2d,
    NoisyBatchNorm1d,
    NoisyBatchNorm2d,
)

SHAPES = [(128, 64, 32, 32), (128, 1000), (1024, 1000)]
ORDERS = {"l1": 1.0, "l2": 2.0, "linf": math.inf}


class Composite(nn.Module):
    """What one writes with tensor operations and autograd; the scale is the subclass's."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_scale", torch.ones(channels))

    def scale(self, x: Tensor, dims: list[int]) -> Tensor:
        """Standard deviation."""
        return (x.var(dims, unbiased=False, keepdim=True) + 1e-5).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        """Normalize by the batch, and keep running statistics."""
        dims, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
        mean, scale = x.mean(dims, keepdim=True), self.scale(x, dims)
        with torch.no_grad():
            self.running_mean.lerp_(mean.flatten(), 0.1)
            self.running_scale.lerp_(scale.flatten(), 0.1)
        return (x - mean) / scale * self.weight.view(shape) + self.bias.view(shape)


class LpComposite(Composite):
    """Plain l_p normalization."""

    def __init__(self, channels: int, order: float) -> None:
        super().__init__(channels)
        self.order = order

    def scale(self, x: Tensor, dims: list[int]) -> Tensor:
        """Average size of the order, before centring."""
        if self.order == 1:
            return x.abs().mean(dims, keepdim=True) + 1e-5
        if self.order == 2:
            return (x.square().mean(dims, keepdim=True) + 1e-5).sqrt()
        return x.abs().amax(dims, keepdim=True) + 1e-5


class NoisyComposite(Composite):
    """Plain Algorithm 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize, then disturb every activation."""
        a = super().forward(x)
        units = [1, x.shape[1]] + [1] * (x.dim() - 2)
        shift, factor = torch.rand(units) - 0.5, 1 + 0.25 * torch.rand(units)
        shift = shift + 0.1 * (2 * torch.rand_like(a) - 1)
        factor = factor + 0.1 * torch.randn_like(a)
        return factor * a + shift


def layers(shape: tuple[int, ...]) -> dict[str, tuple[nn.Module, nn.Module]]:
    """Ours and the composite, by name."""
    channels, flat = shape[1], len(shape) == 2
    batch, noisy = (BatchNorm1d, NoisyBatchNorm1d) if flat else (BatchNorm2d, NoisyBatchNorm2d)
    lp = LpNorm1d if flat else LpNorm2d
    return {
        "batch": (batch(channels), Composite(channels)),
        "noisy": (noisy(channels), NoisyComposite(channels)),
        **{
            name: (lp(channels, p=order), LpComposite(channels, order))
            for name, order in ORDERS.items()
        },
    }


def training_pass(layer: nn.Module, x: Tensor, gradient: Tensor) -> Callable[[], None]:
    x = x.clone().requires_grad_()

    def run() -> None:
        x.grad = None
        layer.zero_grad(set_to_none=True)
        layer(x).backward(gradient)

    return run


def measure(shape: tuple[int, ...], seconds: float) -> list[dict[str, object]]:
    """One row per layer."""
    generator = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
    native = nn.BatchNorm1d(shape[1]) if len(shape) == 2 else nn.BatchNorm2d(shape[1])
    target = torch.empty_like(x)
    cases = {"torch": training_pass(native, x, gradient), "copy": lambda: target.copy_(x)}
    for name, (ours, composite) in layers(shape).items():
        cases[name] = training_pass(ours, x, gradient)
        cases[f"{name} composite"] = training_pass(composite, x, gradient)
    times = interleaved(cases, seconds=seconds)
    size = x.numel() * x.element_size()
    return [
        {
            "shape": list(shape),
            "layer": name,
            "milliseconds": times[name] * 1e3,
            "torch_milliseconds": times["torch"] * 1e3,
            "composite_milliseconds": times[f"{name} composite"] * 1e3,
            "times_torch": times["torch"] / times[name],
            "times_composite": times[f"{name} composite"] / times[name],
            "gigabytes_per_second": 5 * size / times[name] / 1e9,
            "fraction_of_copy": (5 * size / times[name]) / (2 * size / times["copy"]),
        }
        for name in layers(shape)
    ]


def goal(row: dict[str, object]) -> tuple[str, bool]:
    """The goal of a row in words, and whether it is met."""
    if row["layer"] == "batch":
        return "0.95 x torch", row["times_torch"] >= 0.95
    return "2 x composite", row["times_composite"] >= 2


def show(rows: list[dict[str, object]]) -> None:
    table = Table(title="forward + backward, float32 (ratios: larger is faster)")
    for column in ("shape", "layer", "ms", "x torch BN", "x composite", "GB/s", "of copy", "goal"):
        table.add_column(column, justify="left" if column in ("shape", "layer") else "right")
    for row in rows:
        words, met = goal(row)
        table.add_row(
            "x".join(str(n) for n in row["shape"]),
            row["layer"],
            f"{row['milliseconds']:.3f}",
            f"{row['times_torch']:.2f}",
            f"{row['times_composite']:.2f}",
            f"{row['gigabytes_per_second']:.1f}",
            f"{row['fraction_of_copy']:.2f}",
            f"{words}: {'met' if met else 'MISSED'}",
        )
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads, {platform.machine()}")
    rows = [row for shape in SHAPES for row in measure(shape, 3 if options.quick else 20)]
    show(rows)
    missed = [row for row in rows if not goal(row)[1]]
    print(f"goals: {len(rows) - len(missed)} of {len(rows)} met")
    if options.json:
        environment = {"torch": torch.__version__, "threads": threads}
        options.json.write_text(json.dumps({**environment, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
