"""A user-defined model, for the commands that take one.

    normscope curvature examples/my_model.py:build --data examples/my_model.py:samples
    normscope lr examples/my_model.py:build --data examples/my_model.py:samples --batch-size 128
    normscope sweep phase_diagram --set model=examples/my_model.py:build \
        --set data=examples/my_model.py:samples --set gamma=0.5,1,2 --set lr=1e-2:10:5:log

A factory without arguments returns the model; a function without arguments returns the data, here
one pair (inputs, targets) of all samples; a list of batches or a DataLoader serves as well.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SmallResNet(nn.Module):
    """Two residual blocks with BatchNorm on 8x8 images."""

    def __init__(self, channels: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(self._block(channels) for _ in range(2))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        features = self.stem(images)
        for block in self.blocks:
            features = features + block(features)
        return self.head(features.mean(dim=(2, 3)))

    @staticmethod
    def _block(channels: int) -> nn.Sequential:
        return nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )


def build() -> nn.Module:
    """The model; the command seeds torch before it calls this."""
    return SmallResNet()


def samples() -> tuple[Tensor, Tensor]:
    """Handwritten digits in 8x8 pixels, from scikit-learn."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    return (images - images.mean()) / images.std(), torch.as_tensor(digits.target)
