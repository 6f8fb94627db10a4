"""The stability gauge: how far the learning rate is from the edge of stability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from normscope.curvature.operator import unchecked_operator
from normscope.errors import ArgumentTypeError, InputError
from normscope.learning_rate.bound import preconditioned_eigenvalue
from normscope.learning_rate.update_rule import (
    Preconditioner,
    UpdateRule,
    preconditioner_of,
    rule_of,
)
from normscope.probes.batch_loss import BatchLoss
from normscope.probes.crossing import find_crossing
from normscope.probes.curvature import MATVECS, TOLERANCE, Curvature, curvature_along
from normscope.probes.gradients import squared_norms
from normscope.probes.probe import FORWARD, PROBES, Cost, Dimensions, Probe, Values
from normscope.problem.problem import Problem
from normscope.warn import silenced

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from normscope.probes.context import StepContext
    from normscope.problem.parameters import ParameterLayout
    from normscope.problem.problem import Data

FORWARD_PASSES = 6
"""Most forward passes in which the critical rate is enclosed."""
PRECISION = 1 / 16
"""Relative width at which the enclosure of the critical rate ends; also the largest share of an
update that rounding of the parameters may change, and the largest residual of a sharpness."""
_ALONG = ("critical_rate", "critical_rate_error", "stability_distance")
_DIRECTIONAL = ("directional_sharpness", "directional_threshold")
_SHARPNESS = ("sharpness", "sharpness_error", "sharpness_threshold")
_PRECONDITIONED = (
    *("preconditioned_sharpness", "preconditioned_sharpness_error"),
    "preconditioned_threshold",
)
_BATCH = ("batch_sharpness", "batch_threshold_small", "batch_threshold_large")


@PROBES.register(name="stability")
class Stability(Probe):
    r"""How far the learning rate is from the edge of stability, for the optimizer in use.

    Let d be the optimizer's next update, computed on copies (momentum, second moments, weight decay
    and the rates of parameter groups included). The learning rate eta is the ``learning_rate`` of
    the results, the first of a trained parameter that is not zero; other groups keep their ratio to
    it. Measures, on the step's batch,

    - ``critical_rate``: the rate at which a step along d stops lowering the loss, L(theta + s d) =
      L(theta) at s = critical_rate / eta; 0 if d does not lower the loss at any rate, as momentum
      and weight decay may make it in a stable training.
      ``critical_rate_error``: relative width of its enclosure; infinite if the loss is lower at
      all rates tried, of which ``critical_rate`` is then the largest, or higher at all. Of several
      crossings it may be a later one than the first. Under
      Adafactor ``critical_rate`` is NaN beyond 1 / sqrt(step), to which it limits the rate.
    - ``stability_distance``: critical_rate / eta. Below 1 this step raises the loss.
    - ``directional_sharpness``: d'Hd / d'd with the Hessian H, and ``directional_threshold``, -2
      g'd / d'd with the gradient g, above which the step raises a quadratic loss: 2 / eta for
      gradient descent.

    and on demand, with the thresholds of a quadratic (`UpdateRule.critical_curvature`):

    - ``sharpness``: the top eigenvalue of H. ``sharpness_error``: the relative residual at the end
      of its search (see `Curvature`); above 1/16 the sharpness is NaN. ``sharpness_threshold``: 2
      (1 + mu) / eta for SGD with momentum mu; NaN for Adam and RMSprop, and if groups have
      different rates.
    - ``preconditioned_sharpness``: that of D^-1/2 (H + W) D^-1/2, with the divisors D of this
      step's update: the root of the mean squared gradients plus epsilon, over the group's relative
      rate. W is the weight decay that Adam and RMSprop add to the gradient; else zero.
      ``preconditioned_sharpness_error``: as ``sharpness_error``. ``preconditioned_threshold``: (2 +
      2 beta_1) / ((1 - beta_1) eta) for Adam.
    - ``batch_sharpness``: mean over batches of g'Hg / g'g. Its thresholds for SGD:
      ``batch_threshold_small``, 2 (1 - mu) / eta for small batches, and ``batch_threshold_large``,
      2 (1 + mu) / eta for large ones.

    H is that of the function that the training sees: same flags, batch statistics differentiated.
    The update is that by this batch's own gradient: clipping and accumulation are not seen. NaN at
    a learning rate of zero. Each eigenvalue search starts from the vector of the last one.

    Reference: cohen2021, Section 2; cohen2022, Section 2; andreyev2026. Notation: eta = learning
    rate, mu = momentum.

    Args:
        sharpness: whether to measure it, by about 8 products with H.
        preconditioned_sharpness: whether to measure it, by about 8 products with H.
        batch_sharpness: whether to measure it, by one product with H for each batch.
        batches: those of ``batch_sharpness``, in the training's batch size; None: the step's.
        every: minimum number of training steps between two measurements.
    """

    needs_learning_rate = True
    needs_update = True

    def __init__(
        self,
        sharpness: bool = False,
        preconditioned_sharpness: bool = False,
        batch_sharpness: bool = False,
        batches: Data = None,
        every: int | None = None,
    ) -> None:
        super().__init__(every)
        flags = {
            "sharpness": sharpness,
            "preconditioned_sharpness": preconditioned_sharpness,
            "batch_sharpness": batch_sharpness,
        }
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise ArgumentTypeError(f"{name} must be True or False, got {value!r}.")
        if batches is not None and not batch_sharpness:
            raise InputError(
                "batches= is used by batch_sharpness alone; give batch_sharpness=True."
            )
        self.sharpness = sharpness
        self.preconditioned_sharpness = preconditioned_sharpness
        self.batch_sharpness = batch_sharpness
        self.batches = batches
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Clear the last critical rate and eigenvectors."""
        self._critical: float | None = None
        self._curvature = Curvature()
        self._vector: Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the last critical rate and eigenvectors, from which the next searches start."""
        own = {"critical": self._critical, "vector": self._vector}
        return {**super().state_dict(), **own, "curvature": self._curvature.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the last critical rate and eigenvectors."""
        super().load_state_dict(state)
        self._critical, self._vector = state["critical"], state["vector"]
        self._curvature.load_state_dict(state["curvature"])

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        names = [*_ALONG, *_DIRECTIONAL]
        names += _SHARPNESS if self.sharpness else ()
        names += _PRECONDITIONED if self.preconditioned_sharpness else ()
        names += _BATCH if self.batch_sharpness else ()
        return dict.fromkeys(names, ())

    def check_optimizer(self, optimizer: Optimizer | None) -> None:
        """Raise if a preconditioned sharpness is asked for and the update rule is not known."""
        if optimizer is None or not self.preconditioned_sharpness:
            return
        rule = rule_of(optimizer)
        if rule.unknown is not None:
            raise InputError(
                f"preconditioned_sharpness needs the divisors of the optimizer's step, but "
                f"{rule.unknown}; leave it out, or train with SGD, Adam, AdamW or RMSprop."
            )

    def measure(self, context: StepContext) -> Values:
        """Return the critical rate, and the sharpnesses that are asked for."""
        values: Values = dict.fromkeys(self.variables, math.nan)
        if not math.isfinite(context.loss) or not context.gradient:
            return values
        if any(rate < 0 for rate in context.learning_rates.values()):
            return self.missing(self.variables, "the optimizer maximizes the loss")
        if not all(math.isfinite(size) for size in squared_norms(context.gradient).values()):
            return self.missing(self.variables, "the loss is finite, but its gradient is not")
        step = _NextStep(context)
        values |= step.thresholds(values)
        if not math.isfinite(step.length):
            return values | self.missing(_ALONG, "the optimizer's update is not finite")
        if step.is_zero:
            return values
        values |= self._along(context, step)
        if step.limited_rate < step.rate:
            reason = "Adafactor limits the rate to 1 / sqrt(step), here {:.3g}, so that the step "
            reason += "does not follow the learning rate {:g}"
            values |= self.missing(_ALONG[:1], reason.format(step.limited_rate, step.rate))
        elif step.limited_rate < float(values[_ALONG[0]]):
            values[_ALONG[0]] = math.nan  # no step is as long
        if self.sharpness:
            values |= self._sharpness(context)
        if self.preconditioned_sharpness:
            names = _PRECONDITIONED[:2]
            values |= self._attempt(names, lambda: self._preconditioned(context, step))
        if self.batch_sharpness:
            values |= self._attempt(_BATCH[:1], lambda: {_BATCH[0]: self._batch(context)})
        return values

    def _attempt(self, names: tuple[str, ...], measure: Callable[[], Values]) -> Values:
        """Return the values measured; NaN and a warning if they cannot be."""
        try:
            return measure()
        except (RuntimeError, ValueError) as error:  # such as a missing second derivative
            return self.missing(names, str(error))

    def _checked(self, name: str, value: float, error: float) -> Values:
        """Return an eigenvalue with its error; NaN if the search ended far from one."""
        values: Values = {name: value, f"{name}_error": error}
        if error > PRECISION:
            words = name.replace("_", " ")
            reason = f"the search for the {words} ended at a relative residual of {error:.2g}"
            values |= self.missing((name,), reason)
        return values

    def _along(self, context: StepContext, step: _NextStep) -> Values:
        """Return what is measured along the update."""
        if step.rounding > PRECISION:
            reason = "the update is so small that rounding of the parameters changes it by more "
            return self.missing((*_ALONG, *_DIRECTIONAL), reason + f"than {PRECISION:g}")
        threshold = -2 * step.slope / step.length**2
        values = self._attempt(_DIRECTIONAL[:1], lambda: {_DIRECTIONAL[0]: step.curvature()})
        sharpness = values["directional_sharpness"]
        # where a quadratic would cross, if there is no better guess
        guess = threshold / sharpness if sharpness > 0 else 1.0
        if self._critical is not None and step.rate > 0:
            guess = self._critical / step.rate
        values["directional_threshold"] = threshold
        return values | self._critical_rate(context, step, max(guess, 1e-6))

    def _critical_rate(self, context: StepContext, step: _NextStep, guess: float) -> Values:
        """Return the critical rate with its error, by at most `FORWARD_PASSES` forward passes."""
        batch_loss = context.batch_loss

        def change(multiple: float) -> float:
            moved = {
                name: torch.add(context.parameters[name], update, alpha=multiple)
                for name, update in step.update.items()
            }
            return batch_loss.value(context.copy_parameters(moved)) - context.loss

        noise = 8 * _loss_rounding(step.dtype, batch_loss.problem.device) * abs(context.loss)
        with batch_loss.several_passes():
            found = find_crossing(
                change,
                step.slope,
                guess,
                noise=noise,
                precision=PRECISION,
                evaluations=FORWARD_PASSES,
            )
        if found.value > 0:
            self._critical = found.value * step.rate
        return {
            "critical_rate": found.value * step.rate,
            "critical_rate_error": found.error,
            "stability_distance": found.value,
        }

    def _sharpness(self, context: StepContext) -> Values:
        """Return the top eigenvalue with its error."""
        found = self._curvature.measure(context)
        value, error = (float(found[name]) for name in self._curvature.variables)
        return self._checked("sharpness", value, error)

    def _preconditioned(self, context: StepContext, step: _NextStep) -> Values:
        """Return the top eigenvalue of the Hessian in the metric of the update, with its error."""
        with context.batch_loss.isolated_problem() as problem, silenced():
            operator = unchecked_operator(
                problem.model,
                problem.loss,
                problem.data,
                "hessian",
                context.batch_loss.mode,
                list(context.gradient),
                context.seed,
            )
            divisor = step.preconditioner(operator.evaluator.layout)
            size = operator.shape[0]
            guess = self._vector if self._vector is None or len(self._vector) == size else None
            found = preconditioned_eigenvalue(operator, divisor, TOLERANCE, guess)
        self._vector = found.vectors[:, 0]
        value, error = float(found.values[0]), float(found.residuals[0])
        return self._checked("preconditioned_sharpness", value, error)

    def _batch(self, context: StepContext) -> float:
        """Return the mean over batches of the curvature along their gradients."""
        if self.batches is None:
            return _gradient_curvature(context, context.batch_loss, context.gradient)
        observed = context.observed
        found = []
        for batch in Problem(observed.model, observed.loss, self.batches).batches():
            problem = Problem(observed.model, observed.loss, batch)
            loss = BatchLoss(problem, context.seed, observed.mode)
            point = context.copy_parameters()
            for name in context.gradient:
                point[name].requires_grad_()
            found.append(_gradient_curvature(context, loss, loss.gradient(point)))
        return float(np.mean(found))

    def cost(self, layers: int, points: int) -> Cost:
        """Return the forward passes of the critical rate, and products with the Hessian."""
        products = 1 + MATVECS * (self.sharpness + self.preconditioned_sharpness)
        products += self.batch_sharpness
        words = "product" if products == 1 else "products"
        note = f"up to {FORWARD_PASSES} forward passes, {products:g} {words} with the Hessian"
        return Cost(FORWARD * FORWARD_PASSES + 4 * products, note, exact=False)


class _NextStep:
    """The update that the optimizer takes next, and the thresholds of its rule.

    Attributes:
        rate: the learning rate of the scope's results.
        update: the change of each trained parameter, by name.
        slope: derivative of the loss along the update.
        length: l2 norm of the update.
        rounding: share of the update's length that rounding of the parameters may change.
        is_zero: whether there is no update: the rate or the gradient is zero.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self.rate = context.learning_rate
        own, after = context.parameters, context.updated_parameters
        self.update = {name: after[name] - own[name] for name in after}
        self.slope = _inner(context.gradient, self.update)
        self.length = math.sqrt(_inner(self.update, self.update))
        self.dtype = next(iter(self.update.values())).dtype
        size = math.sqrt(sum(_inner({n: own[n]}, {n: own[n]}) for n in self.update))
        # rounding errors are uniform within half a unit, which depends on the entry's exponent
        error = torch.finfo(self.dtype).eps * size / 4
        self.rounding = error / self.length if self.length > 0 else math.inf
        rates = context.learning_rates
        moves = any(bool(g.any()) and rates[name] for name, g in context.gradient.items())
        self.is_zero = self.length == 0 and not moves  # rather than lost in rounding
        optimizer = context.observed.optimizer
        self._rule = UpdateRule("SGD") if optimizer is None else rule_of(optimizer)

    @property
    def limited_rate(self) -> float:
        """The rate that Adafactor takes at most; infinite for other optimizers."""
        stepped = self._context.updated_optimizer
        if stepped is None or not isinstance(stepped[1], torch.optim.Adafactor):
            return math.inf
        steps = [float(state["step"]) for state in stepped[1].state.values() if "step" in state]
        return max(steps) ** -0.5 if steps else math.inf

    def curvature(self) -> float:
        """Return the curvature along the update."""
        return curvature_along(self._context, self.update) / self.length**2

    def thresholds(self, names: Mapping[str, Any]) -> Values:
        """Return the thresholds among the names; NaN where the rule has none."""
        rule, rate = self._rule, self.rate
        rates = {self._context.learning_rates[name] for name in self._context.gradient}
        values = dict.fromkeys(names, math.nan)
        if rule.unknown is None and rate > 0:
            critical = rule.critical_curvature(rate)
            values["preconditioned_threshold"] = critical
            if rule.second_moment is None and len(rates) == 1:
                values["sharpness_threshold"] = values["batch_threshold_large"] = critical
                values["batch_threshold_small"] = rule.critical_curvature_of_noise(rate)
        return {name: value for name, value in values.items() if name in names}

    def preconditioner(self, layout: ParameterLayout) -> Preconditioner:
        """Return the divisors of this step; all one for plain gradient descent."""
        found, stepped = None, self._context.updated_optimizer
        if stepped is not None:
            parameters, optimizer = stepped
            rates = [float(group["lr"]) / self.rate for group in optimizer.param_groups]
            found = preconditioner_of(optimizer, self._rule, parameters, layout, [], rates)
        ones = torch.ones(layout.size, dtype=layout.dtype, device=layout.device)
        return Preconditioner(ones, is_given=True) if found is None else found


def _loss_rounding(dtype: torch.dtype, device: torch.device) -> float:
    """Return the relative rounding of a batch's mean loss, inside an autocast if there is one."""
    rounding = torch.finfo(dtype).eps
    if torch.is_autocast_enabled(device.type):  # errors of single outputs average out
        rounding = max(rounding, torch.finfo(torch.get_autocast_dtype(device.type)).eps / 64)
    return rounding


def _inner(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the inner product over the common names, summed in float64."""
    return math.fsum(
        float((tensor.double() * other[name].double()).sum())
        for name, tensor in one.items()
        if name in other
    )


def _gradient_curvature(
    context: StepContext, loss: BatchLoss, gradient: Mapping[str, Tensor]
) -> float:
    """Return g'Hg / g'g of one batch; NaN if the gradient is zero."""
    squared = _inner(gradient, gradient)
    if squared == 0:
        return math.nan
    return curvature_along(context, gradient, loss) / squared
