"""TensorBoard: its SummaryWriter is a logger as it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from normscope.integrations.logger import require_package

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def summary_writer(folder: str | os.PathLike[str], **options: Any) -> SummaryWriter:
    """Return TensorBoard's own writer, for `LoggedScope` or anything else.

    Args:
        folder: the run; ``tensorboard --logdir`` takes the folder around it.
        **options: of ``torch.utils.tensorboard.SummaryWriter``.

    Returns:
        The writer.
    """
    # torch's own error for the missing package does not say how to install it
    require_package("tensorboard", "normscope.integrations.tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(os.fspath(folder), **options)
