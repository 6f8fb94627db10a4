"""Batch normalization of a tensor: by PyTorch's kernel where that is right, else in closed form.

The native kernel computes the formulas of :mod:`normscope.layers.standardize`, and fast. But it
hands mean and 1/s to its derivative formulas as constants, which with PyTorch 2.13 is silently
wrong under nested ``torch.func.jacrev``, and in a gradient through a forward-mode tangent. There,
and for statistics shared by several processes, the closed form computes. The third derivative by
repeated backward is wrong too, which no forward can foresee: ``fused=False`` is for that.
"""

from __future__ import annotations

from torch import Tensor

from normscope.layers.batch_norm_closed_form import closed_form_batch_norm
from normscope.layers.batch_norm_kernel import fused_batch_norm
from normscope.layers.synchronize import GroupChoice, resolved_group
from normscope.layers.transforms import forward_mode_active, transform_active


def kernel_is_right() -> bool:
    """Whether PyTorch's kernel has the right derivatives where the caller runs.

    >>> kernel_is_right()
    True
    """
    return not (transform_active() or forward_mode_active())


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
    *,
    process_group: GroupChoice = None,
    fused: bool | None = None,
) -> Tensor:
    r"""Batch-normalized input, with the running statistics updated in place while training.

    .. math:: y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    Takes the arguments of :func:`torch.nn.functional.batch_norm`, and two more. Inside a
    ``torch.func`` transform, running statistics are updated if the innermost transform received
    them as arguments; captured from outside they stay as they are, since it may not write them.

    Reference: ioffe2015, Alg. 1. Notation: gamma = weight, beta = bias.

    Args:
        input: (batch, channels, ...).
        running_mean: (channels,), or None.
        running_var: (channels,), or None.
        weight: (channels,), or None for 1.
        bias: (channels,), or None for 0.
        training: normalize by the batch's statistics rather than by the running ones.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.
        process_group: processes that share the batch's statistics: a group, "world" or None.
        fused: True for PyTorch's kernel, False for the closed form, None for the kernel
            wherever it is right.

    Returns:
        A tensor like the input.

    >>> import torch
    >>> batch_norm(torch.tensor([[0.0], [2.0]]), training=True, eps=3.0, fused=False).tolist()
    [[-0.5], [0.5]]
    """
    group = resolved_group(process_group) if training and process_group is not None else None
    if fused is None:
        fused = kernel_is_right()
    if group is not None or not fused or isinstance(momentum, Tensor):
        return closed_form_batch_norm(
            input, running_mean, running_var, weight, bias, training, momentum, eps, group
        )
    return fused_batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
