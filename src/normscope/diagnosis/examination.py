"""`Examination`: passes of a model on copies of its values, counted, shared by all checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.diagnosis.observation import Observation, Observer
from normscope.errors import NormscopeError, StateError
from normscope.layers.kinds import norm_layers
from normscope.problem.batch import Batch, copy_batch, has_samples, join_batches, sample_count
from normscope.problem.evaluate import Evaluator
from normscope.problem.isolation import isolated
from normscope.problem.loss_state import loss_modules
from normscope.problem.modes import is_batch_norm, set_flags, training_flags
from normscope.problem.outputs import output_tensors
from normscope.problem.parameters import parameter_layout, to_dense
from normscope.problem.problem import Problem
from normscope.problem.wrappers import run_unwrapped
from normscope.training.optimizers import copy_optimizer, take_step

Change = Callable[[nn.Module], None]
"""Changes a model inside an isolation, which restores it. Parameters are replaced, not written."""


@dataclass(frozen=True)
class Run:
    """A short training on copies.

    Attributes:
        losses: before each step, and after the last.
        end: a forward pass after the last step; None if the run ended early.
    """

    losses: list[float]
    end: Observation | None = None


class Examination:
    """A model with its loss, batches and optimizer, and passes on copies of its values.

    Args:
        problem: model and loss; neither is changed.
        batches: one or two of the data, as training sees them.
        optimizer: of the model; None if there is none.
        seed: of dropout and noise.
        deep: whether checks may make long trial runs.

    Attributes:
        passes: forward or forward-backward passes so far.
        norms: the norm layers by name.
        runs: the trial runs so far, by what was tried.
    """

    def __init__(
        self,
        problem: Problem,
        batches: Sequence[Batch],
        optimizer: Optimizer | None,
        seed: int,
        deep: bool,
    ) -> None:
        self.problem, self.optimizer, self.seed, self.deep = problem, optimizer, seed, deep
        self.batches = list(batches)
        self.model = problem.model
        self.passes = 0
        self.norms = norm_layers(self.model)
        self.runs: dict[tuple[float, int], Run] = {}
        layout = parameter_layout(self.model)
        self._evaluator = Evaluator(problem, layout, "as_is", seed)

    @property
    def given_optimizer(self) -> Optimizer:
        """The optimizer; only for checks that need one."""
        if self.optimizer is None:
            raise StateError("no optimizer is given.")
        return self.optimizer

    @property
    def batch(self) -> Batch:
        """The first batch."""
        return self.batches[0]

    @property
    def batch_norms(self) -> dict[str, nn.Module]:
        """The batch norm layers by name."""
        return {name: each for name, each in self.norms.items() if is_batch_norm(each)}

    @cached_property
    def observed(self) -> Observation:
        """A forward and backward pass on the first batch, with the modules' own flags."""
        return self.observe()

    @cached_property
    def in_eval_mode(self) -> Observation:
        """A forward pass on the first batch in eval mode."""
        return self.forward(flags=self.eval_flags)

    @cached_property
    def quiet_loss(self) -> float:
        """The loss on the first batch with the modules' own flags, without dropout."""
        return self.loss(flags=self.quiet_flags())

    @property
    def eval_flags(self) -> dict[str, bool]:
        """Flags of eval mode."""
        return training_flags(self.model, "eval")

    def quiet_flags(self, **changed: bool) -> dict[str, bool]:
        """Return the modules' own flags, without dropout.

        Args:
            **changed: flags of further modules by name.
        """
        flags = training_flags(self.model, "as_is")
        for name, module in self.model.named_modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                flags[name] = False
        return flags | changed

    def observe(
        self,
        change: Change | None = None,
        flags: Mapping[str, bool] | None = None,
        backward: bool = True,
        batch: Batch | None = None,
    ) -> Observation:
        """Return what one pass shows.

        Args:
            change: what is done to the model before.
            flags: of the modules; None for their own.
            backward: whether the gradient is computed too.
            batch: None for the first.
        """
        leaves = self._evaluator.leaves()
        with self._isolated(leaves, flags, change):
            observer = Observer(self.model, self.norms)
            with observer.attention:
                output, loss = self._forward(self.batch if batch is None else batch)
            seen = observer.finish(output)
            seen.loss = float(loss.detach())
            seen.buffers = {name: each.clone() for name, each in self.model.named_buffers()}
            if backward and loss.requires_grad:
                gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
                names = self._evaluator.layout.names
                found = zip(names, gradients, strict=True)
                seen.gradients = {n: to_dense(g).detach() for n, g in found if g is not None}
        return seen

    def forward(
        self,
        change: Change | None = None,
        flags: Mapping[str, bool] | None = None,
        batch: Batch | None = None,
    ) -> Observation:
        """Return loss, output and buffers of one forward pass; arguments as in `observe`."""
        with self._isolated(self._evaluator.leaves(), flags, change), torch.no_grad():
            output, loss = self._forward(self.batch if batch is None else batch)
            tensors = (each for each in output_tensors(output) if each.is_floating_point())
            first = next((each.clone() for each in tensors), None)
            buffers = {name: each.clone() for name, each in self.model.named_buffers()}
            return Observation(loss=float(loss), output=first, buffers=buffers)

    def loss(
        self,
        change: Change | None = None,
        flags: Mapping[str, bool] | None = None,
        batch: Batch | None = None,
    ) -> float:
        """Return the loss of one forward pass; arguments as in `observe`."""
        return self.forward(change, flags, batch).loss

    def original(self, name: str) -> Tensor:
        """Return the value of a parameter or buffer, by name."""
        return self._evaluator.point[name]

    @contextmanager
    def _isolated(
        self, leaves: tuple[Tensor, ...], flags: Mapping[str, bool] | None, change: Change | None
    ) -> Iterator[None]:
        with self._evaluator.isolated(leaves, twice=False):
            if flags is not None:
                set_flags(self.model, flags)
            if change is not None:
                change(self.model)
            yield

    def _forward(self, batch: Batch) -> tuple[Any, Tensor]:
        """Return output and loss of one pass, which is counted.

        Raises:
            StateError: if the model or the loss raises an error, as it may in another mode.
        """
        self.passes += 1
        try:
            return self._output_and_loss(copy_batch(batch))
        except NormscopeError:
            raise
        except Exception as error:  # a model may raise anything
            raise StateError(f"the model raised {type(error).__name__}: {error}") from error

    def _output_and_loss(self, batch: Batch) -> tuple[Any, Tensor]:
        outputs: list[Any] = []
        if self.problem.has_outputs:
            output = self.problem.output_on(batch)
            return output, self.problem.loss_of(output, self.problem.target_of(batch))
        handle = self.model.register_forward_hook(lambda *seen: outputs.append(seen[2]))
        loss = self.problem.loss_on(batch)
        handle.remove()
        return outputs[-1] if outputs else None, loss

    # trial runs

    def train(self, rates: Iterable[float], limit: float = float("inf")) -> Run:
        """Return a run of some steps of the optimizer on copies, all on the first batch.

        Args:
            rates: factor of the optimizer's learning rates at each step.
            limit: stop once a loss is above it, or is not finite.
        """
        losses: list[float] = []
        modules = loss_modules(self.problem.loss, self.model)
        with isolated(self.model, *modules, tensors={}, seed=self.seed, trainable=True):
            run_unwrapped(self.model)
            stepper = self.copied_optimizer()
            base = [group["lr"] for group in stepper.param_groups]
            for factor in rates:
                for group, rate in zip(stepper.param_groups, base, strict=True):
                    group["lr"] = rate * factor
                _, loss = self._forward(self.batch)
                losses.append(float(loss.detach()))
                if not losses[-1] <= limit:
                    return Run(losses)
                self.model.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
                take_step(stepper)
            observer = Observer(self.model, self.norms)
            with torch.no_grad(), observer.attention:
                output, last = self._forward(self.batch)
            losses.append(float(last))
            return Run(losses, observer.finish(output))

    def copied_optimizer(self) -> Optimizer:
        """Return a copy of the optimizer with its state, over the same parameters."""
        own = {p: p for group in self.given_optimizer.param_groups for p in group["params"]}
        return copy_optimizer(self.given_optimizer, own, "leave the optimizer out")

    # data

    @property
    def samples(self) -> int | None:
        """Samples of a batch; None if its rows are not samples."""
        return sample_count(self.batch) if has_samples(self.batch) else None

    def pool(self) -> Batch:
        """Return the batches as one."""
        return join_batches(self.batches)


def replace_parameter(module: nn.Module, name: str, function: Callable[[Tensor], Tensor]) -> None:
    """Put a function of a parameter in its place, connected to it by autograd."""
    slot: dict[str, Any] = module._parameters
    if slot.get(name) is not None:
        slot[name] = function(slot[name])


def replace_module(model: nn.Module, path: str, new: nn.Module) -> None:
    """Put another module in the place of one."""
    parent, _, name = path.rpartition(".")
    model.get_submodule(parent)._modules[name] = new


def parameter_name(path: str, name: str) -> str:
    """Return the qualified name of a module's parameter.

    >>> parameter_name("", "weight"), parameter_name("0", "bias")
    ('weight', '0.bias')
    """
    return f"{path}.{name}" if path else name
