"""The network of the README, for the command line.

normscope lr examples/small_net.py:build --data digits --momentum 0.9 --batch-size 128
"""

from torch import nn


def build() -> nn.Module:
    """Return one hidden layer with BatchNorm; the command seeds torch before it calls this."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10)
    )
