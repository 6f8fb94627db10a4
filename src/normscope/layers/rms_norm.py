"""RMS normalization: division by the root mean square of a sample's features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normscope.layers.detect import positionwise_norm
from normscope.layers.kinds import norm_kind


class ShiftedRMSNorm(nn.RMSNorm):
    r"""RMS normalization of the last dimension with a shift, which :class:`torch.nn.RMSNorm` lacks.

    .. math:: y = \gamma \frac{x}{\sqrt{\langle x^2 \rangle + \epsilon}} + \beta

    It takes the place of a layer normalization whose shift is to be kept.

    Reference: zhang2019. Notation: gamma = weight, beta = bias.

    Args:
        num_features: size of the last dimension.
        eps: added to the mean square.
        device: of the parameters.
        dtype: of the parameters.

    >>> layer = ShiftedRMSNorm(2, eps=0.0)
    >>> _ = layer.bias.data.fill_(1.0)
    >>> layer(torch.tensor([[5.0, -5.0]])).tolist()
    [[2.0, 0.0]]
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(num_features, eps, device=device, dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension of (..., features)."""
        return super().forward(x) + self.bias


class SampleRMSNorm(nn.Module):
    r"""RMS normalization over channels and positions of each sample together.

    .. math:: y = \gamma \frac{x}{\sqrt{\langle x^2 \rangle + \epsilon}} + \beta

    As :class:`torch.nn.GroupNorm` with one group, without subtracting the mean.

    Reference: zhang2019. Notation: gamma = weight, beta = bias, one value per channel.

    Args:
        num_features: channels of the input, (batch, channels, *positions).
        eps: added to the mean square.
        affine: learn gamma.
        shift: learn beta, if affine.
        device: of the parameters.
        dtype: of the parameters.

    >>> SampleRMSNorm(1, eps=0.0)(torch.tensor([[[3.0, 4.0]]])).square().mean().item()
    1.0
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        shift: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_features, self.eps = num_features, eps
        ones = torch.ones(num_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(ones) if affine else None
        self.bias = nn.Parameter(torch.zeros_like(ones)) if affine and shift else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each sample of (batch, channels, *positions)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        square = wide.square().mean(tuple(range(1, x.dim())), keepdim=True)
        y = (wide * torch.rsqrt(square + self.eps)).to(x.dtype)
        shape = (-1, *[1] * (x.dim() - 2))
        if self.weight is not None:
            y = y * self.weight.reshape(shape)
        return y if self.bias is None else y + self.bias.reshape(shape)

    def extra_repr(self) -> str:
        """Return the options, for the printed module."""
        has = self.weight is not None, self.bias is not None
        return f"{self.num_features}, eps={self.eps}, affine={has[0]}, shift={has[1]}"


def _is_rms_norm(module: nn.Module) -> bool:
    found = positionwise_norm(module)
    kinds = (nn.RMSNorm, SampleRMSNorm)
    return isinstance(module, kinds) if found is None else found.kind == "rms"


@norm_kind(
    "rms", nn.RMSNorm, ShiftedRMSNorm, SampleRMSNorm, matches=_is_rms_norm, features_last=True
)
def rms_norm(
    num_features: int,
    dimensions: int,
    eps: float = 1e-5,
    affine: bool = True,
    shift: bool = False,
    **options: Any,
) -> nn.Module:
    """RMS normalization; with spatial dimensions, over channels and positions together.

    Reference: zhang2019.
    """
    if dimensions > 0:
        return SampleRMSNorm(num_features, eps, affine, shift, **options)
    if affine and shift:
        return ShiftedRMSNorm(num_features, eps, **options)
    return nn.RMSNorm(num_features, eps, elementwise_affine=affine, **options)
