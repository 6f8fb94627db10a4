"""``BatchNorm1d``, ``BatchNorm2d``, ``BatchNorm3d``: drop-in for those of ``torch.nn``."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.layers.batch_norm_function import batch_norm
from normscope.layers.batch_norm_kernel import eager_batch_norm
from normscope.layers.synchronize import GroupChoice, checked_choice
from normscope.layers.transforms import belongs_to_innermost_transform, eager, transform_active


class _ClosedFormBatchNorm(_BatchNorm):
    """What the three layers share: the forward, and statistics shared by processes.

    Built on PyTorch's own layers, so that everything that looks for those (``isinstance``,
    ``state_dict``, ``swa_utils.update_bn``, converters) finds them.
    """

    # Of the class, so that a layer unpickled from elsewhere has them too.
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
        # Older PyTorch has no such argument: hand it on only where it says something.
        options: dict[str, Any] = {} if bias else {"bias": False}
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, **options
        )
        self.process_group = checked_choice(process_group)

    def forward(self, input: Tensor) -> Tensor:
        """The input, (batch, num_features, ...), normalized per feature."""
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
        # The usual case first: of a small layer's time, a good part is spent on the way.
        if group is None and fused is None and plain and type(share) is float:
            return eager_batch_norm(input, *vectors, by_batch, share, self.eps)
        group = group if training else None
        settings = by_batch, share, self.eps
        return batch_norm(input, *vectors, *settings, process_group=group, fused=fused)

    def freeze_statistics(self, input: Tensor) -> None:
        """Prepare mode "frozen", which replaces torch's batch_norm: the closed form skips it."""
        self.__dict__["fused"] = True

    def _vectors(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Running mean and variance, weight and bias."""
        buffers, parameters = self._buffers, self._parameters
        try:  # a look into the dictionaries costs a fifth of Module's attributes
            return (
                buffers["running_mean"],
                buffers["running_var"],
                parameters["weight"],
                parameters["bias"],
            )
        except KeyError:  # one is reparametrized or pruned, and computed as an attribute
            return self.running_mean, self.running_var, self.weight, self.bias

    def _count_batch(self, plain: bool) -> float | Tensor:
        """Count this batch; return its share in the running statistics."""
        buffers, momentum = self._buffers, self.momentum
        transformed = not plain and transform_active()
        known = "num_batches_tracked" in buffers  # a look there is quicker than the attribute
        count = buffers["num_batches_tracked"] if known else self.num_batches_tracked
        if count is None:
            return momentum or 0.0
        if transformed and not belongs_to_innermost_transform(count):
            count = count + 1  # a captured counter may not be written
        else:
            count.add_(1)
        if momentum is not None:
            return momentum
        # In a transform the count may be many at once, and has no single number.
        return 1.0 / count if transformed else 1.0 / float(count)

    def extra_repr(self) -> str:
        """PyTorch's line, and the process group where there is one."""
        shared = "" if self.process_group is None else f", process_group={self.process_group!r}"
        line: str = super().extra_repr()  # type: ignore[no-untyped-call]  # PyTorch's own
        return line + shared

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # The processes cannot be copied: both layers belong to them.
        memo[id(self.process_group)] = self.process_group
        duplicate = self.__class__.__new__(self.__class__)
        memo[id(self)] = duplicate
        duplicate.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return duplicate


class BatchNorm1d(_ClosedFormBatchNorm, nn.BatchNorm1d):
    r"""Batch normalization of (batch, features) or (batch, features, length).

    .. math:: y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    Arguments, results, ``state_dict`` and errors are those of :class:`torch.nn.BatchNorm1d`; its
    derivatives are exact under every composition of ``torch.func`` transforms and forward-mode
    AD, where PyTorch's are not. Inside a transform, running statistics that the innermost
    transform received as arguments are updated; captured ones stay as they are.

    Set ``layer.fused = False`` to compute by the closed form always (slower; needed for third
    derivatives by repeated ``backward``), ``True`` for PyTorch's kernel always.

    Reference: ioffe2015, Alg. 1. Notation: gamma = weight, beta = bias.

    Args:
        num_features: channels of the input.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None for their plain average.
        affine: learn gamma and beta.
        track_running_stats: keep running statistics, and use them in eval mode.
        device: where the parameters live.
        dtype: the parameters' type.
        bias: learn beta, if affine.
        process_group: the processes that share the batch's statistics while training: a
            ``torch.distributed.ProcessGroup``, "world" for all, None for no sharing. Their
            batches may differ in size. Gradients of parameters stay each process's own, as
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
