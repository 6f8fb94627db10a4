"""Registered names as a table, so that completion and wrong names do not wait for torch.

A test compares the table with the registries: add a new name here as well.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

from normscope.registry import Registry, unknown_name


@dataclass(frozen=True)
class Kind:
    """One kind of registered objects.

    Args:
        noun: one of them, as in the registry's errors.
        home: the module of the registry.
        registry_name: its name there.
        table: the names that normscope registers, sorted, with blanks between them.
    """

    noun: str
    home: str
    registry_name: str
    table: str

    @property
    def names(self) -> list[str]:
        """The names that normscope registers."""
        return self.table.split()

    def registry(self) -> Registry[Callable[..., object]]:
        """Import and return the registry."""
        found: Registry[Callable[..., object]]
        found = getattr(importlib.import_module(self.home), self.registry_name)
        return found


_EXPERIMENTS = """
cohen2021/adam cohen2021/gradient_descent cohen2021/mini_batches
kohler2018/halfspace kohler2018/mlp kohler2018/ols
santurkar2018/figure1 santurkar2018/figure10 santurkar2018/figure11 santurkar2018/figure12
santurkar2018/figure13 santurkar2018/figure14 santurkar2018/figure2 santurkar2018/figure3
santurkar2018/figure4 santurkar2018/figure6 santurkar2018/figure7 santurkar2018/figure8
santurkar2018/figure9 santurkar2018/loss_scale
tour
wei2018/figure1 wei2018/figure2_cifar10_conv_net wei2018/figure2_cifar10_fully_connected
wei2018/figure2_mnist_conv_net wei2018/figure2_mnist_fully_connected wei2018/figure3 wei2018/figure4
yang2019/explosion yang2019/trainability
"""
_PROBES = """
activation_moments covariate_shift curvature effective_smoothness gradient_norms
gradient_predictiveness loss_variation stability statistics_gap
"""
_CHECKS = """
bias_before_norm collapsed_outputs constant_inputs dead_channels decayed_norm exploding_gradients
few_samples frozen_norm_updates growing_attention half_precision_statistics large_eps
learning_rate_too_high non_finite norm_before_output norm_in_eval saturated_attention
shared_statistics softmax_before_cross_entropy stale_statistics sum_reduction unfoldable_norm
vanishing_gradients warmup_needed
"""
_MODELS = "conv_net deep_linear fully_connected preact_resnet18 vgg vgg16"
_NORMS = "batch dyt group instance l1 l2 layer linf noisy none rms"
_THEOREMS = "fact_c1 fact_c2 lemma_4_5 theorem_4_1 theorem_4_2 theorem_4_4 theorem_c1"

KINDS = {
    "experiments": Kind("experiment", "normscope.experiments", "EXPERIMENTS", _EXPERIMENTS),
    "probes": Kind("probe", "normscope.probes", "PROBES", _PROBES),
    "models": Kind("model", "normscope.models", "MODELS", _MODELS),
    "norms": Kind("normalization", "normscope.layers", "NORMS", _NORMS),
    "theorems": Kind("theorem", "normscope.theorems", "THEOREMS", _THEOREMS),
    "data": Kind("dataset", "normscope.data", "DATASETS", "cifar10 digits gaussian mnist"),
    "losses": Kind("loss", "normscope.problem.loss", "LOSSES", "cross_entropy model squared_error"),
    "kinds": Kind("kind of curvature", "normscope.curvature", "KINDS", "fisher ggn hessian"),
    "checks": Kind("check", "normscope.diagnosis", "CHECKS", _CHECKS),
    "engines": Kind("engine", "normscope.sweeps", "ENGINES", "dask local ray"),
}
"""The kinds of registered names, by what ``normscope list`` calls them."""


def check_name(kind: str, name: str, *others: str, noun: str = "", hint: str = "") -> None:
    """Raise an error for an unknown name before torch is loaded.

    Args:
        kind: a key of `KINDS`.
        name: what was given.
        *others: further words that are accepted.
        noun: of the error; by default the kind's.
        hint: what else could be given, for the end of the error.

    Raises:
        UnknownNameError: if no such name is registered.
    """
    asked = KINDS[kind]
    # a registry that is loaded already may have further names
    loaded = getattr(sys.modules.get(asked.home), asked.registry_name, None)
    known = [*others, *(asked.names if loaded is None else loaded)]
    if name not in known:
        error = unknown_name(noun or asked.noun, name, known)
        raise type(error)(f"{str(error).removesuffix('.')}; {hint}.") if hint else error


def completion_of(*choices: str, kind: str | None = None) -> Callable[[str], list[str]]:
    """Return a function with which Typer completes a word in a shell.

    Args:
        *choices: words that are offered.
        kind: of registered names that are offered as well.

    >>> completion_of("train", "frozen", "all")("f")
    ['frozen']
    """
    words = [*choices, *(KINDS[kind].names if kind else ())]
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]
