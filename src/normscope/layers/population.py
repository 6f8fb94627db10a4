"""Running statistics measured on data instead of the moving average of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from normscope.errors import InputError, ShapeError, StateError
from normscope.interrupts import Undo, interrupt_safe
from normscope.layers.kinds import batch_layers, is_lp_norm
from normscope.layers.lp_function import scale
from normscope.layers.standardize import along_channels, channel_axes
from normscope.problem.batch import copy_batch, follow_model
from normscope.problem.error_messages import FitCheck, require_module
from normscope.problem.isolation import RandomGenerators, isolated
from normscope.problem.model_call import ModelCall, calls_of
from normscope.problem.sharded import GatheredModel
from normscope.problem.wrappers import FSDP_PREFIX, is_sharded, refuse_scripted, run_unwrapped
from normscope.warn import warn


class Population(NamedTuple):
    """What :func:`population_statistics` wrote into one layer.

    Attributes:
        mean: the new ``running_mean``.
        spread: the new ``running_var`` of batch norm, ``running_scale`` of l_p norm.
    """

    mean: Tensor
    spread: Tensor


@interrupt_safe
def population_statistics(
    model: nn.Module, data: object, sequential: bool = False
) -> dict[str, Population]:
    r"""Set the running statistics of every batch norm layer to its population statistics on data.

    .. math:: E[x] = E_B[\mu_B], \qquad Var[x] = E_B\left[\frac{m_B}{m_B - 1} \sigma_B^2\right]

    A batch counts by its samples; its m is the number of values per channel (samples times
    positions). An l_p layer gets :math:`E_B` of its mean and of its scale.

    The statistics of a layer depend on those used in the layers before it. By default there is one
    pass over the data, in which every layer normalizes by the batch, as in training. With
    ``sequential`` the layers are fixed one by one in their order of execution, and each sees the
    outputs of the layers before it *with their population statistics*, as at inference. That takes
    one pass per layer. Measured on the scikit-learn digits with three convolutions (30, 60, 90
    channels, stride 2), each with batch norm, after 200 training steps: with batches of 32 the two
    ways differ by at most 1.9 % in ``running_var`` and by 0.6 % of the largest output in the
    outputs; with batches of 8 by 5.9 % and 1.3 %; with one batch of 1437 by 0.02 % and 0.01 %.

    Noise layers and dropout are off. If a layer is used several times in one forward pass, its
    inputs are pooled and each use counts as a batch. Statistics are of this process's data only:
    they are not gathered from a process group.

    Nothing else changes: training flags, ``momentum``, ``num_batches_tracked`` (the count of
    *training* batches), gradients, hooks, and the state of the random generators of torch, NumPy,
    Python, the DataLoader and its samplers are restored. After an exception the running
    statistics are restored too.

    Reference: ioffe2015, Algorithm 2.

    Args:
        model: any model; one without layers that keep running statistics is left as it is.
        data: one batch (a tensor of inputs, or as `normscope.Problem` takes it), a list of batches
            or a DataLoader. Targets are not used.
        sequential: whether each layer sees the population statistics of those before it.

    Returns:
        What was written, in double precision, by the layer's name, in order of execution.

    Raises:
        InputError: if the data is empty, a batch has one value per channel, or a one-shot iterator
            is given with ``sequential``.
        MisfitError: if the model cannot take a batch.
        StateError: if a layer's statistics are not finite, or not in the dtype of its buffers;
            nothing is written then.
        ArgumentTypeError: if the data or the model has another type.

    Warns:
        NormscopeWarning: names the layers that keep no running statistics, that no batch
            reached, or that are instance norm; they are left unchanged.

    >>> norm = nn.BatchNorm1d(1)
    >>> written = population_statistics(norm, [torch.tensor([[0.0], [2.0]]), torch.ones(2, 1)])
    >>> norm.running_mean.item(), norm.running_var.item()
    (1.0, 1.0)
    """
    require_module(model, "population_statistics")
    refuse_scripted(model)
    own = {n.replace(FSDP_PREFIX, ""): layer for n, layer in batch_layers(model).items()}
    if is_sharded(model):
        model = GatheredModel(model).model
    warn_of_kept_statistics("population_statistics", model)
    found = batch_layers(model)
    layers = layers_with_statistics(model)
    _warn_of("track_running_stats=False keeps none", [name for name in found if name not in layers])
    if not layers:
        return {}
    if sequential and isinstance(data, Iterator):
        raise InputError(
            "sequential=True reads the data once per layer, but this iterator can be read only "
            "once; pass a list of batches or a DataLoader."
        )
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with isolated(model, tensors=buffers), torch.no_grad():
        run_unwrapped(model)
        for module in model.modules():
            module.training = False  # not eval(), which a model may override
        results = (_layer_after_layer if sequential else _all_at_once)(model, data, layers)
    _warn_of("no batch reached", [name for name in layers if name not in results])
    _write(own, results)
    return results


def warn_of_kept_statistics(what: str, model: nn.Module) -> None:
    """Warn of instance norm layers, whose running statistics are not measured on the data.

    Args:
        what: measures those of the other layers.
        model: the model.
    """
    layers = [(n, each) for n, each in model.named_modules() if isinstance(each, _InstanceNorm)]
    names = [repr(name) for name, layer in layers if layer.running_mean is not None]
    if names:
        warn(
            f"{what} keeps the present running statistics of the instance norm layers "
            f"{', '.join(names)}: only those of batch norm and l_p norm are measured on the data."
        )


def _warn_of(reason: str, names: list[str]) -> None:
    if names:
        listed = ", ".join(repr(name) for name in names)
        warn(f"population_statistics wrote no statistics into {listed} ({reason}).")


def _all_at_once(
    model: nn.Module, data: object, layers: dict[str, nn.Module]
) -> dict[str, Population]:
    averages = _one_pass(model, data, layers)
    return {name: average.population(name, layers[name]) for name, average in averages.items()}


def _layer_after_layer(
    model: nn.Module, data: object, layers: dict[str, nn.Module]
) -> dict[str, Population]:
    averages = _one_pass(model, data, layers)  # also finds the order of execution
    results: dict[str, Population] = {}
    free = dict(layers)
    for name in list(averages):
        if results:
            averages |= _one_pass(model, data, free)
        results[name] = averages[name].population(name, layers[name])
        _use(free.pop(name), *results[name])
    return results


class _Average:
    """Averages over batches, weighted by their samples."""

    def __init__(self) -> None:
        self.samples = 0
        self.mean: Tensor | float = 0.0
        self.spread: Tensor | float = 0.0

    def add(self, batch: BatchStatistics) -> None:
        self.samples += batch.samples
        share = batch.samples / self.samples
        self.mean = self.mean + share * (batch.mean - self.mean)
        self.spread = self.spread + share * (batch.unbiased_spread - self.spread)

    def population(self, name: str, layer: Any) -> Population:
        result = Population(torch.as_tensor(self.mean), torch.as_tensor(self.spread))
        dtype = layer.running_mean.dtype
        if not all(value.to(dtype).isfinite().all() for value in result):
            raise StateError(
                f"the statistics of layer {name!r} are not finite in {dtype} on this data; check "
                "the data and the weights for infinite, NaN or, for this dtype, too large values."
            )
        return result


class PopulationAverages:
    """Averages of the statistics of norm layers over batches that run through their model.

    Use it inside `isolated`, on a model in eval mode: inside `measuring` the layers normalize by
    each batch, without noise.

    Args:
        layers: by name, with running statistics.
    """

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        self._layers = layers
        self.averages: dict[str, _Average] = {}

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Add the batches of every forward pass inside the block."""
        handles = [
            layer.register_forward_pre_hook(partial(self._measure, name), with_kwargs=True)
            for name, layer in self._layers.items()
        ]
        yield
        for handle in handles:  # after an error the isolation around removes them
            handle.remove()

    def _measure(
        self, name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Add a batch, and make the layer in eval mode use its statistics, without noise."""
        x = args[0] if args else next(iter(kwargs.values()))
        statistics = batch_statistics(layer, x, name)
        self.averages.setdefault(name, _Average()).add(statistics)
        _use(layer, statistics.mean, statistics.spread)

    def use(self) -> None:
        """Let the layers that a batch reached normalize by their population statistics."""
        for name, average in self.averages.items():
            _use(self._layers[name], *average.population(name, self._layers[name]))


def layers_with_statistics(model: nn.Module) -> dict[str, nn.Module]:
    """Return the batch norm and l_p layers of a model that keep running statistics, by name.

    >>> list(layers_with_statistics(nn.Sequential(nn.BatchNorm1d(2), nn.ReLU())))
    ['0']
    """
    found = batch_layers(model).items()
    return {name: layer for name, layer in found if layer.running_mean is not None}


def _one_pass(model: nn.Module, data: object, free: dict[str, nn.Module]) -> dict[str, _Average]:
    """Return averages for the free layers, which normalize by the batch; leave the others."""
    found = PopulationAverages(free)
    empty = True
    # every pass over a shuffled DataLoader gives the same batches
    with RandomGenerators(model, data).preserved(), found.measuring():
        for call in calls_of(data, model):
            empty = False
            # copies, which it may overwrite
            inputs, named = follow_model(copy_batch((call.inputs, call.named)), model)
            with FitCheck(model, (inputs, named)):
                ModelCall(inputs, None, named)(model)
    if empty:
        raise InputError("data holds no batch; population statistics need at least one.")
    return found.averages


def _use(layer: nn.Module, mean: Tensor, spread: Tensor) -> None:
    """Make the layer normalize by these; its buffers are replaced, not written."""
    for name, value in (("running_mean", mean), (spread_name(layer), spread)):
        setattr(layer, name, value.to(getattr(layer, name)))


def _write(layers: dict[str, nn.Module], results: dict[str, Population]) -> None:
    """Write the statistics into all layers or, if interrupted, into none."""
    pairs = [
        (getattr(layers[name], buffer), value)
        for name, population in results.items()
        for buffer, value in zip(
            ("running_mean", spread_name(layers[name])), population, strict=True
        )
    ]
    before = [buffer.clone() for buffer, _ in pairs]

    def write_back() -> None:
        for (buffer, _), old in zip(pairs, before, strict=True):
            buffer.copy_(old)

    restore = Undo(write_back)
    try:
        for buffer, value in pairs:
            buffer.copy_(value)
        restore.dismiss()
    finally:
        restore()


class BatchStatistics(NamedTuple):
    """Statistics of one batch, per channel.

    Attributes:
        mean: the mean.
        spread: what the layer divides by in training: the 1/m variance, or the l_p scale.
        unbiased_spread: what enters the running statistics: m/(m-1) times the variance, or the
            scale.
        samples: number of samples in the batch.
    """

    mean: Tensor
    spread: Tensor
    unbiased_spread: Tensor
    samples: int


def spread_name(layer: nn.Module) -> str:
    """Return the name of the second running buffer: ``running_var`` or ``running_scale``.

    Args:
        layer: a batch norm or l_p layer.

    Returns:
        The buffer's name.
    """
    return "running_scale" if is_lp_norm(layer) else "running_var"


def batch_statistics(layer: Any, x: Tensor, name: str) -> BatchStatistics:
    """Return statistics of a layer's input in double precision, as computed in training.

    Args:
        layer: a batch norm or l_p layer.
        x: its input, (batch, channels, *positions).
        name: the layer's name, for messages.

    Returns:
        The statistics in float64 (float32 on a device without float64).

    Raises:
        ShapeError: if the input does not have the layer's channels.
        InputError: if there is at most one value per channel.

    >>> batch_statistics(nn.BatchNorm1d(1), torch.tensor([[1.0], [3.0]]), "norm").unbiased_spread
    tensor([2.], dtype=torch.float64)
    """
    if x.dim() < 2 or x.shape[1] != layer.num_features:
        raise ShapeError(
            f"layer {name!r} expects (batch, {layer.num_features} channels, ...), "
            f"got {tuple(x.shape)}."
        )
    count = x.numel() // max(x.shape[1], 1)
    if count < 2:
        raise InputError(
            f"layer {name!r} needs more than one value per channel to have a variance, got input "
            f"of shape {tuple(x.shape)}; use larger batches or drop the last one."
        )
    wide = x.to(torch.float32 if x.device.type == "mps" else torch.float64)
    axes = channel_axes(x.dim())
    mean = wide.mean(axes)
    centred = wide - along_channels(mean, x)
    if is_lp_norm(layer):
        size = scale(centred if layer.centred else wide, layer.p, layer.eps).flatten()
        return BatchStatistics(mean, size, size, x.shape[0])
    # Centred before squaring: no cancellation, whatever the mean.
    variance = centred.square().mean(axes)
    return BatchStatistics(mean, variance, variance * (count / (count - 1)), x.shape[0])
