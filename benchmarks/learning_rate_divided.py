"""`Advice.predicted` for Adam, AdamW and RMSprop, over the limit that runs verify.

    python benchmarks/learning_rate_divided.py

Small nets on the embedded digits, batches of 64, both losses: fully connected ones without and with
BatchNorm, and one of tanh as torch initializes it. Above 1 is too large. The prediction is where
the loss first exceeds its multiple; the limit, where it does not come back, is often higher. With <
no run was unstable, and the ratio is to the largest rate tried.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

import torch
from torch import nn

import normscope as ns

OPTIMIZERS = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "RMSprop": torch.optim.RMSprop,
}
LOSSES = ("cross_entropy", "squared_error")


def built(norm: str) -> nn.Module:
    return ns.models.build("fully_connected", input_shape=(1, 8, 8), width=50, norm=norm)


def tanh() -> nn.Module:
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(100, 10))


NETS: dict[str, Callable[[], nn.Module]] = {
    "fully connected, no norm": lambda: built("none"),
    "fully connected, BatchNorm": lambda: built("batch"),
    "tanh": tanh,
}


def main() -> None:
    torch.set_num_threads(1)
    digits, offs = ns.data.load("digits"), []
    for (name, optimizer), loss, (net, make) in itertools.product(
        OPTIMIZERS.items(), LOSSES, NETS.items()
    ):
        options = {"batch_size": 64, "effort": "thorough", "objective": "half_limit"}
        advice = ns.max_learning_rate(make(), loss, digits.train, optimizer=optimizer, **options)
        ratio = advice.predicted / advice.limit
        offs.append(max(ratio, 1 / ratio))
        sign = "<" if math.isinf(advice.interval[1]) else " "
        print(f"{name:8} {loss:14} {net:27} {advice.predicted:8.3g} {sign}{ratio:6.2f}", flush=True)
    print(f"{len(offs)} cases: off by {statistics.median(offs):.2f} median, {max(offs):.2f} worst")


if __name__ == "__main__":
    main()
