"""``BatchNorm1d``, ``BatchNorm2d`` and ``BatchNorm3d``, drop-in for those of ``torch.nn``."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.layers.batch_norm_function import Vectors, batch_norm, eager_batch_norm
from normscope.layers.standardize import GroupChoice, checked_choice
from normscope.layers.transforms import belongs_to_innermost_transform, eager, transform_active


class _ClosedFormBatchNorm(_BatchNorm):
    """Base of the three layers: the forward pass, and statistics shared by processes.

    It derives from PyTorch's layers, so that code that looks for those (``isinstance``,
    ``state_dict``, ``swa_utils.update_bn``, converters) finds them.
    """

    # Class attributes, so that a layer that was pickled without them has them too.
    process_group: GroupChoice = None
    fused: bool | None = None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        process_group: GroupChoice = None,
    ) -> None:
        # Older PyTorch does not have this argument: pass it only if it is not the default.
        options: dict[str, Any] = {} if bias else {"bias": False}
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, **options
        )
        self.process_group = checked_choice(process_group)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the input, (batch, num_features, ...), per feature."""
        self._check_input_dim(input)  # type: ignore[no-untyped-call]  # PyTorch's own
        training, group, fused = self.training, self.process_group, self.fused
        mean, variance, weight, bias = self._vectors()
        plain = eager()
        share: float | Tensor = 0.0
        if training and self.track_running_stats:
            share = self._count_batch(plain)
        elif training:
            mean = variance = None
        by_batch = training or (mean is None and variance is None)
        vectors = mean, variance, weight, bias
        # The usual case first: a small layer spends much of its time before the kernel.
        if group is None and fused is None and plain and type(share) is float:
            return eager_batch_norm(input, vectors, by_batch, share, self.eps)
        group = group if training else None
        settings = by_batch, share, self.eps
        return batch_norm(input, *vectors, *settings, process_group=group, fused=fused)

    def freeze_statistics(self, input: Tensor) -> None:
        """Prepare mode "frozen", which replaces torch's batch_norm: do not use the closed form."""
        self.__dict__["fused"] = True

    def _vectors(self) -> Vectors:
        """Return the running mean and variance, weight and bias."""
        buffers, parameters = self._buffers, self._parameters
        try:  # reading the dictionaries takes a fifth of the time of Module's attributes
            return (
                buffers["running_mean"],
                buffers["running_var"],
                parameters["weight"],
                parameters["bias"],
            )
        except KeyError:  # one is parametrized or pruned, and is computed as an attribute
            return self.running_mean, self.running_var, self.weight, self.bias

    def _count_batch(self, plain: bool) -> float | Tensor:
        """Count this batch and return its weight in the running statistics."""
        buffers, momentum = self._buffers, self.momentum
        transformed = not plain and transform_active()
        known = "num_batches_tracked" in buffers  # faster than the attribute
        count = buffers["num_batches_tracked"] if known else self.num_batches_tracked
        if count is None:
            return momentum or 0.0
        if transformed and not belongs_to_innermost_transform(count):
            count = count + 1  # a captured counter must not be written
        else:
            count.add_(1)
        if momentum is not None:
            return momentum
        # Under vmap the count may be a batch of numbers.
        return 1.0 / count if transformed else 1.0 / float(count)

    def extra_repr(self) -> str:
        """Return PyTorch's options, and the process group if there is one."""
        shared = "" if self.process_group is None else f", process_group={self.process_group!r}"
        line: str = super().extra_repr()  # type: ignore[no-untyped-call]  # PyTorch's own
        return line + shared

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # A process group cannot be copied; both layers belong to it.
        memo[id(self.process_group)] = self.process_group
        duplicate = self.__class__.__new__(self.__class__)
        memo[id(self)] = duplicate
        duplicate.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return duplicate


class BatchNorm1d(_ClosedFormBatchNorm, nn.BatchNorm1d):
    r"""Batch normalization of (batch, features) or (batch, features, length).

    .. math:: y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    Arguments, results, ``state_dict`` and errors are those of :class:`torch.nn.BatchNorm1d`.
    Unlike PyTorch's, its derivatives are exact under every composition of ``torch.func``
    transforms and forward-mode AD. Inside a transform, running statistics that the innermost
    transform received as arguments are updated; captured ones are not.

    Set ``layer.fused = False`` to always use the closed form (slower; needed for third
    derivatives by repeated ``backward``), ``True`` to always use PyTorch's kernel.

    Reference: ioffe2015, Alg. 1. Notation: gamma = weight, beta = bias.

    Args:
        num_features: channels of the input.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None for a plain average.
        affine: learn gamma and beta.
        track_running_stats: keep running statistics, and use them in eval mode.
        device: of the parameters.
        dtype: of the parameters.
        bias: learn beta, if affine.
        process_group: the processes that share batch statistics while training: a
            ``torch.distributed.ProcessGroup``, "world" for all, None for no sharing. Their
            batches may differ in size. Parameter gradients are not summed over processes, as
            ``DistributedDataParallel`` expects.

    >>> import torch
    >>> layer = BatchNorm1d(1, eps=3.0)
    >>> layer(torch.tensor([[0.0], [2.0]])).flatten().tolist()
    [-0.5, 0.5]
    >>> round(layer.running_mean.item(), 6), round(layer.running_var.item(), 6)
    (0.1, 1.1)
    """


class BatchNorm2d(_ClosedFormBatchNorm, nn.BatchNorm2d):
    """Batch normalization of images, (batch, channels, height, width).

    As :class:`BatchNorm1d`, drop-in for :class:`torch.nn.BatchNorm2d`.

    Reference: ioffe2015, Alg. 1 and Section 3.2.

    >>> import torch
    >>> BatchNorm2d(3)(torch.zeros(2, 3, 4, 4)).shape
    torch.Size([2, 3, 4, 4])
    """


class BatchNorm3d(_ClosedFormBatchNorm, nn.BatchNorm3d):
    """Batch normalization of volumes, (batch, channels, depth, height, width).

    As :class:`BatchNorm1d`, drop-in for :class:`torch.nn.BatchNorm3d`.

    Reference: ioffe2015, Alg. 1 and Section 3.2.

    >>> import torch
    >>> BatchNorm3d(3)(torch.zeros(2, 3, 4, 4, 4)).shape
    torch.Size([2, 3, 4, 4, 4])
    """
