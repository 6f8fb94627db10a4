"""Layers that divide by the l_p size of a batch instead of its standard deviation."""

from __future__ import annotations

import math
import numbers
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.layers.lp_function import affine, lp_normalize
from normscope.layers.standardize import along_channels, channel_axes
from normscope.layers.transforms import transform_active, writable


class _LpNorm(nn.Module):
    """Base of the three layers, which differ in the number of dimensions of the input."""

    accepted_dims: ClassVar[tuple[int, ...]]
    weight: Tensor | None
    bias: Tensor | None
    num_batches_tracked: Tensor | None
    running_mean: Tensor | None
    running_scale: Tensor | None

    def __init__(
        self,
        num_features: int,
        p: float = 1,
        centred: bool = False,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.p = _checked_order(p)
        self.centred = centred
        self.eps = _checked_eps(eps)
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        for name in ("weight", "bias"):
            value = nn.Parameter(torch.empty(num_features, **place)) if affine else None
            self.register_parameter(name, value)
        tracked = track_running_stats
        for name in ("running_mean", "running_scale"):
            self.register_buffer(name, torch.empty(num_features, **place) if tracked else None)
        counter = torch.tensor(0, dtype=torch.int64, device=device)
        self.register_buffer("num_batches_tracked", counter if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Set the running mean to 0, the running scale to 1 and the batch count to 0."""
        for name, start in (("running_mean", 0), ("running_scale", 1), ("num_batches_tracked", 0)):
            buffer = getattr(self, name)
            if buffer is not None:
                buffer.fill_(start)

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0, and reset the running statistics."""
        self.reset_running_stats()
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize by the statistics of the batch in training, else by the running ones.

        Raises:
            ArgumentTypeError: if the input is not of a floating-point type.
            ShapeError: if the input's dimensions or channels do not fit, or training has only one
                value per channel.
        """
        self._check_input(input)
        weight, bias = self.weight, self.bias
        exact = input
        if input.dtype in (torch.bfloat16, torch.float16):
            exact = input.to(torch.float32)  # sums and powers need more than 8 or 11 bits
        if weight is not None and bias is not None and weight.dtype != exact.dtype:
            weight, bias = weight.to(exact.dtype), bias.to(exact.dtype)
        if self.training or self.running_mean is None or self.running_scale is None:
            y, mean, scale = lp_normalize(exact, weight, bias, self.p, self.centred, self.eps)
            if self.training:
                self._track(mean, scale)
        else:
            mean, scale = self.running_mean.to(exact.dtype), self.running_scale.to(exact.dtype)
            normalized = (exact - along_channels(mean, exact)) / along_channels(scale, exact)
            y = affine(normalized, weight, bias)
        return y if exact is input else y.to(input.dtype)

    def _check_input(self, x: Tensor) -> None:
        if x.dim() not in self.accepted_dims:
            wanted = " or ".join(f"{n}D" for n in self.accepted_dims)
            raise ShapeError(f"expected {wanted} input (got {x.dim()}D input).")
        if not x.is_floating_point():
            raise ArgumentTypeError(
                f"{type(self).__name__} expects floating-point input, got {x.dtype}; "
                "convert it first."
            )
        if x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__} expects {self.num_features} channels, got {x.shape[1]} in "
                f"an input of size {tuple(x.shape)}."
            )
        values_per_channel = x.shape[0] * math.prod(x.shape[2:])
        if values_per_channel < 2 and (self.training or self.running_mean is None):
            raise ShapeError(
                "Expected more than 1 value per channel when training, got input size "
                f"{tuple(x.shape)}; use a larger batch, or eval()."
            )

    def freeze_statistics(self, input: Tensor) -> None:
        """Hold the mean and scale of this input as constants (mode "frozen").

        Raises:
            InputError: if there is only one value per channel.
        """
        x = input.detach()
        if x.numel() <= x.shape[1]:
            raise InputError(
                f"batch statistics need more than one value per channel, got an input of shape "
                f"{tuple(x.shape)}; give a larger batch or use mode='eval'."
            )
        dims = channel_axes(x.dim())
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = torch.var_mean(wide, dims, correction=0)[1]
        size = (wide - along_channels(mean, wide) if self.centred else wide).abs()
        if self.p == torch.inf:
            scale = size.amax(dims) + self.eps
        else:
            scale = (size.pow(self.p).mean(dims) + self.eps) ** (1 / self.p)
        # evaluation mode applies the running statistics as they are; set again at each call, since
        # an earlier call's tensors are saved for its backward pass
        self.__dict__["training"] = False
        self._buffers.update(running_mean=mean, running_scale=scale)

    def _track(self, mean: Tensor, scale: Tensor) -> None:
        """Move the running statistics towards those of this batch."""
        counter, running_mean, running_scale = (
            self.num_batches_tracked,
            self.running_mean,
            self.running_scale,
        )
        if counter is None or running_mean is None or running_scale is None:
            return
        count = counter.add_(1) if writable(counter) else counter + 1
        share: float | Tensor | None = self.momentum
        if share is None:
            share = count.to(running_mean.dtype).reciprocal()
        _move(running_mean, mean, share)
        _move(running_scale, scale, share)

    def extra_repr(self) -> str:
        """Return the options, as in the constructor."""
        return (
            f"{self.num_features}, p={self.p:g}, centred={self.centred}, eps={self.eps}, "
            f"momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


def _move(running: Tensor, value: Tensor, share: float | Tensor) -> None:
    """Move a running statistic in place towards a value, by a share of the distance."""
    if value.dtype != running.dtype:
        value = value.to(running.dtype)
    if not transform_active():
        running.lerp_(value, share)
    elif writable(running):
        running.add_((value - running) * share)  # vmap has no rule for lerp_


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _checked_order(p: float) -> float:
    if not _is_number(p):
        raise ArgumentTypeError(f"p expects a number, 1 or more, or math.inf; got {p!r}.")
    if not p >= 1:
        raise InputError(f"p expects a number of at least 1, or math.inf; got {p}.")
    return float(p)


def _checked_eps(eps: float) -> float:
    if not _is_number(eps):
        raise ArgumentTypeError(f"eps expects a finite number of at least 0, got {eps!r}.")
    if not (math.isfinite(eps) and eps >= 0):
        raise InputError(f"eps expects a finite number of at least 0, got {eps}.")
    return float(eps)


class LpNorm1d(_LpNorm):
    r"""l_p normalization of vectors or sequences, (batch, channels) or (batch, channels, length).

    .. math::
        y = \gamma \frac{x - \bar x}{s} + \beta, \quad
        s = \left(\overline{|t|^p} + \epsilon\right)^{1/p}, \quad
        s = \max |t| + \epsilon \text{ for } p = \infty

    The bar is the average over the batch and the positions. As in the paper, the size is that of
    t = x, before the mean is subtracted. With ``centred=True`` it is that of t = x - mean; then
    p = 2 is batch normalization. In eval mode the layer uses running averages of the mean and of s
    (eps included).

    No power overflows or underflows as long as the sum over a channel is finite: for p other than
    1 and infinity the values are divided by their largest size first. Gradients are in closed form
    and can be differentiated again. They have kinks where a t is 0 (p = 1; the second derivative
    for every p < 2) and where two values share the maximum (p = inf): the sign of zero counts as
    zero, and ties share evenly. Where a mean is large relative to the deviations (250 times in
    float32), slower operations keep full accuracy. Low-precision input is computed in float32.
    Inside a ``torch.func`` transform, running statistics that the innermost transform received as
    arguments are updated; captured ones are not.

    Reference: santurkar2018, Section 3.3. Notation: gamma = weight, beta = bias.

    Args:
        num_features: number of channels.
        p: order of the size, a number of at least 1 or ``math.inf``.
        centred: compute the size after the mean is subtracted.
        eps: added to the average power (to the maximum for p = inf); at least 0.
        momentum: weight of a new batch in the running statistics; None averages all batches.
        affine: learn a weight and a bias per channel.
        track_running_stats: keep running statistics; without them eval mode uses the batch.
        device: of parameters and buffers.
        dtype: of parameters and buffers.

    Raises:
        ArgumentTypeError: if p or eps is not a number.
        InputError: if p is below 1, or eps is negative or not finite.

    >>> layer = LpNorm1d(1, p=1, eps=0.0, affine=False)
    >>> layer(torch.tensor([[1.0], [3.0]]))  # mean 2, average size 2
    tensor([[-0.5000],
            [ 0.5000]])
    """

    accepted_dims = (2, 3)


class LpNorm2d(_LpNorm):
    """l_p normalization of images, (batch, channels, height, width); see :class:`LpNorm1d`."""

    accepted_dims = (4,)


class LpNorm3d(_LpNorm):
    """l_p normalization of volumes, (batch, channels, depth, height, width); see LpNorm1d."""

    accepted_dims = (5,)
