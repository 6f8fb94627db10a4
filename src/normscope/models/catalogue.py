"""Models by name: architectures are registered where they are defined, and built here.

An architecture only defines the layers. Normalization, initial weights and seed are options of
every model, handled here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from normscope.errors import InputError
from normscope.layers.kinds import NORMS, normalization
from normscope.models.initialization import INITIALIZATIONS
from normscope.registry import Registry, unknown_name
from normscope.validation import as_seed


class NormFactory(Protocol):
    """Creates the normalization layers of one network."""

    def __call__(self, num_features: int, dimensions: int) -> nn.Module:
        """Return a layer for units, or for channels with that many spatial dimensions."""
        ...


class ModelBuilder:
    """Builds one architecture with any normalization, initial weights and seed.

    Args:
        layers: the architecture: a function of a :class:`NormFactory` and of keyword options.
        initialization: the default one.
    """

    __name__: str
    __signature__: inspect.Signature

    def __init__(self, layers: Callable[..., nn.Module], initialization: str) -> None:
        functools.update_wrapper(self, layers)
        self.layers = layers
        self.initialization = initialization
        self.__signature__ = self._whole_signature()

    def __call__(
        self,
        norm: str = "batch",
        seed: int = 0,
        *,
        gamma: float = 1.0,
        norm_options: Mapping[str, Any] | None = None,
        initialization: str | None = None,
        **options: Any,
    ) -> nn.Module:
        """Return a new network on the CPU, in training mode; see :func:`build`."""
        initialization = self.initialization if initialization is None else initialization
        initialize = INITIALIZATIONS[initialization]
        self._check_options(options, initialization)
        architecture_options = _keyword_options(self.layers)
        layer_options = {
            name: options.pop(name) for name in list(options) if name in architecture_options
        }
        generator = torch.Generator().manual_seed(as_seed(seed))
        make_norm = _norm_factory(norm, gamma, norm_options or {})
        with torch.device("cpu"):  # also for norm layers, whatever the default device is
            network = self.layers(make_norm, **layer_options)
        initialize(network, generator, **options)
        return network

    def _check_options(self, options: Mapping[str, Any], initialization: str) -> None:
        choices = {*_shared_options(), *_keyword_options(self.layers)}
        choices |= {*_keyword_options(INITIALIZATIONS[initialization])}
        for name in options:
            if name not in choices:
                where = f"of model {self.__name__!r} with initialization {initialization!r}"
                raise unknown_name("option", name, choices, where)

    def _whole_signature(self) -> inspect.Signature:
        """Signature with every option and its default, for the command line."""
        shared = _shared_options()
        default = shared["initialization"].replace(default=self.initialization, annotation="str")
        options = {**shared, "initialization": default, **_keyword_options(self.layers)}
        for name in INITIALIZATIONS:
            options |= _keyword_options(INITIALIZATIONS[name])
        return inspect.Signature(list(options.values()), return_annotation=nn.Module)


MODELS: Registry[ModelBuilder] = Registry("model", package="normscope.models")
"""The models by name; `architecture` registers one."""


def architecture(initialization: str) -> Callable[[Callable[..., nn.Module]], ModelBuilder]:
    """Decorator: register an architecture under its name.

    Args:
        initialization: the default one, that of its paper.

    Returns:
        A decorator that turns the architecture into a :class:`ModelBuilder`.
    """

    def register(layers: Callable[..., nn.Module]) -> ModelBuilder:
        return MODELS.register(ModelBuilder(layers, initialization))

    return register


def build(name: str, norm: str = "batch", seed: int = 0, **options: Any) -> nn.Module:
    """Build a registered network with any normalization.

    Equal seeds give equal weights for every ``norm``, and the names of the layers are the same
    (``norm="none"`` inserts identities). Weights are drawn from a separate generator: torch's
    global random state is neither read nor changed.

    Args:
        name: fully_connected, conv_net, deep_linear, vgg, vgg16 or preact_resnet18.
        norm: none, batch, noisy, l1, l2, linf, layer, group, rms, instance or dyt.
        seed: of the initial weights.
        **options: for every model ``input_shape`` (without the batch), ``outputs``, ``gamma`` (the
            initial scale of the normalization, 1.0), ``norm_options`` (a dict of further arguments
            of the normalization layers), ``initialization`` ("glorot", or "meanfield" with
            ``sigma_w2=2.0`` and ``sigma_b2=0.5``), and the options of the model itself.

    Returns:
        A new network on the CPU, in training mode.

    Raises:
        UnknownNameError: if there is no such model, normalization, initialization or option.

    >>> network = build("fully_connected", norm="none", input_shape=(1, 8, 8), width=100)
    >>> network(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    return MODELS[name](norm=norm, seed=seed, **options)


def _norm_factory(norm: str, gamma: float, options: Mapping[str, Any]) -> NormFactory:
    NORMS[norm]  # raises for an unknown name, also in a net without hidden layers
    for name in ("gamma", "num_features", "dimensions"):
        if name in options:
            raise InputError(
                f"norm_options cannot hold {name!r}: gamma is an option of the model itself, "
                "and the sizes follow from it."
            )
    return functools.partial(normalization, norm, gamma=gamma, **options)


def _keyword_options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each for each in parameters if each.kind is each.KEYWORD_ONLY}


def _shared_options() -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(ModelBuilder.__call__).parameters.values()
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD][1:]
    return {each.name: each for each in named}
