"""The pre-activation residual network for small images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from normscope.models.catalogue import NormFactory, architecture
from normscope.models.parts import (
    check_sizes,
    convolution,
    image_shape,
    linear,
    scale_channels,
)

STAGE_CHANNELS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


class PreActivationBlock(nn.Module):
    r"""Two 3x3 convolutions, each after normalization and ReLU, added to a shortcut.

    .. math:: y = s(x) + W_2 \, \sigma(N_2(W_1 \, \sigma(N_1(x))))

    The shortcut s is the identity; or, where the size changes, a 1x1 convolution of
    :math:`\sigma(N_1(x))`; or, in the first block of a network, :math:`\sigma(N_1(x))` itself.

    Reference: he2016, Fig. 4(e) and the appendix. Notation: N = norm, sigma = ReLU.

    Args:
        norm: makes the normalization layers.
        inputs: channels of the input.
        channels: of the output.
        stride: of the first convolution.
        first: whether the block follows the stem.
    """

    def __init__(
        self, norm: NormFactory, inputs: int, channels: int, stride: int, first: bool = False
    ) -> None:
        super().__init__()
        self.norm1 = norm(inputs, 2)
        self.relu1 = nn.ReLU()
        self.conv1 = convolution(inputs, channels, 3, stride=stride, padding=1, bias=False)
        self.norm2 = norm(channels, 2)
        self.relu2 = nn.ReLU()
        self.conv2 = convolution(channels, channels, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = nn.Identity() if first else None
        if stride != 1 or inputs != channels:
            self.shortcut = convolution(inputs, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, (batch, channels, height / stride, width / stride)."""
        activated = self.relu1(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        residual: Tensor = self.conv2(self.relu2(self.norm2(self.conv1(activated))))
        return residual + shortcut


@architecture(initialization="glorot")
def preact_resnet18(
    norm: NormFactory,
    *,
    input_shape: Sequence[int] = (3, 32, 32),
    outputs: int = 10,
    width: float = 1.0,
) -> nn.Module:
    """Pre-activation ResNet-18 for CIFAR-10: four stages of two blocks, 64 to 512 channels.

    An ``nn.Sequential`` of ``stem``, ``stages`` (``stages.1.0`` is the first block of the second
    stage), ``norm``, ``relu``, ``pool``, ``flatten`` and ``head``. As in the paper, convolutions
    have no biases, and a normalization and ReLU follow the last addition.

    Reference: he2016, Section 4 and the appendix; wei2018, Section 6.5.

    Args:
        norm: makes the normalization layers.
        input_shape: (channels, height, width).
        outputs: size of the last layer.
        width: multiplier of all channel numbers.

    >>> preact_resnet18(norm="none", width=0.25).stem
    Conv2d(3, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """
    check_sizes(outputs=outputs)
    images, _, _ = image_shape("preact_resnet18", input_shape)
    channels = [scale_channels(maps, width) for maps in STAGE_CHANNELS]
    inputs = [channels[0], *channels]
    stages = [
        _stage(norm, inputs[index], channels[index], first=index == 0)
        for index in range(len(channels))
    ]
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            stem=convolution(images, channels[0], 3, padding=1, bias=False),
            stages=nn.Sequential(*stages),
            norm=norm(channels[-1], 2),
            relu=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            head=linear(channels[-1], outputs),
        )
    )


def _stage(norm: NormFactory, inputs: int, channels: int, first: bool) -> nn.Sequential:
    """Blocks of one size; every stage but the first halves the image at its start."""
    blocks = [PreActivationBlock(norm, inputs, channels, stride=1 if first else 2, first=first)]
    blocks += [
        PreActivationBlock(norm, channels, channels, stride=1) for _ in range(BLOCKS_PER_STAGE - 1)
    ]
    return nn.Sequential(*blocks)
