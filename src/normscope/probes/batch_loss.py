"""The loss of one batch as a function of the parameters, without effects on the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from normscope.probes.gradients import GradientComparison
from normscope.problem.batch import Batch, copy_batch, map_tensors
from normscope.problem.global_state import uncached_autocast
from normscope.problem.isolation import Isolation, isolated
from normscope.problem.loss_state import loss_modules
from normscope.problem.modes import in_mode
from normscope.problem.parameters import to_dense
from normscope.problem.problem import Problem
from normscope.problem.references import refuse_held_parameters
from normscope.problem.twice_differentiable import TwiceDifferentiable


class BatchLoss:
    """The loss of a model on one batch of its training, always the same function of parameters.

    Unlike `normscope.problem.Evaluator` it reproduces the step that the training takes. Every pass
    starts from the model's present buffers, on copies, and from the same RNG state, so that dropout
    masks and noise are the same in all passes. Autocast is as around the call.

    Args:
        problem: the model, the loss and the batch.
        seed: of every random draw of a pass.
        mode: "as_is": the modules keep their ``training`` flags; or "train", "frozen", "eval".
    """

    def __init__(self, problem: Problem, seed: int, mode: str = "as_is") -> None:
        self.problem = problem
        self.seed, self.mode = seed, mode
        self.batch: Batch = map_tensors(next(problem.batches()), Tensor.detach)
        self.loss_modules = loss_modules(problem.loss, problem.model)
        self._isolation = Isolation(problem.model, *self.loss_modules)
        self._keeps_randomness = False
        self._own = dict(problem.model.named_parameters())
        self._has_checked_references = False
        with torch.inference_mode(False):
            self._buffers = {n: b.detach().clone() for n, b in problem.model.named_buffers()}

    @contextmanager
    def at(self, parameters: Mapping[str, Tensor], twice: bool = False) -> Iterator[None]:
        """Run the model with other parameters; open during one forward and backward pass.

        Args:
            parameters: by qualified name, in place of the model's own.
            twice: whether gradients are differentiated again.
        """
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            uncached_autocast(self.problem.device),
        ):
            buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
            tensors = {**buffers, **parameters}
            restore_random = not self._keeps_randomness
            with (
                self._isolation.entered(tensors, self.seed, restore_random),
                in_mode(self.problem.model, self.mode, twice),
                _twice_differentiable(self.problem.model) if twice else nullcontext(),
            ):
                yield

    @contextmanager
    def several_passes(self) -> Iterator[None]:
        """Restore the RNG states around several passes once, at the end."""
        with self._isolation.random.preserved(self.seed):
            self._keeps_randomness = True
            try:
                yield
            finally:
                self._keeps_randomness = False

    @contextmanager
    def isolated_problem(self) -> Iterator[Problem]:
        """Yield the problem for the curvature package, on copies of the batch and the loss's state.

        Autocast is off: products that it rounds give no eigenvalues.

        Yields:
            The problem.
        """
        exact = torch.autocast(self.problem.device.type, enabled=False)
        model, loss = self.problem.model, self.problem.loss
        with isolated(model, *self.loss_modules), torch.inference_mode(False), exact:
            yield Problem(model, loss, copy_batch(self.batch))  # may be of inference mode

    def forward(self) -> Tensor:
        """Return the loss with its graph, inside `at`; on a copy of the batch.

        Raises:
            StateError: if the loss uses a parameter that `at` has replaced.
        """
        loss = self.problem.loss_on(copy_batch(self.batch))
        if loss.requires_grad and not self._has_checked_references:
            present = dict(self.problem.model.named_parameters())
            replaced = {n: own for n, own in self._own.items() if present[n] is not own}
            refuse_held_parameters(None, loss, replaced)
            self._has_checked_references = bool(replaced)
        return loss

    def value(self, parameters: Mapping[str, Tensor]) -> float:
        """Return the loss at other parameters: one forward pass."""
        with self.at(parameters), torch.no_grad():
            return self.forward().item()

    def differs_in(self, mode: str) -> bool:
        """Return whether a mode changes the loss at the model's own parameters, or has none."""
        other = BatchLoss(self.problem, self.seed, mode)
        try:
            return other.value({}) != self.value({})
        except (RuntimeError, ValueError):  # such as batch statistics of one sample
            return True

    def gradient(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradient at other parameters: one forward and backward pass.

        Args:
            parameters: by qualified name; those that require a gradient are differentiated.

        Returns:
            The gradients by name, without those the loss does not depend on.
        """
        with self.at(parameters):
            return differentiate(self.forward(), parameters)

    def compare_gradient(
        self, parameters: Mapping[str, Tensor], comparison: GradientComparison
    ) -> float:
        """Compare the gradient at other parameters; it is never in memory as a whole.

        Args:
            parameters: by qualified name.
            comparison: receives the gradient of each of the reference's parameters.

        Returns:
            The loss.
        """
        names = comparison.reference.gradient
        leaves = {name: parameters[name].detach().requires_grad_() for name in names}

        def hook(name: str, leaf: Tensor) -> None:
            gradient, leaf.grad = leaf.grad, None
            assert gradient is not None
            with torch.no_grad():
                comparison.add(name, to_dense(gradient))

        for name, leaf in leaves.items():
            # untyped in torch
            leaf.register_post_accumulate_grad_hook(partial(hook, name))  # type: ignore[no-untyped-call]
        with self.at({**parameters, **leaves}):
            loss = self.forward()
            if loss.requires_grad and leaves:
                loss.backward(inputs=list(leaves.values()))  # type: ignore[no-untyped-call]
        return loss.item()


def differentiate(loss: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of a loss by name, for the tensors that require one and affect it."""
    leaves = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    if not leaves or not loss.requires_grad:
        return {}
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves, found, strict=True)
    return {name: dense(gradient) for name, gradient in pairs if gradient is not None}


def dense(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor without a graph."""
    return to_dense(gradient).detach()


def _twice_differentiable(model: nn.Module) -> TwiceDifferentiable:
    """Return a context in which operations have second derivatives; the isolation restores it."""
    substitutes = TwiceDifferentiable()
    substitutes.enter_in_modules(model)
    return substitutes
