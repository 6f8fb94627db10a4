"""A network with three faults, for ``normscope doctor``.

    normscope doctor examples/faulty_model.py:build --data examples/faulty_model.py:samples \
        --optimizer sgd --lr 0.1

Batch norm over the logits, a layer whose epsilon is larger than the variance of its inputs, and a
layer of which most units are dead.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build() -> nn.Module:
    """A convolutional network on 8x8 images; the command seeds torch before it calls this."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16, eps=1.0),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10, bias=False),
        nn.BatchNorm1d(10),
    )
    with torch.no_grad():
        model[3].bias[:12] = -9.0
    return model


def samples() -> tuple[Tensor, Tensor]:
    """Handwritten digits in 8x8 pixels, from scikit-learn."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    return (images - images.mean()) / images.std(), torch.as_tensor(digits.target)
