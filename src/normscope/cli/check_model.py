"""``normscope check`` on a model: the statements on its batch-norm layers and one batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from normscope.cli.batches import samples_of
from normscope.cli.render import print_to_stderr
from normscope.cli.sources import Source
from normscope.errors import InputError
from normscope.import_path import call_user_code
from normscope.layers import is_batch_norm
from normscope.layers.kinds import norm_layers
from normscope.layers.surgery.unfit import unfit_norms
from normscope.problem.batch import rows
from normscope.problem.problem import Problem
from normscope.progress import Progress, ProgressCallback, ignore_progress
from normscope.progress_bar import show_progress
from normscope.text import format_duration, join_words
from normscope.theorems import Unchecked, Verdict, Verdicts, check_layer
from normscope.theorems.check_layer import DENSE_LIMIT, UNITS
from normscope.theorems.verdict import worst

Found = list[tuple[str, Verdict | Unchecked]]
"""Verdicts, and statements without one, each with what it was checked on."""
SampleCounts = dict[str, int]
"""Samples that Theorem C.1 was checked on, by layer, where they were not the whole batch."""

_USUAL_NORMS = ("none", "batch", "layer")
# values of a unit in a part of the batch, if two samples have fewer; 128 take much longer
_PART_VALUES = 16
_LONG = 60.0  # seconds: a shorter check needs no note
_CUT = 8  # of the batch, for a shorter check
_FEW_UNITS = 2  # checked one by one in each layer, if all layers are checked
_PART_PRODUCTS = 128  # of Theorem C.1 on a part of the batch
_WHOLE_VALUES = 32  # of a unit, up to which Theorem C.1 is checked on the whole batch


@dataclass(frozen=True, eq=False)
class CheckedModel:
    """A model with the batch that the statements are checked on.

    Args:
        source: names of model, data and loss, as the user gave them.
        network: the model.
        loss: as the library takes it.
        batch: all of it.
        smaller: how to ask for a smaller batch; its size follows.
        seed: of dropout and noise.
    """

    source: Source
    network: Any
    loss: Any
    batch: Any
    smaller: str
    seed: int

    def check(self, layer: str | None, form: str) -> tuple[Found, SampleCounts]:
        """Check the statements on one layer, unit by unit, or on all layers.

        Args:
            layer: its name; None for every batch normalization.
            form: of the statements.

        Returns:
            What was found, and the samples of Theorem C.1 where it was not the whole batch.

        Raises:
            InputError: if the model has no batch normalization.
        """
        samples: SampleCounts = {}
        if layer is None:
            found = list(self._check_layers(form, samples))
        else:
            with show_progress("check") as show:
                verdicts = self._check_layer(layer, form, samples, UNITS, show)
            found = [(layer, each) for each in (*verdicts, *verdicts.unchecked)]
        if not found:
            raise _nothing_to_check(self.source.model, self.network, self._fitting_norms())
        size = samples_of(self.batch)
        return [(name, add_remedy(each, size, self.smaller)) for name, each in found], samples

    def _check_layers(
        self, form: str, samples: SampleCounts
    ) -> Iterator[tuple[str, Verdict | Unchecked]]:
        modules = self.network.named_modules()
        names = [name for name, module in modules if is_batch_norm(module)]
        with show_progress("check") as show:
            for number, name in enumerate(names):
                show(Progress(f"layer {name}", done=number, total=len(names), unit="layers"))
                begin = time.perf_counter()
                checked = self._check_layer(name, form, samples, _FEW_UNITS, ignore_progress)
                if number == 0:
                    self._note_duration(time.perf_counter() - begin, len(names))
                for each in worst_by_statement(checked):
                    yield name, each

    def _check_layer(
        self, layer: str, form: str, samples: SampleCounts, units: int, show: ProgressCallback
    ) -> Verdicts:
        """Return the verdicts on a layer; the samples of a part of the batch are recorded."""
        options: dict[str, Any] = {"form": form, "seed": self.seed, "progress": show}

        def check(batch: Any, most: int = units, limit: int = _WHOLE_VALUES) -> Verdicts:
            chosen = self._evenly_spaced(layer, min(units, most))
            sizes: dict[str, Any] = {"units": chosen, "dense_limit": limit}
            of_layer = partial(check_layer, self.network, self.loss, [batch], layer, **sizes)
            return call_user_code(str(self.source), partial(of_layer, **options))

        verdicts, part = check_in_parts(check, self.batch)
        if part is not None:
            samples[layer] = part
        return verdicts

    def _note_duration(self, first: float, layers: int) -> None:
        """Print a note on stderr if the check will take long, by the seconds of the first layer.

        Most of the network follows that layer, so that others are seldom slower.
        """
        seconds = first * layers
        if layers == 1 or seconds < _LONG:
            return
        ways = f"choose one of the {layers} layers by --layer"
        if (size := samples_of(self.batch)) is not None and size >= _CUT * 2:
            ways += f", or {self.smaller} {size // _CUT}"
        print_to_stderr(
            f"this may take up to {format_duration(seconds)}, at the pace of the first of {layers} "
            f"layers; for less, {ways}."
        )

    def _evenly_spaced(self, layer: str, most: int) -> list[int] | None:
        """Return the indices of some units; None if the layer is not one that has them."""
        module = dict(self.network.named_modules(remove_duplicate=False)).get(layer)
        size = getattr(module, "num_features", None)
        if not isinstance(size, int):
            return None
        few = min(most, size)
        return [index * size // few for index in range(few)]

    def _fitting_norms(self) -> list[str]:
        """Return the usual normalizations that the model works with."""
        problem = Problem(self.network, self.loss, [self.batch])
        find = partial(unfit_norms, problem, _USUAL_NORMS, self.batch, self.seed)
        unfit = call_user_code(str(self.source), find)
        return [norm for norm in _USUAL_NORMS if norm not in unfit]


def worst_by_statement(verdicts: Verdicts) -> Iterator[Verdict | Unchecked]:
    """Yield the worst verdict of each statement over the units of a layer, then the unchecked."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.label, []).append(verdict)
    yield from (worst(group) for group in groups.values())
    yield from verdicts.unchecked


def add_remedy(
    found: Verdict | Unchecked, batch_size: int | None, smaller: str
) -> Verdict | Unchecked:
    """Return a finding; for a batch that was too large, with the size that is not.

    Args:
        found: as the library has it.
        batch_size: of the batch it was found on; None if it cannot be cut.
        smaller: how to ask for a smaller batch; the size follows.
    """
    if not isinstance(found, Unchecked) or found.too_large is None:
        return found
    if batch_size is None:
        reason = str(found.too_large).partition(":")[0]
        return replace(found, reason=f"{reason}: the rows of the batch are not samples to cut")
    values, limit = found.too_large.values, found.too_large.limit
    fitting = batch_size * limit // values
    advice = f"{smaller} {fitting}"
    if fitting <= 1:  # a batch of one has no statistics
        advice = "choose by --layer one that has fewer positions"
    reason = f"a unit has {values} values in a batch of {batch_size}, more than {limit}: {advice}"
    return replace(found, reason=reason)


def _nothing_to_check(model: str, network: nn.Module, fitting: Sequence[str]) -> InputError:
    """Return the error for a model without batch normalization, with what can be done.

    Args:
        model: its name or import path.
        network: the model.
        fitting: the kinds of normalization that it can have, of none, batch and layer.
    """
    others = sorted({type(each).__name__ for each in norm_layers(network).values()})
    has = f", but {join_words(others)}, which the theorems are not about" if others else ""
    make = "" if others else "add some"
    if others and "batch" in fitting:
        make = 'let it return normscope.layers.convert(model, to="batch")'
    if ":" not in model:
        make = "give --norm batch"
    remedy = f"; to check it with such layers, {make}" if make else ""
    compare = f", and normscope compare --norms {','.join(fitting)} those of other normalizations"
    return InputError(
        f"{model} has no batch normalization to check{has}{remedy}. As it is, normscope lr finds "
        f"its learning rates{compare if len(fitting) > 1 else ''}."
    )


# Theorem C.1 makes a matrix of all values of a unit, which a batch may be too large for. A
# statement about any batch is tested as well by its first samples.


def check_in_parts(check: Callable[..., Verdicts], batch: Any) -> tuple[Verdicts, int | None]:
    """Check a batch; statements that it is too large for are checked on its first samples.

    Args:
        check: returns the verdicts of one layer on a batch; for a part of it, it is also given
            the largest number of units and the limit of values.
        batch: the whole one.

    Returns:
        The verdicts, and the number of samples in the part; None if no part was needed, or two
        samples, the fewest that vary, have too many values.
    """
    found = check(batch)
    large = {each.label: each.too_large for each in found.unchecked if each.too_large}
    if not large:
        return found, None
    sizes = next(iter(large.values()))  # the units of one layer have one size
    samples = samples_of(batch)
    if samples is None and sizes.values <= DENSE_LIMIT:
        return check(batch, _units_of_part(UNITS, sizes.values), DENSE_LIMIT), None
    part = 0 if samples is None else max(2, samples * _PART_VALUES // sizes.values)
    if samples is None or part * sizes.values > samples * DENSE_LIMIT:
        sizes = replace(sizes, limit=DENSE_LIMIT)
        unchecked = [
            replace(each, too_large=sizes) if each.too_large else each for each in found.unchecked
        ]
        return Verdicts(found, unchecked), None
    most = _units_of_part(UNITS, part * sizes.values // samples)
    again = check(rows(batch, torch.arange(part)), most, DENSE_LIMIT)
    verdicts = [*found, *(each for each in again if each.label in large)]
    rest = [each for each in found.unchecked if each.label not in large]
    rest += [each for each in again.unchecked if each.label in large]
    return Verdicts(verdicts, rest), part


def _units_of_part(units: int, values: int) -> int:
    """Return how many units Theorem C.1 is checked on, which takes a product for each value."""
    return min(units, max(1, _PART_PRODUCTS // values))
