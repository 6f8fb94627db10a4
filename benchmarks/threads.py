"""Time of a training step with one thread and with all, against the arithmetic of its forward pass.

    python benchmarks/threads.py [--seconds S]

Both take turns in one process, three times, and the shortest time of each counts. Where the ratio
is above one, several threads are slower. Run it on an idle machine, and beside other work: threads
that wait for a core that is taken are why `normscope.problem.threads` exists.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode


def mlp(width: int, samples: int) -> tuple[nn.Module, torch.Tensor]:
    hidden = [(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(3)]
    layers = [layer for group in hidden for layer in group]
    return nn.Sequential(nn.Linear(width, width), *layers), torch.randn(samples, width)


def conv(channels: int, samples: int) -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(3):
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        layers += [nn.Conv2d(channels, channels, 3, padding=1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head), torch.randn(samples, 3, 16, 16)


NETWORKS = {
    **{f"mlp, width {width}": mlp(width, 64) for width in (32, 128, 256, 512, 1024)},
    **{f"conv net, {channels} channels": conv(channels, 32) for channels in (8, 16, 32, 64)},
}


def step_time(model: nn.Module, inputs: torch.Tensor, threads: int, seconds: float) -> float:
    """Return the milliseconds of a training step."""
    torch.set_num_threads(threads)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    labels = torch.zeros(len(inputs), dtype=torch.long)
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        steps += 1
    return 1e3 * (time.perf_counter() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each timing")
    seconds = parser.parse_args().seconds
    many = os.cpu_count() or 2
    print(f"torch {torch.__version__}, {many} threads, load {os.getloadavg()[0]:.1f}")
    for name, (model, inputs) in NETWORKS.items():
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(inputs)
        turns = [
            [step_time(model, inputs, threads, seconds) for threads in (1, many)] for _ in range(3)
        ]
        one, all_of_them = map(min, zip(*turns, strict=True))
        print(
            f"{name}: forward {counter.get_total_flops() / 1e6:.0f} MFLOP, one thread {one:.2f} "
            f"ms, {many} threads {all_of_them:.2f} ms, ratio {all_of_them / one:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
