"""Which parameters of a model a command's numbers are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = ["trained_words"]


def trained_words(model: nn.Module, whose: str = "") -> str:
    """The parameters that are trained: all of them, or how many of how many, a tied one once.

    Args:
        model: what is measured.
        whose: parameters they are, if that needs words: a blank and such as "of the model".

    Returns:
        Words to end a list with.

    >>> from torch import nn
    >>> head = nn.Linear(9, 200)
    >>> trained_words(head)
    'all parameters'
    >>> head.bias.requires_grad_(False).shape
    torch.Size([200])
    >>> trained_words(head)
    'the 1,800 of 2,000 parameters that are trained'
    """
    parameters = list(model.parameters())
    every = sum(each.numel() for each in parameters)
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    if trained == every:
        return "all parameters"
    return f"the {trained:,} of {every:,} parameters{whose} that are trained"
