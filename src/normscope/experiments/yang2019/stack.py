"""Deep fully connected nets of equal blocks, plain or residual, and the gradients inside them."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from normscope.layers import normalization
from normscope.models.activations import activation_layers
from normscope.models.initialization import linear, meanfield

__all__ = ["ARCHITECTURES", "Stack", "squared_gradients"]

# normalization, and whether there are skip connections
ARCHITECTURES = {
    "batch": ("batch", False),
    "batch, skip": ("batch", True),
    "layer": ("layer", False),
    "layer, skip": ("layer", True),
}
WEIGHT_VARIANCE = 2.0


class Stack(nn.Module):
    r"""A stem, equal blocks, and a linear head.

    A plain block is :math:`\phi(N(Wx))`, a residual one :math:`x + W\phi(N(x))`; after residual
    blocks one more normalization and activation, as in pre-activation nets.

    Reference: yang2019; he2016 for the residual blocks. Notation: N = normalization.

    Args:
        architecture: a name of ``ARCHITECTURES``.
        inputs: features.
        outputs: of the head.
        depth: number of blocks.
        width: units.
        activation: linear, relu or tanh.
        seed: of the weights.

    >>> Stack("batch, skip", 5, 2, depth=3, width=4)(torch.ones(6, 5)).shape
    torch.Size([6, 2])
    """

    def __init__(
        self,
        architecture: str,
        inputs: int,
        outputs: int,
        *,
        depth: int,
        width: int,
        activation: str = "relu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        norm, self.residual = ARCHITECTURES[architecture]
        self.flatten = nn.Flatten()
        self.stem = linear(inputs, width, bias=False)

        def normalized() -> list[nn.Module]:
            return [normalization(norm, width, 0), *activation_layers(activation)]

        product = partial(linear, width, width, bias=False)
        if self.residual:
            blocks = [nn.Sequential(*normalized(), product()) for _ in range(depth)]
            self.last = nn.Sequential(*normalized())
        else:
            # the stem is the first block's product
            blocks = [nn.Sequential(*normalized())]
            blocks += [nn.Sequential(product(), *normalized()) for _ in range(depth - 1)]
            self.last = nn.Sequential()
        self.blocks = nn.ModuleList(blocks)
        self.head = linear(width, outputs, bias=False)
        meanfield(self, torch.Generator().manual_seed(seed), sigma_w2=WEIGHT_VARIANCE, sigma_b2=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, (batch, outputs)."""
        x = self.stem(self.flatten(x))
        for block in self.blocks:
            x = x + block(x) if self.residual else block(x)
        result: Tensor = self.head(self.last(x))
        return result


def squared_gradients(network: Stack, inputs: Tensor, seed: int) -> npt.NDArray[np.float64]:
    """The squared norm of a random output's gradient by each block's output, from the stem up.

    Args:
        network: in training mode; its parameters get no gradients.
        inputs: a batch.
        seed: of the random direction in the outputs.

    Returns:
        One number per block.
    """
    network.requires_grad_(False)
    outputs: list[Tensor] = []
    x = network.stem(network.flatten(inputs)).requires_grad_()
    for block in network.blocks:
        x = x + block(x) if network.residual else block(x)
        outputs.append(x)
    final = network.head(network.last(x))
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(final.shape, generator=generator, dtype=final.dtype)
    gradients = torch.autograd.grad(final, outputs, direction)
    return np.array([float(each.double().square().sum()) for each in gradients])
