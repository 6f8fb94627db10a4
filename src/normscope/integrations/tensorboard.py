"""TensorBoard: its SummaryWriter is a logger as it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from normscope.integrations.needed import needed

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["summary_writer"]


def summary_writer(folder: str | os.PathLike[str], **options: Any) -> SummaryWriter:
    """TensorBoard's own writer, for `LoggedScope` or anything else.

    Args:
        folder: the run; ``tensorboard --logdir`` is given the folder around it.
        **options: of ``torch.utils.tensorboard.SummaryWriter``.

    Returns:
        The writer.
    """
    library = needed("tensorboard", "tensorboard", "normscope.integrations.tensorboard")
    del library  # torch's own message about its absence does not say how to get it
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(os.fspath(folder), **options)
