"""The deep linear network of the loss-landscape paper."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from normscope.models.catalogue import NormFactory, architecture
from normscope.models.fully_connected import fully_connected

__all__ = ["deep_linear"]


@architecture(initialization="glorot")
def deep_linear(
    norm: NormFactory,
    *,
    input_shape: Sequence[int] = (10,),
    outputs: int = 10,
    depth: int = 25,
    width: int = 10,
    normalize_output: bool = False,
) -> nn.Module:
    """Deep linear network (DLN): a product of matrices, without biases or activations.

    A chain ``flatten``, ``features`` (two modules for each hidden layer), ``head``. The paper does
    not say after which layers it normalizes; here it is after all but the last, so that the output
    can take any mean and scale and the regression target can be fitted.

    Reference: santurkar2018, Appendix A.1.

    Args:
        norm: makes the normalization layers.
        input_shape: without the batch; images are flattened.
        outputs: size of the last layer.
        depth: number of linear layers.
        width: units of a hidden layer.
        normalize_output: whether a normalization follows the last layer too, as ``head_norm``.

    Returns:
        A chain of modules.

    >>> network = deep_linear(norm="none")
    >>> sum(parameter.numel() for parameter in network.parameters())  # 25 matrices of 10 x 10
    2500
    """
    network = fully_connected.layers(
        norm,
        input_shape=input_shape,
        outputs=outputs,
        depth=depth,
        width=width,
        activation="linear",
        bias=False,
    )
    if normalize_output:
        network.add_module("head_norm", norm(outputs, 0))
    return network
