"""A training step of the fully connected net with BatchNorm, written out by hand.

What is left of a step when everything around its arithmetic is taken away: no DataLoader, no
modules, no autograd, no optimizer, the update of a weight within the product that makes its
gradient, and every large result in memory that is kept from step to step.
No loop that uses the same kernels can be much faster.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

EPS, MOMENTUM = 1e-5, 0.1  # of batch normalization
_normalize = torch.ops.aten.native_batch_norm
_normalize_backward = torch.ops.aten.native_batch_norm_backward
_mask = torch.ops.aten.threshold_backward.grad_input


class HandWritten:
    """Plain gradient descent on the cross-entropy, layer by layer.

    Args:
        model: `fully_connected` with BatchNorm; its tensors are copied.
        batch_size: samples of a step.
        learning_rate: of the update.
    """

    def __init__(self, model: nn.Module, batch_size: int, learning_rate: float) -> None:
        layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
        self.weights = [layer.weight.detach().clone() for layer in layers]
        self.biases = [layer.bias.detach().clone() for layer in layers]
        self.gammas = [norm.weight.detach().clone() for norm in norms]
        self.betas = [norm.bias.detach().clone() for norm in norms]
        self.running = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]
        self.rate = learning_rate
        like = self.weights[0]
        self.outputs = [like.new_empty(batch_size, len(weight)) for weight in self.weights]
        self.signals = [like.new_empty(batch_size, weight.shape[1]) for weight in self.weights]

    def parameters(self) -> list[Tensor]:
        """In the order of the model's own."""
        hidden = zip(self.weights, self.biases, self.gammas, self.betas, strict=False)
        return [
            *(tensor for layer in hidden for tensor in layer),
            self.weights[-1],
            self.biases[-1],
        ]

    @torch.no_grad()
    def step(self, inputs: Tensor, targets: Tensor) -> float:
        """One step; returns the loss before it."""
        values, kept = inputs, []
        for layer, (gamma, beta) in enumerate(zip(self.gammas, self.betas, strict=True)):
            output = self._affine(layer, values)
            statistics = *self.running[layer], True, MOMENTUM, EPS
            normalized, mean, inverse = _normalize(output, gamma, beta, *statistics)
            kept.append((values, mean, inverse))
            values = normalized.relu_()
        kept.append((values, None, None))
        logarithms = torch.log_softmax(self._affine(-1, values), 1)
        loss = nn.functional.nll_loss(logarithms, targets).item()
        signal = logarithms.exp_()
        signal[torch.arange(len(targets)), targets] -= 1
        self._backward(signal.div_(len(targets)), kept)
        return loss

    def _affine(self, layer: int, values: Tensor) -> Tensor:
        weight, output = self.weights[layer], self.outputs[layer]
        return torch.addmm(self.biases[layer], values, weight.T, out=output)

    def _backward(self, signal: Tensor, kept: list[tuple[Tensor, ...]]) -> None:
        for layer in reversed(range(len(self.weights))):
            values, mean, inverse = kept[layer]
            if mean is not None:
                _mask(signal, kept[layer + 1][0], 0, grad_input=signal)
                signal, *vectors = _normalize_backward(
                    *(signal, self.outputs[layer], self.gammas[layer], *self.running[layer]),
                    *(mean, inverse, True, EPS, [True] * 3),
                )
            above = signal
            if layer > 0:
                signal = torch.mm(above, self.weights[layer], out=self.signals[layer])
            if mean is not None:
                self._update(self.gammas[layer], vectors[0])
                self._update(self.betas[layer], vectors[1])
            # product and update in one: the gradient is never written down
            self.weights[layer].addmm_(above.T, values, alpha=-self.rate)
            self._update(self.biases[layer], above.sum(0))

    def _update(self, parameter: Tensor, gradient: Tensor) -> None:
        parameter.add_(gradient, alpha=-self.rate)


def hand_written_steps(
    hand: HandWritten, data: tuple[Tensor, Tensor], batch_size: int
) -> Iterator[float]:
    """The loss of every step, without end; samples in a new order every epoch."""
    inputs, targets = data[0].flatten(1), data[1]
    batch = inputs.new_empty(batch_size, inputs.shape[1])
    while True:
        for rows in torch.randperm(len(inputs)).split(batch_size):
            if len(rows) == batch_size:
                yield hand.step(torch.index_select(inputs, 0, rows, out=batch), targets[rows])
