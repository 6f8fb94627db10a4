"""Fully connected networks: that of the mean-field paper, and the deep linear network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from normscope.models.catalogue import NormFactory, architecture
from normscope.models.parts import activation_layers, check_sizes, linear, vector_size


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

    An ``nn.Sequential`` of ``flatten``, ``features`` (three modules for each hidden layer) and
    ``head``. Biases are kept where a normalization follows, as in the paper, and so that the
    weights do not depend on the normalization.

    Reference: wei2018, Section 4.

    Args:
        norm: makes the normalization layers.
        input_shape: without the batch; images are flattened.
        outputs: size of the last layer.
        depth: number of linear layers.
        width: units of a hidden layer.
        activation: gelu, linear, relu, sigmoid or tanh.
        bias: whether the linear layers have biases.

    >>> network = fully_connected(norm="none", input_shape=(5,), depth=2, width=3)
    >>> network.features[0]
    Linear(in_features=5, out_features=3, bias=True)
    """
    check_sizes(outputs=outputs, depth=depth, width=width)
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

    An ``nn.Sequential`` of ``flatten``, ``features`` (two modules for each hidden layer) and
    ``head``. The paper does not state which layers are normalized; here it is all but the last, so
    that the output can take any mean and scale and the regression target can be fitted.

    Reference: santurkar2018, Appendix A.1.

    Args:
        norm: makes the normalization layers.
        input_shape: without the batch; images are flattened.
        outputs: size of the last layer.
        depth: number of linear layers.
        width: units of a hidden layer.
        normalize_output: also normalize the last layer, as ``head_norm``.

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
