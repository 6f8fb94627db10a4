"""The model under observation, with its loss and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.problem.error_messages import require_module
from normscope.problem.loss import LOSSES, Loss, WholeLoss
from normscope.problem.modes import check_mode
from normscope.problem.problem import Problem
from normscope.problem.sharded import GatheredModel
from normscope.problem.wrappers import is_sharded, refuse_scripted, unwrapped
from normscope.training.optimizers import bind_optimizer, step_on_copies

if TYPE_CHECKING:
    from normscope.probes.probe import Probe

_MAX_LISTED = 4  # entries of an optimizer's option that a report lists


def is_measuring_process() -> bool:
    """Return whether this process measures: the only one, or the one of rank 0."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not ready or torch.distributed.get_rank() == 0


@dataclass(frozen=True, eq=False)
class ObservedModel:
    """A model with its loss and its optimizer.

    Args:
        model: without wrappers.
        loss: as `Problem` takes it.
        optimizer: of the model's parameters, or None.
        learning_rate: of all parameters, in place of the optimizer's.
        seed: of the probes' random choices.
        mode: of all passes: "as_is", "train", "frozen" or "eval".
    """

    model: nn.Module
    loss: Loss | WholeLoss | str | None
    optimizer: Optimizer | None
    learning_rate: float | None
    seed: int
    mode: str = "as_is"

    def __post_init__(self) -> None:
        if isinstance(self.loss, str):
            LOSSES[self.loss]  # raises here, not at the first step
        elif isinstance(self.loss, Optimizer):
            raise ArgumentTypeError(
                f"the loss must be a name or a function, got {type(self.loss).__name__}; it comes "
                "before the optimizer: Scope(model, loss, optimizer)."
            )
        if self.optimizer is not None:
            if not isinstance(self.optimizer, Optimizer):
                raise ArgumentTypeError(
                    "the optimizer must be the torch Optimizer that trains the model, got "
                    f"{type(self.optimizer).__name__}."
                )
            bind_optimizer(self.optimizer, self.model)
        rate = self.learning_rate
        if rate is not None and not isinstance(rate, SupportsFloat):
            raise ArgumentTypeError(f"learning_rate must be a number, got {rate!r}.")
        if rate is not None and not 0 <= rate < float("inf"):
            raise InputError(f"learning_rate must be finite and not negative, got {rate}.")
        check_mode(self.mode)
        _check_tensors(self.model)

    def check_probes(self, probes: Sequence[Probe]) -> None:
        """Raise if a probe needs what the optimizer does not provide.

        Args:
            probes: what is to be measured.

        Raises:
            InputError: if there is no learning rate and a probe needs it.
        """
        for probe in probes:
            probe.check_optimizer(self.optimizer)
        names = [probe.name for probe in probes if probe.needs_learning_rate]
        if names and self.optimizer is None and self.learning_rate is None:
            raise InputError(f"{_need(names)} a learning rate; give optimizer= or learning_rate=.")
        if self.optimizer is None:
            return
        names = [p.name for p in probes if p.needs_learning_rate and not p.needs_update]
        groups = self.optimizer.param_groups
        if names and self.learning_rate is None and not all("lr" in group for group in groups):
            raise InputError(
                f"{_need(names)} a learning rate, and {type(self.optimizer).__name__} has no 'lr' "
                "in its parameter groups; give learning_rate=."
            )
        names = [probe.name for probe in probes if probe.needs_update]
        if names:
            parameters = [p for group in groups for p in group["params"] if p.requires_grad]
            gradients: dict[Tensor, Tensor] = {p: torch.zeros_like(p) for p in parameters}
            step_on_copies(self.optimizer, gradients, needed_by=", ".join(names))

    def problem(self, inputs: Any, targets: Any) -> Problem:
        """Return this step's batch with the model and the loss, validated.

        Args:
            inputs: the model's inputs; the whole batch if there are no targets beside it.
            targets: of the loss; None if the inputs are the whole batch.

        Returns:
            The problem.

        Raises:
            ArgumentTypeError: if the batch does not fit the kind of loss.
            ShapeError: if inputs and targets differ in length.
        """
        if targets is None:
            if isinstance(inputs, Tensor) and not isinstance(self.loss, WholeLoss):
                raise ArgumentTypeError(
                    "step takes inputs and targets, step(x, y), or a whole batch as a tuple, a "
                    "dictionary or a graph; a batch of another form needs loss=whole_loss(...)."
                )
            # a list would be several batches
            batch = tuple(inputs) if isinstance(inputs, list) else inputs
            return Problem(self.model, self.loss, batch)
        try:
            return Problem(self.model, self.loss, (inputs, targets))
        except ShapeError as error:
            raise ShapeError(f"the batch given to step does not fit together: {error}") from error

    def learning_rates(self) -> dict[str, float]:
        """Return the rate of each trained parameter by name; negative if a group maximizes.

        Trained parameters require a gradient and are known to the optimizer, if there is one.
        """
        names = {id(p): name for name, p in self.model.named_parameters() if p.requires_grad}
        if self.optimizer is None:
            rate = float("nan") if self.learning_rate is None else self.learning_rate
            return dict.fromkeys(names.values(), rate)
        found: dict[str, float] = {}
        for group in self.optimizer.param_groups:
            own = float(group.get("lr", "nan"))
            rate = own if self.learning_rate is None else self.learning_rate
            signed = -rate if group.get("maximize", False) else rate
            found |= {names[id(p)]: signed for p in group["params"] if id(p) in names}
        return {name: found[name] for name in names.values() if name in found}

    def settings(self) -> dict[str, Any]:
        """Return the loss and the optimizer's present settings, for a report."""
        found: dict[str, Any] = {"loss": _name_loss(self.loss)}
        if self.optimizer is not None:
            found["optimizer"] = _describe_optimizer(self.optimizer)
        if self.learning_rate is not None:
            found["learning_rate"] = float(self.learning_rate)
        return found


def observe(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    optimizer: Optimizer | None,
    learning_rate: float | None,
    seed: int,
    mode: str,
) -> ObservedModel:
    """Return a model under observation, without its wrappers; a sharded one is gathered.

    Args:
        model: any model; if it is sharded, all processes must call this together.
        loss: as of `ObservedModel`, like the further arguments.
        optimizer: of the model's parameters, or None.
        learning_rate: of all parameters, in place of the optimizer's.
        seed: of the probes' random choices.
        mode: of all passes.

    Raises:
        ArgumentTypeError: if it is not a module, or is compiled by torch.jit.
    """
    require_module(model)
    refuse_scripted(model)
    if is_sharded(model):
        gathered = GatheredModel(model)
        model, loss, optimizer = map(gathered.of, (model, loss, optimizer))
    return ObservedModel(unwrapped(model), loss, optimizer, learning_rate, seed, mode)


def _need(names: Sequence[str]) -> str:
    """Return the names with the verb "need".

    >>> _need(["loss_variation"]), _need(["loss_variation", "covariate_shift"])
    ('loss_variation needs', 'loss_variation, covariate_shift need')
    """
    return f"{', '.join(names)} {'needs' if len(names) == 1 else 'need'}"


def _check_tensors(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InputError(
                f"{name!r} of the model has no shape yet; run the lazy model on a batch first."
            )
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise InputError(
                f"the parameter {name!r} is complex; a scope takes real ones: keep real and "
                "imaginary part as two, by torch.view_as_real."
            )


def _name_loss(loss: object) -> str:
    """Return the registered name of a loss, or the name of its function or class.

    >>> _name_loss("cross_entropy"), _name_loss(len)
    ('cross_entropy', 'len')
    """
    if isinstance(loss, str | None):
        return loss or "model"
    if isinstance(loss, WholeLoss):
        return f"{_name_loss(loss.parts[-1])} (whole loss)"
    return str(getattr(loss, "__name__", type(loss).__name__))


def _describe_optimizer(optimizer: Optimizer) -> str:
    """Return the class and its settings: without those that are off, all values of groups."""
    groups = [
        {name: _plain(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    parts = [type(optimizer).__name__]
    for name in dict.fromkeys(name for group in groups for name in group):
        values = list(dict.fromkeys(str(group.get(name)) for group in groups))
        if name == "lr" or values not in (["None"], ["False"], ["0"], ["0.0"]):
            parts.append(f"{name} {' or '.join(values)}")
    return ", ".join(parts)


def _plain(value: Any) -> Any:
    """Convert a tensor to a number or list; replace a long list by its length."""
    if hasattr(value, "tolist"):
        value = value.item() if math.prod(value.shape) == 1 else value.tolist()
    is_long = isinstance(value, list | tuple) and len(value) > _MAX_LISTED
    return f"of {len(value)} values" if is_long else value
