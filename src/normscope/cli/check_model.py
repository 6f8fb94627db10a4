"""``normscope check`` on a model: the statements on its batch-norm layers and one batch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.cli import sources
from normscope.cli.batches import choose_batches, note_conversion
from normscope.cli.check_table import Found, SampleCounts
from normscope.cli.render import print_to_stderr
from normscope.errors import InputError, NormscopeError
from normscope.import_path import call_user_code
from normscope.layers import is_batch_norm
from normscope.layers.kinds import norm_layers
from normscope.layers.surgery.unfit import unfit_norms
from normscope.problem.batch import rows, sample_count
from normscope.problem.isolation import RandomGenerators
from normscope.problem.problem import Problem
from normscope.progress import Progress, ProgressCallback, ignore_progress
from normscope.progress_bar import show_progress
from normscope.text import format_duration, join_words
from normscope.theorems import TooLarge, Unchecked, Verdict, Verdicts, check_layer
from normscope.theorems.layer import DENSE_LIMIT, UNITS, product_count
from normscope.theorems.verdict import worst

_USUAL_NORMS = ("none", "batch", "layer")
# values of a unit in a part of the batch, if two samples have fewer; 128 take much longer
_PART_VALUES = 16
_LONG = 60.0  # seconds: a shorter check needs no note
_PASSES = 2  # forward passes that one product with a Hessian costs
_SET_UP = 4  # forward passes before the first product
_FEW_UNITS = 2  # checked one by one in each layer, if all layers are checked
_PART_PRODUCTS = 128  # of Theorem C.1 on a part of the batch
_WHOLE_VALUES = 32  # of a unit, up to which Theorem C.1 is checked on the whole batch


@dataclass(frozen=True, eq=False)
class CheckedModel:
    """A model with the batch that the statements are checked on.

    Args:
        names: of model, loss and data, as the user gave them.
        network: the model.
        loss: as the library takes it.
        batch: all of it.
        smaller: how to ask for a smaller batch; its size follows.
        seed: of dropout and noise.
    """

    names: tuple[str, str, str]
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
        named = self.network.named_modules()
        norms = [name for name, module in named if is_batch_norm(module)]
        names = norms if layer is None else [layer]
        units = _FEW_UNITS if layer is None else UNITS
        note_duration(self.network, self.batch, names, self.smaller, units)
        if layer is None:
            found = list(self._check_layers(names, form, samples))
        else:
            with show_progress("check") as show:
                verdicts = self._check_layer(layer, form, samples, units, show)
            found = [(layer, each) for each in (*verdicts, *verdicts.unchecked)]
        if not found:
            raise _nothing_to_check(self.names[0], self.network, self._fitting_norms())
        size = _samples_of(self.batch)
        return [(name, add_remedy(each, size, self.smaller)) for name, each in found], samples

    def _check_layers(
        self, names: Sequence[str], form: str, samples: SampleCounts
    ) -> Iterator[tuple[str, Verdict | Unchecked]]:
        with show_progress("check") as show:
            for number, name in enumerate(names):
                show(Progress(f"layer {name}", done=number, total=len(names), unit="layers"))
                checked = self._check_layer(name, form, samples, _FEW_UNITS, ignore_progress)
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
            return call_user_code(self._source, partial(of_layer, **options))

        verdicts, part = check_in_parts(check, self.batch)
        if part is not None:
            samples[layer] = part
        return verdicts

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
        unfit = call_user_code(self._source, find)
        return [norm for norm in _USUAL_NORMS if norm not in unfit]

    @property
    def _source(self) -> str:
        model, loss, data = self.names
        return f"{model} with {loss} on {data}"


def load_model(
    model: str,
    loss: str,
    data: str,
    *,
    norm: str | None,
    options: Iterable[str],
    batch_size: int | None,
    device: str | None,
    seed: int,
) -> CheckedModel:
    """Load what the user named; a note on stderr reports a conversion of the data.

    Args:
        model: name or import path.
        loss: name or import path.
        data: name or import path.
        norm: of a registered model.
        options: of a registered model, each ``name=value``.
        batch_size: of the batch; None for the default.
        device: of the model; None for its own.
        seed: of the weights, and of the samples that are drawn.
    """
    samples = sources.load_data(data, seed)
    chosen = choose_batches(samples, batch_size, 1, seed)
    network = sources.load_model(model, samples, norm, list(options), seed, device)
    note_conversion(chosen, network)
    smaller = "take --batch-size" if isinstance(samples, tuple) else "return batches of size"
    names = (model, loss, data)
    return CheckedModel(names, network, sources.load_loss(loss), chosen[0], smaller, seed)


def worst_by_statement(verdicts: Verdicts) -> Iterator[Verdict | Unchecked]:
    """Yield the worst verdict of each statement over the units of a layer, then the unchecked."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.label, []).append(verdict)
    yield from (worst(group) for group in groups.values())
    yield from verdicts.unchecked


def _samples_of(batch: Any) -> int | None:
    """Return the samples of a batch; None if its rows are not samples, as those of a graph."""
    try:
        return sample_count(batch)
    except NormscopeError:
        return None


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
    samples = _samples_of(batch)
    if samples is None and sizes.values <= DENSE_LIMIT:
        return check(batch, _units_of_part(UNITS, sizes.values), DENSE_LIMIT), None
    part = 0 if samples is None else _part_size(samples, sizes.values)
    if samples is None or part * sizes.values > samples * DENSE_LIMIT:
        sizes = replace(sizes, limit=DENSE_LIMIT)
        unchecked = [_with_sizes(each, sizes) for each in found.unchecked]
        return Verdicts(found, unchecked), None
    most = _units_of_part(UNITS, part * sizes.values // samples)
    again = check(rows(batch, torch.arange(part)), most, DENSE_LIMIT)
    verdicts = [*found, *(each for each in again if each.label in large)]
    rest = [each for each in found.unchecked if each.label not in large]
    rest += [each for each in again.unchecked if each.label in large]
    return Verdicts(verdicts, rest), part


def _with_sizes(unchecked: Unchecked, sizes: TooLarge) -> Unchecked:
    return unchecked if unchecked.too_large is None else replace(unchecked, too_large=sizes)


def _part_size(samples: int, values: int) -> int:
    """Return how many samples Theorem C.1 is checked on, of a batch with so many values a unit."""
    return max(2, samples * _PART_VALUES // values)


def _units_of_part(units: int, values: int) -> int:
    """Return how many units Theorem C.1 is checked on, which takes a product for each value."""
    return min(units, max(1, _PART_PRODUCTS // values))


def hessian_products(units: int, positions: int, samples: int) -> dict[int, int]:
    """Return how many products with a Hessian the exact forms take on a layer.

    Args:
        units: of the layer that are checked one by one.
        positions: values of a unit in one sample.
        samples: in the batch.

    Returns:
        Numbers of products by the samples of each. Theorem C.1 takes one for each value of a unit,
        and repeats the other statements if it is checked on a part of the batch.

    >>> hessian_products(units=8, positions=64, samples=256)  # two samples have 128 values
    {256: 17, 2: 129}
    """
    values = samples * positions
    found = {samples: product_count(units, values, limit=_WHOLE_VALUES)}
    part = _part_size(samples, values)
    if values > _WHOLE_VALUES and part * positions <= DENSE_LIMIT:
        found[part] = product_count(_units_of_part(units, part * positions), part * positions)
    return found


def note_duration(
    network: nn.Module,
    batch: Any,
    names: Sequence[str],
    smaller: str,
    units: int = UNITS,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Print a note on stderr if a check will take long, and how to shorten it.

    The estimate is from forward passes on a copy of the model: a product costs a few passes
    through what follows the layer.

    Args:
        network: the model; it is not changed.
        batch: inputs and targets; for other batches there is no note.
        names: of the layers to be checked.
        smaller: how to ask for a smaller batch; its size follows.
        units: of each layer that are checked one by one, at most.
        clock: returns the seconds.
    """
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return
    seconds = _expected_seconds(network, inputs, names, units, clock)
    if seconds < _LONG:
        return
    ways = [f"choose one of the {len(names)} layers by --layer"] if len(names) > 1 else []
    fewer = max(len(inputs) // 8, 2)
    # Theorem C.1 takes few samples anyway, and may be the largest part
    if _expected_seconds(network, inputs[:fewer], names, units, clock) < seconds / 2:
        ways.append(f"{smaller} {fewer}")
    remedy = f"; for less, {', or '.join(ways)}" if ways else ""
    print_to_stderr(f"this may take about {format_duration(seconds)}{remedy}.")


def _expected_seconds(
    network: nn.Module,
    inputs: Tensor,
    names: Sequence[str],
    units: int,
    clock: Callable[[], float],
) -> float:
    """Return a rough estimate; 0 if the model fails, which the check itself reports."""
    try:
        own = next((each.dtype for each in network.parameters()), inputs.dtype)
        dtype = torch.promote_types(own, torch.float32)
        twin, inputs = copy.deepcopy(network).to(dtype).train(), inputs.to(dtype)
        seen = {
            name: sizes for name, (sizes, _) in _time_layers(twin, inputs, names, clock).items()
        }
        needed = {
            name: hessian_products(min(units, seen[name][0]), seen[name][1], len(inputs))
            for name in names
        }
        sizes = {size for each in needed.values() for size in each}
        passes = {size: _time_layers(twin, inputs[:size], names, clock) for size in sizes}
    except Exception:  # user code may raise anything
        return 0.0
    return sum(
        (_PASSES * count + _SET_UP) * passes[size][name][1]
        for name, each in needed.items()
        for size, count in each.items()
    )


def _time_layers(
    network: nn.Module, inputs: Tensor, names: Sequence[str], clock: Callable[[], float]
) -> dict[str, tuple[tuple[int, int], float]]:
    """Return (units, positions) of each layer, and the seconds of what follows it in a pass."""
    found: dict[str, tuple[tuple[int, int], float]] = {}

    def record(name: str, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        found[name] = (output.shape[1], output[0, 0].numel()), clock()

    modules = dict(network.named_modules(remove_duplicate=False))
    handles = [modules[name].register_forward_hook(partial(record, name)) for name in names]
    device = next((each.device for each in network.parameters()), inputs.device)
    with torch.no_grad(), RandomGenerators().preserved():
        network(inputs.to(device, copy=True))  # it may be overwritten
    end = clock()
    for handle in handles:
        handle.remove()
    return {name: (sizes, end - begun) for name, (sizes, begun) in found.items()}
