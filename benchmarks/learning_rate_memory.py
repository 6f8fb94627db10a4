"""Peak memory of the advisor, in sizes of the parameters, against a training step.

    python benchmarks/learning_rate_memory.py [--width 4000]

A plain fully connected network with momentum; float32, one thread. The rise of the resident set
above its start, so that the parameters themselves are not counted.
"""

from __future__ import annotations

import argparse

import torch
from memory import peak_megabytes
from torch import nn

import normscope as ns


def build(width: int) -> nn.Module:
    """Return three linear layers with ReLU, ten outputs."""
    torch.manual_seed(0)
    hidden = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Take three steps of SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:64]), y[:64]).backward()
        optimizer.step()


def main() -> None:
    """Print one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4000)
    width = parser.parse_args().width
    torch.set_num_threads(1)
    x, y = torch.randn(256, width), torch.randint(10, (256,))

    def advise(effort: str, width: int = width) -> None:
        data = x[:, :width], y
        ns.max_learning_rate(
            build(width), "cross_entropy", data, batch_size=64, momentum=0.9, effort=effort
        )

    advise("default", 8)  # imports are not part of it
    size = sum(each.numel() for each in build(width).parameters()) * 4 / 2**20
    for name in ("quick", "default"):
        peak = peak_megabytes(lambda name=name: advise(name))
        print(f"{name}: {peak / size - 1:.1f} times the parameters ({size:.0f} MB)", flush=True)
    peak = peak_megabytes(lambda: train(build(width), x, y))
    print(f"training step: {peak / size - 1:.1f} times the parameters")


if __name__ == "__main__":
    main()
