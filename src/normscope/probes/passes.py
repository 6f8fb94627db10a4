"""Forward and backward passes of a model at other parameters; nothing of them reaches the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.probes.comparison import Comparison
from normscope.probes.shortcut import Shortcut
from normscope.problem.batch import Batch, copied
from normscope.problem.isolation import (
    Undisturbed,
    fixed_randomness,
    generators_of_model,
    seed_randomness,
    substituted,
    undisturbed,
)
from normscope.problem.loss import modules_of_loss, steady_loss
from normscope.problem.problem import Problem

__all__ = ["Passes", "dense", "differentiated"]


class Passes:
    """One batch through one model, always the same function of the parameters.

    The modules keep the ``training`` flags they have. Every pass starts from the model's present
    buffers, on copies, and from the same random state, so that dropout masks and noise are the
    same in all of them. Autocast is as it is around the call.

    Args:
        problem: the model, the loss and the batch.
        seed: of every random draw of a pass.
    """

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.seed = seed
        self.batch: Batch = _detached(next(problem.batches()))
        self.loss_modules = modules_of_loss(problem.loss, problem.model)
        owners = (problem.model, *self.loss_modules)
        self._generators = [each for owner in owners for each in generators_of_model(owner)]
        self._undisturbed = Undisturbed(problem.model, *self.loss_modules)
        self._is_together = False
        with torch.inference_mode(False):
            self._buffers = {n: b.detach().clone() for n, b in problem.model.named_buffers()}

    @contextmanager
    def scene(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """The model set up for one pass: to be open while it runs forward and backward.

        Args:
            tensors: parameters by qualified name in place of the model's own.

        Yields:
            Nothing.
        """
        model = self.problem.model
        randomness = self.seed, self.problem.device, self._generators
        if self._is_together:
            seed_randomness(*randomness)
        with (
            self._undisturbed.held(),
            nullcontext() if self._is_together else fixed_randomness(*randomness),
            torch.inference_mode(False),
            torch.enable_grad(),
            _uncached_autocast(self.problem.device),
        ):
            copies = {name: buffer.clone() for name, buffer in self._buffers.items()}
            with substituted(model, {**copies, **tensors}):
                _settle(model)
                yield

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several passes in a row: the random states around them are put back once, at the end.

        Yields:
            Nothing.
        """
        with fixed_randomness(self.seed, self.problem.device, self._generators):
            self._is_together = True
            try:
                yield
            finally:
                self._is_together = False

    @contextmanager
    def alone(self) -> Iterator[Problem]:
        """The model at its own parameters, without compiled parts or other processes.

        To be open while the curvature package works with it, in the parameters' own precision:
        eigenvalues are not to be had from products that autocast rounds.

        Yields:
            The problem: its loss starts from the same state each time.
        """
        exact = torch.autocast(self.problem.device.type, enabled=False)
        model, loss = self.problem.model, self.problem.loss
        with undisturbed(model, *self.loss_modules), torch.inference_mode(False), exact:
            _settle(model)
            steady = steady_loss(loss, self.loss_modules)
            yield Problem(model, steady, copied(self.batch))  # the batch may be of inference mode

    def forward(self) -> Tensor:
        """The loss, with its graph; inside a `scene`. The batch is a copy: a model may write it."""
        return self.problem.loss_on(copied(self.batch))

    def loss(self, tensors: Mapping[str, Tensor]) -> float:
        """The loss at other parameters: one forward pass."""
        with self.scene(tensors), torch.no_grad():
            return self.forward().item()

    def gradients(
        self, tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor] | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradient at other parameters: one forward and backward pass.

        Args:
            tensors: parameters by qualified name; the gradient is by those that require one.
            wanted: of those, the ones to differentiate by; None for all.

        Returns:
            The loss and the gradients by name, without those the loss does not depend on.
        """
        with self.scene(tensors):
            return differentiated(self.forward(), tensors if wanted is None else wanted)

    def reduced_gradients(
        self,
        tensors: Mapping[str, Tensor],
        comparison: Comparison,
        shortcuts: Sequence[Shortcut] = (),
        watch: Callable[[nn.Module], None] | None = None,
    ) -> float:
        """Show each parameter's gradient when it is there, and keep none of them.

        So the gradient as a whole is never in memory.

        Args:
            tensors: parameters by qualified name; those that require a gradient are shown.
            comparison: sees the name and the gradient of each.
            shortcuts: compare some of them by other means: these gradients are not taken.
            watch: called with the model before the pass.

        Returns:
            The loss.
        """
        leaves = {name: t.detach().requires_grad_() for name, t in _leaves(tensors).items()}
        known = {name for shortcut in shortcuts for name in shortcut.names}
        taken = [leaf for name, leaf in leaves.items() if name not in known]

        def hook(name: str, leaf: Tensor) -> None:
            gradient, leaf.grad = leaf.grad, None
            assert gradient is not None
            with torch.no_grad():
                comparison.see(name, gradient.to_dense() if gradient.is_sparse else gradient)

        for name, leaf in leaves.items():
            # torch leaves these two methods untyped
            leaf.register_post_accumulate_grad_hook(partial(hook, name))  # type: ignore[no-untyped-call]
        with self.scene({**tensors, **leaves}):
            if watch is not None:
                watch(self.problem.model)
            for shortcut in shortcuts:
                shortcut.meet(self.problem.model, comparison)
            loss = self.forward()
            for shortcut in shortcuts:
                shortcut.inspect(loss, leaves)
            if loss.requires_grad and taken:
                loss.backward(inputs=taken)  # type: ignore[no-untyped-call]
        return loss.item()


def differentiated(loss: Tensor, tensors: Mapping[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
    """A loss and its gradient by those tensors that require one and on which it depends."""
    leaves = _leaves(tensors)
    if not leaves or not loss.requires_grad:
        return loss.item(), {}
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves, found, strict=True)
    return loss.item(), {name: dense(gradient) for name, gradient in pairs if gradient is not None}


def _leaves(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


def dense(gradient: Tensor) -> Tensor:
    """A gradient with all its entries, without a graph."""
    return (gradient.to_dense() if gradient.is_sparse else gradient).detach()


def _detached(batch: Batch) -> Batch:
    """The batch without a graph behind it; its tensors are the user's own."""
    if isinstance(batch, Tensor):
        return batch.detach()
    if isinstance(batch, Mapping):
        return {key: _detached(part) for key, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = tuple(_detached(part) for part in batch)
        return type(batch)._make(parts) if hasattr(batch, "_make") else parts
    return batch


def _uncached_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast as it is around us, but without its memory of weights it has cast before.

    It knows a weight by the tensor, and here one tensor takes several values.
    """
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    dtype = torch.get_autocast_dtype(device.type)
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)


def _settle(model: nn.Module) -> None:
    """Let every module compute here and now from its present tensors; `undisturbed` undoes it."""
    for module in model.modules():
        own = module.__dict__
        if own.get("_compiled_call_impl") is not None:
            own["_compiled_call_impl"] = None  # model.compile(): the compiled code is training's
        if isinstance(own.get("_modules", {}).get("_orig_mod"), nn.Module):
            own["forward"] = module._orig_mod  # torch.compile of a part of the model
        if isinstance(module, nn.RNNBase):  # it keeps a second list of its weights
            own["_flat_weights"] = [getattr(module, name) for name in module._flat_weights_names]
        if isinstance(module, nn.SyncBatchNorm):
            own["forward"] = partial(_BatchNorm.forward, module)
        elif own.get("process_group") is not None and isinstance(module, _BatchNorm):
            own["process_group"] = None  # the statistics of this process: no other is waited for
