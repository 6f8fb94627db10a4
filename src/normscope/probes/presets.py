"""Sets of probes by name, and what a user may ask for in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from normscope.errors import ArgumentTypeError, InputError
from normscope.probes.probe import PROBES, Probe
from normscope.registry import Registry, unknown_name

__all__ = ["PRESETS", "ProbeChoice", "chosen_probes"]

ProbeChoice: TypeAlias = str | Probe | Iterable[str | Probe]

PRESETS: Registry[Callable[[], list[Probe]]] = Registry("preset")
"""Choices of probes by name: economy, standard, full and all."""

_HISTOGRAM_BINS = 40


def _named(*names: str) -> list[Probe]:
    return [PROBES[name]() for name in names]


@PRESETS.register
def economy() -> list[Probe]:
    """The loss along the gradient, gradient norms and statistics: forward passes on the ray."""
    return _named("loss_variation", "gradient_norms", "statistics_gap")


@PRESETS.register
def standard() -> list[Probe]:
    """The landscape along the gradient, with norms, statistics and moments of each layer."""
    landscape = ("loss_variation", "gradient_predictiveness", "effective_smoothness")
    return _named(*landscape, "gradient_norms", "activation_moments", "statistics_gap")


@PRESETS.register
def full() -> list[Probe]:
    """Every probe, with the local smoothness and histograms of the activations."""
    settings: dict[str, dict[str, int | bool]] = {
        "effective_smoothness": {"local": True},
        "activation_moments": {"bins": _HISTOGRAM_BINS},
    }
    return [PROBES[name](**settings.get(name, {})) for name in PROBES]


@PRESETS.register(name="all")
def every_probe() -> list[Probe]:
    """Every probe, as it comes."""
    return _named(*PROBES)


def chosen_probes(choice: ProbeChoice) -> list[Probe]:
    """The probes that a user asks for.

    Args:
        choice: a preset, a probe's name, a configured probe, or several names and probes.

    Returns:
        The probes; each kind once.

    Raises:
        ArgumentTypeError: if an item is neither a name nor a probe.
        InputError: if there is none, or one twice.

    >>> [probe.name for probe in chosen_probes("economy")]
    ['loss_variation', 'gradient_norms', 'statistics_gap']
    """
    if isinstance(choice, str) and choice in PRESETS:
        return PRESETS[choice]()
    if not isinstance(choice, Iterable | Probe):
        raise ArgumentTypeError(
            "probes takes a preset, a name, a probe such as CovariateShift() or a list of them, "
            f"got {_described(choice)}."
        )
    items = [choice] if isinstance(choice, str | Probe) else list(choice)
    probes = [_made(item, alone=isinstance(choice, str)) for item in items]
    names = [probe.name for probe in probes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"the probe {twice[0]!r} is asked for twice; give it once.")
    if not probes:
        raise InputError("no probe is asked for; give at least one, or a preset.")
    return probes


def _made(item: str | Probe, alone: bool) -> Probe:
    if isinstance(item, Probe):
        return item
    if not isinstance(item, str):
        raise ArgumentTypeError(
            f"probes takes names and probes such as CovariateShift(), got {_described(item)}."
        )
    if item not in PROBES:
        raise unknown_name("probe or preset" if alone else "probe", item, _choices(alone))
    return PROBES[item]()


def _described(item: object) -> str:
    return f"the class {item.__name__}; call it" if isinstance(item, type) else repr(item)


def _choices(alone: bool) -> list[str]:
    return [*PROBES, *PRESETS] if alone else list(PROBES)
