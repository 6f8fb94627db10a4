"""The fully connected network of the mean-field paper."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from normscope.models.activations import activation_layers
from normscope.models.catalogue import NormFactory, architecture
from normscope.models.initialization import linear
from normscope.models.sizes import positive, vector_size

__all__ = ["fully_connected"]


@architecture(initialization="meanfield")
def fully_connected(
    norm: NormFactory,
    *,
    input_shape: Sequence[int] = (1, 28, 28),
    outputs: int = 10,
    depth: int = 4,
    width: int = 1000,
    activation: str = "relu",
    bias: bool = True,
) -> nn.Module:
    """Fully connected network: linear, normalization, activation; the last layer linear.

    A chain ``flatten``, ``features`` (three modules for each hidden layer), ``head``. The biases
    stay when a normalization follows, as in the paper, and so that the weights do not depend on
    the normalization.

    Reference: wei2018, Section 4.

    Args:
        norm: makes the normalization layers.
        input_shape: without the batch; images are flattened.
        outputs: size of the last layer.
        depth: number of linear layers.
        width: units of a hidden layer.
        activation: gelu, linear, relu, sigmoid or tanh.
        bias: whether the linear layers have biases.

    Returns:
        A chain of modules.

    >>> network = fully_connected(norm="none", input_shape=(5,), depth=2, width=3)
    >>> network.features[0]
    Linear(in_features=5, out_features=3, bias=True)
    """
    positive(outputs=outputs, depth=depth, width=width)
    features: list[nn.Module] = []
    inputs = vector_size(input_shape)
    for _ in range(depth - 1):
        features += [linear(inputs, width, bias), norm(width, 0), *activation_layers(activation)]
        inputs = width
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            flatten=nn.Flatten(),
            features=nn.Sequential(*features),
            head=linear(inputs, outputs, bias),
        )
    )
