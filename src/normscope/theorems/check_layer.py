"""Check the statements on a norm layer of a network with its data."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.layers.kinds import is_norm, kind_of, norm_layers
from normscope.problem.loss import Loss, WholeLoss
from normscope.problem.modes import is_batch_norm
from normscope.problem.problem import Data, Problem
from normscope.problem.sharded import gather_shards
from normscope.progress import Progress, ProgressCallback, ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.registry import unknown_name
from normscope.text import format_duration
from normscope.theorems.layer_case import LayerCase, as_bound, inner
from normscope.theorems.observation import observe
from normscope.theorems.statement import THEOREMS, TOLERANCE, Sides, Statement, total, verdict
from normscope.theorems.verdict import TooLarge, Unchecked, Verdict, Verdicts
from normscope.validation import as_seed
from normscope.warn import warn

UNITS = 8  # checked one by one by default
DENSE_LIMIT = 128  # values per unit up to which Theorem C.1 forms a matrix of products
_ASYMMETRY = 1e-3  # of products with a Hessian, above which their rounding errors show in the sides


@interrupt_safe
@shows_progress("check")
@gather_shards
def check_layer(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    layer: str,
    *,
    form: str = "exact",
    units: Sequence[int] | None = None,
    bound: float = 1.0,
    dense_limit: int = DENSE_LIMIT,
    dtype: torch.dtype | None = torch.float64,
    seed: int = 0,
    progress: ProgressOption = None,
) -> Verdicts:
    """Check the statements on one batch normalization of a network, per unit and in total.

    The left sides are derivatives of the network in train mode by the layer's inputs, by autograd;
    the right sides are closed forms of the layer's inputs, and of gradient and Hessian by its
    outputs. A unit of a convolution is a channel, its batch all samples at all positions. The
    Hessian by the outputs couples the units: per unit its diagonal block counts, since the layer's
    other inputs are fixed; in total (``unit`` None) all of it, along the gradient by all inputs.
    Theorem C.1 has no total, since the maximum of each unit has another X. Lemma 4.5 is about
    weights and is not checked here.

    Layer and closed forms are computed in float64, the network around the layer in the model's own
    dtype (in float32 at least). Both sides take the same products with the Hessian by the outputs,
    so the slack has the rounding errors of float64, and the sides those of the network. For more
    digits in the sides, pass a copy of the model in float64.

    The model is not changed. Only the first batch of the data is used, all of it.

    Args:
        model: any module; other users of the layer's input do not count.
        loss: ``loss(output, target)``, a name, or a `whole_loss`.
        data: one batch, a list of batches or a DataLoader.
        layer: name of the layer, as in ``model.named_modules()``.
        form: "exact", "printed" or "article".
        units: indices to check one by one, each once; None for 8 of them, evenly spaced.
        bound: of the spectral norm of the layer's input matrix, for Theorems 4.4 and C.1.
        dense_limit: values per unit up to which Theorem C.1 is checked, which takes as many
            products for each unit; all other statements together take two. Above it the theorem
            is in ``unchecked``.
        dtype: of the layer and the closed forms; None for that of the model, with a matching
            tolerance.
        seed: of dropout and noise.
        progress: receives a `normscope.progress.Progress` event before each product with a
            Hessian, from the second on with an estimate of the time in all. ``print`` shows
            them; True shows a bar, and so does None in a notebook or console.

    Returns:
        The verdicts, which print as a table. What could not be checked is in ``unchecked``, with
        the reason: Theorem C.1 for large batches, Fact C.2 for units whose scale is zero, and
        forms without eps for constant units.

    Raises:
        UnknownNameError: if there is no such layer or form.
        InputError: if it is not a batch normalization or has no such unit, if the bound is
            negative, or if the layer's inputs or gradients are not finite.

    Warns:
        NormscopeWarning: if the products with the Hessian are not symmetric up to 0.1 %, as they
            can be in float32: the sides then have few digits.

    >>> network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    >>> found = check_layer(network, "squared_error", (torch.randn(9, 3), torch.randn(9, 2)), "1")
    >>> len(found.refuted)
    0
    """
    bound, seed = as_bound(bound), as_seed(seed)
    show = callback_of(progress)
    problem = Problem(model, loss, data)
    module = _batch_norm(model, layer)
    precision = dtype or problem.dtype or torch.float64
    coarser = torch.finfo(precision).eps / torch.finfo(torch.float64).eps
    place = {"layer": layer, "tolerance": TOLERANCE * coarser**0.5}
    count = _ProductCount(layer, show)
    with observe(problem, layer, module, dtype, seed, count) as observation:
        chosen = _chosen(units, observation.y.shape[1])
        whole = observation.whole(bound)
        apart = observation.apart(chosen, bound, seed, dense_limit)
        count.total = product_count(len(chosen), apart.units.batch_size, form, dense_limit)
        made = list(_Checker(whole, apart, chosen, form, place).found())
        if dtype is not None:
            _warn_of_rounding(apart, layer)
    unchecked = [each for each in made if isinstance(each, Unchecked)]
    return Verdicts((each for each in made if isinstance(each, Verdict)), unchecked)


def product_count(units: int, values: int, form: str = "exact", limit: int = DENSE_LIMIT) -> int:
    """Return the largest number of products with a Hessian that a check takes.

    Args:
        units: checked one by one.
        values: of a unit: samples times positions.
        form: of the statements.
        limit: values up to which Theorem C.1 is checked.

    >>> product_count(units=8, values=1024), product_count(units=8, values=32)
    (17, 257)
    """
    theorem_4_2 = {"exact": 2, "printed": 3, "article": 2}[form]  # by d, Jd and g
    forms_matrix = values <= limit and form != "article"
    return (1 if form == "exact" else 2) + units * (values if forms_matrix else theorem_4_2)


@dataclass
class _ProductCount:
    """Sends an event before each product, with the time that all will take at their pace.

    Args:
        layer: its name.
        progress: receives the events.
        clock: returns the seconds.
    """

    layer: str
    progress: ProgressCallback
    clock: Callable[[], float] = time.perf_counter
    total: int = 0
    done: int = 0
    begin: float = field(default=0.0)

    def __call__(self) -> None:
        now, detail = self.clock(), ""
        if self.done:
            seconds = (now - self.begin) / self.done * self.total
            detail = f"about {format_duration(seconds)} in all"
        else:
            self.begin = now
        total = max(self.total, self.done + 1)
        event = Progress(f"layer {self.layer}", detail, self.done, total, "products", "bound")
        self.progress(event)
        self.done += 1


def _warn_of_rounding(apart: LayerCase, layer: str) -> None:
    """Warn if products with the Hessian are not symmetric: their sides have few digits."""
    units = apart.units
    pushed = units.gamma.unsqueeze(-1) * units.jacobian_times(apart.direction)
    curved_g, curved_d = apart.hessian(units.g), apart.hessian(pushed)  # known from Theorem 4.2
    size = units.g.norm(dim=-1) * curved_d.norm(dim=-1) + pushed.norm(dim=-1) * curved_g.norm(
        dim=-1
    )
    difference = (inner(pushed, curved_g) - inner(units.g, curved_d)).abs()
    asymmetry = float((difference / size.clamp(min=1e-300)).max())
    if asymmetry > _ASYMMETRY:
        warn(
            f"products with the Hessian by the outputs of {layer!r} are asymmetric by "
            f"{asymmetry:.1e} of their size, through rounding errors; for more digits in the sides "
            "of Theorems 4.2 and C.1 pass a copy of the model in float64."
        )


@dataclass(frozen=True, eq=False)
class _Checker:
    """Checks every statement of a form on one layer, per unit and in total."""

    whole: LayerCase
    apart: LayerCase
    chosen: list[int]
    form: str
    place: dict[str, Any]

    def found(self) -> Iterator[Verdict | Unchecked]:
        """Yield a verdict for each statement, or why there is none."""
        size, limit = self.apart.units.batch_size, self.apart.dense_limit
        for theorem, variant in _parts(self.form):
            if not theorem.sums and size > limit:
                yield self._unchecked(theorem, variant, None, TooLarge(size, limit))
                continue
            sides = theorem(self.apart, self.form, variant)
            for index, unit in enumerate(self.chosen):
                reason = self._hindrance(theorem, index)
                yield self._answer(theorem, variant, sides, index, unit, reason)
            if theorem.sums and not variant and theorem.__name__ != "fact_c2":
                usable = self.form == "exact" or bool(self.whole.units.varies.all())
                reason = "" if usable else "a unit of the layer does not vary"
                summed = total(theorem(self.whole, self.form, variant))
                yield self._answer(theorem, variant, summed, 0, None, reason)

    def _hindrance(self, theorem: Statement, index: int) -> str:
        """Return why a statement cannot be checked on a unit; "" if it can."""
        if theorem.__name__ == "fact_c2" and not self.apart.units.gamma[index]:
            return "a scale of zero hides the normalized outputs"
        if self.form != "exact" and not self.apart.units.varies[index]:
            return "the unit does not vary, and this form divides by its deviation"
        return ""

    def _answer(
        self,
        theorem: Statement,
        variant: str,
        sides: Sides,
        index: int,
        unit: int | None,
        reason: str,
    ) -> Verdict | Unchecked:
        if reason:
            return self._unchecked(theorem, variant, unit, reason)
        try:
            return verdict(theorem, self.form, variant, sides, index, unit=unit, **self.place)
        except InputError as error:  # too large or too small to compare
            return self._unchecked(theorem, variant, unit, str(error).partition(";")[0])

    def _unchecked(
        self, theorem: Statement, variant: str, unit: int | None, reason: str | TooLarge
    ) -> Unchecked:
        too_large = reason if isinstance(reason, TooLarge) else None
        place = self.place["layer"], unit
        return Unchecked(theorem.__name__, str(reason), variant, *place, too_large)


def _parts(form: str) -> list[tuple[Statement, str]]:
    """Return the statements about a layer that have this form, with their variants."""
    about = [THEOREMS[name] for name in THEOREMS if "y" in THEOREMS[name].needs]
    found = [(each, variant) for each in about for own, variant in each.parts if own == form]
    if not found:
        raise unknown_name("form", form, {own for each in about for own in each.forms})
    return found


def _batch_norm(model: nn.Module, name: str) -> nn.Module:
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        raise unknown_name("norm layer", name, norm_layers(model))
    module: nn.Module = modules[name]
    if is_batch_norm(module) and kind_of(module) != "noisy":
        return module
    kind = type(module).__name__
    if kind_of(module) == "noisy":
        reason = "adds noise, which these statements do not cover"
    elif is_norm(module):
        reason = "is not a batch normalization, which these statements are about"
    elif hasattr(module, "running_mean"):
        reason = "normalizes by fixed statistics; these statements are about those of the batch"
    else:
        reason = "is not a norm layer"
    names = ", ".join(norm_layers(model)) or "none"
    raise InputError(f"{name!r} ({kind}) {reason}; norm layers of the model: {names}.")


def _chosen(units: Sequence[int] | None, count: int) -> list[int]:
    if units is None:
        few = min(UNITS, count)
        return [index * count // few for index in range(few)]
    try:
        chosen = [operator.index(unit) for unit in units if not isinstance(unit, bool)]
        whole = len(chosen) == len(units) and not isinstance(units, (str, bytes))
    except TypeError:
        chosen, whole = [], False
    if not whole or not chosen or not all(0 <= unit < count for unit in chosen):
        raise InputError(
            f"units must be integers from 0 to {count - 1}, such as [0, 1], got {units}."
        )
    if len(set(chosen)) < len(chosen):
        raise InputError(f"units must name each unit once, got {chosen}.")
    return chosen
