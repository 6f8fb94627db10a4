r"""The paper's two networks with their data and losses.

**The scale of the deep linear network's loss.** The paper minimizes ``|W_1 ... W_k x - A x|^2``
with a learning rate of 1e-6 and does not say whether the loss is summed or averaged over the 1000
samples and the 10 outputs. Gradient descent answers: a loss divided by a number trains as the
undivided one with the learning rate divided by it, so 1e-6 is 1e-9 of the sum if the loss is a
mean over samples, and 1e-10 if it is a mean over samples and outputs. Measured with seed 0, in
squared error per sample: of the sum, 1e-6 takes the standard network from 130 to 44 in 300 steps
and to 20, where it stays, in 1000; 1e-7 needs ten times as many, and 1e-5 diverges within 20
steps. At 1e-9 all 10,000 steps lead only as far as ten of these, to 113, and at 1e-10 as far as
one. So the loss is the sum: only then does the loss level off within the paper's 10,000 steps, and
only then is 1e-6 near the largest rate that the standard network bears. `loss_scale` measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional

from normscope.data import Dataset, load
from normscope.data.catalogue import DATASETS
from normscope.models import build
from normscope.problem.loss import Loss, cross_entropy

if TYPE_CHECKING:
    from normscope.experiments.santurkar2018.trainings import Training

__all__ = ["NETWORKS", "Network", "summed_squares"]


@dataclass(frozen=True)
class Network:
    """What is trained.

    Args:
        build: the network of a training and a seed.
        data: its data.
        loss: as the paper's learning rate asks for it.
    """

    build: Callable[[Training, int], nn.Module]
    data: Callable[[Training, int], Dataset]
    loss: Loss


def summed_squares(output: Tensor, target: Tensor) -> Tensor:
    r"""Squared distance to the target, summed over outputs and samples.

    .. math:: L = \sum_{i=1}^{m} \lVert f_i - y_i \rVert^2

    Reference: santurkar2018, Appendix A.1.

    Args:
        output: (batch, outputs).
        target: like the output.

    Returns:
        The loss, a tensor without dimensions.

    >>> import torch
    >>> summed_squares(torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)).item()
    5.0
    """
    return functional.mse_loss(output, target, reduction="sum")


@lru_cache(maxsize=1)
def _images(name: str) -> Dataset:
    """Read once for all trainings of a process."""
    return load(name)


def _vgg_data(training: Training, seed: int) -> Dataset:
    return _images(training.options["data"])


def _vgg(training: Training, seed: int) -> nn.Module:
    shape = tuple(_vgg_data(training, seed).train.x.shape[1:])
    width = training.options["width"]
    return build("vgg", norm=training.norm, seed=seed, input_shape=shape, width=width)


def _deep_linear(training: Training, seed: int) -> nn.Module:
    return build("deep_linear", norm=training.norm, seed=seed, depth=training.options["depth"])


def _deep_linear_data(training: Training, seed: int) -> Dataset:
    """A new matrix A and new inputs for every seed."""
    samples = training.options["samples"]
    return DATASETS["gaussian"](samples=samples, test_samples=1, seed=seed)


NETWORKS = {
    "vgg": Network(_vgg, _vgg_data, cross_entropy),
    "deep_linear": Network(_deep_linear, _deep_linear_data, summed_squares),
}
