"""The loop of every tutorial: DataLoader over a TensorDataset, default SGD, one item() a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def textbook_steps(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: tuple[Tensor, Tensor],
    batch_size: int,
    **sgd_options: float,
) -> Iterator[float]:
    """The loss of every step, without end; shuffled by torch's global generator."""
    optimizer = torch.optim.SGD(model.parameters(), **sgd_options)
    loader = DataLoader(TensorDataset(*data), batch_size, shuffle=True, drop_last=True)
    model.train()
    while True:
        for inputs, targets in loader:
            yield textbook_step(model, loss, optimizer, inputs, targets)


def textbook_step(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
) -> float:
    """One step on one batch."""
    optimizer.zero_grad()
    value = loss(model(inputs), targets)
    value.backward()
    optimizer.step()
    return value.item()
