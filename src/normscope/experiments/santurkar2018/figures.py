"""The figures of the paper: what each selects from the trainings, its claims and its drawing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from normscope.experiments.santurkar2018.claims import (
    L_P,
    changes_moments_more,
    drifts_more,
    is_better_throughout,
    is_smoother,
    predicts_better,
    shifts_no_less,
    trains_as_well,
    trains_better,
)
from normscope.experiments.santurkar2018.judging import spread, verdict
from normscope.experiments.santurkar2018.measurements import VGG_RATE, figure, linear_part
from normscope.plots.distributions import distributions_over_training
from normscope.plots.layer_shift import moment_changes, shift_by_layer, shift_with_training
from normscope.plots.loss_landscape import landscape, predictiveness, training_and_landscape
from normscope.plots.training_curves import accuracy_and_distributions, training_of_both
from normscope.results import Claim

VGG, LINEAR, BOTH = ("vgg",), ("deep_linear",), ("vgg", "deep_linear")
CURVES = ("training_loss", "training_accuracy", "test_accuracy", "final_test_accuracy")
LANDSCAPE = (
    *("loss_low", "loss_high", "gradient_distance_low", "gradient_distance_high"),
    *("effective_smoothness", "training_loss"),
)
_HISTOGRAMS = ("histogram", "histogram_low", "histogram_high")
_RATES = (VGG_RATE, 0.5)  # of Figure 1
_PRINTED = {"batch": 0.83, "none": 0.80}
_CLOSE = 0.02  # an accuracy within two points of the printed one counts as equal to it
_PAPER = {"data": "cifar10", "width": 1.0, "steps": 15_000, "evaluated": 10_000}


def chosen_layers(results: xr.Dataset, count: int) -> list[str]:
    """Return the names of evenly spaced layers, without the first, which no other precedes.

    Args:
        results: with a dimension ``layer``.
        count: how many.

    Returns:
        Their names, in order.
    """
    names = [str(name) for name in results["layer"].values]
    places = np.unique(np.linspace(1, len(names) - 1, count + 1).round().astype(int)[:-1])
    return [names[place] for place in places]


def normalized_layers(results: xr.Dataset) -> xr.Dataset:
    """Return the layers that a norm layer follows: those of ``features``."""
    names = [str(name) for name in results["layer"].values]
    return results.sel(layer=[name for name in names if name.startswith("features")])


def distributions(results: xr.Dataset, layers: Sequence[str]) -> xr.Dataset:
    """Return histograms of one unit of each layer over the training of the first seed."""
    return results[list(_HISTOGRAMS)].isel(seed=0, unit=0, drop=True).sel(layer=list(layers))


def _with_accuracy(results: xr.Dataset, *names: str) -> xr.Dataset:
    """Select variables, and ``training_accuracy`` where it was measured."""
    measured = bool(results["training_accuracy"].notnull().any())
    return results[[*names, *(["training_accuracy"] if measured else [])]]


def figure1_claims(results: xr.Dataset) -> list[Claim]:
    """Judge the training at both rates, and the printed test accuracies."""
    by_rate = (
        trains_better(
            results.sel(learning_rate=rate),
            "batch",
            "santurkar2018, Figure 1",
            f"VGG at learning rate {rate:g}",
        )
        for rate in _RATES
    )
    return [*by_rate, _test_accuracy(results)]


def _test_accuracy(results: xr.Dataset) -> Claim:
    """Judge the printed accuracies at the paper's settings; report them at others.

    They are not judged either if the accuracy was measured on a part of the test set.
    """
    final = results["final_test_accuracy"].sel(learning_rate=VGG_RATE)
    found = {norm: np.atleast_1d(final.sel(norm=norm).values) for norm in _PRINTED}
    is_paper = all(results.attrs.get(name) == value for name, value in _PAPER.items())
    is_whole = bool(final.sel(norm=list(_PRINTED)).notnull().all())
    held = np.all([abs(found[norm] - value) <= _CLOSE for norm, value in _PRINTED.items()], axis=0)
    return Claim(
        "test accuracy 83 % with BatchNorm and 80 % without, after 15,000 steps",
        "santurkar2018, Appendix A.1",
        f"after {results.attrs['steps']} steps at width {results.attrs['width']:g}: BatchNorm "
        f"{spread(found['batch'])}, standard {spread(found['none'])}",
        verdict(held) if is_paper and is_whole else None,
    )


@figure(
    "figure1",
    VGG,
    ("none", "batch"),
    _RATES,
    claims=figure1_claims,
    draw=accuracy_and_distributions,
)
def figure1(results: xr.Dataset) -> xr.Dataset:
    """Accuracy of VGG at learning rates 0.1 and 0.5, and the distributions of activations at 0.1.

    Reference: santurkar2018, Figure 1.

    Args:
        results: of the trainings.

    Returns:
        The curves over (norm, learning_rate, seed, step), and histograms of a unit of two layers.
    """
    layers = chosen_layers(normalized_layers(results), 2)
    at_rate = results.sel(learning_rate=VGG_RATE, drop=True)
    return results[list(CURVES)].merge(distributions(at_rate, layers), compat="equals")


def figure2_claims(results: xr.Dataset) -> list[Claim]:
    """Judge the training with BatchNorm and noisy BatchNorm."""
    source = "santurkar2018, Figure 2"
    return [trains_better(results, norm, source, "VGG") for norm in ("noisy", "batch")]


@figure(
    "figure2",
    VGG,
    ("none", "batch", "noisy"),
    claims=figure2_claims,
    draw=accuracy_and_distributions,
)
def figure2(results: xr.Dataset) -> xr.Dataset:
    """Accuracy of VGG with noisy BatchNorm, and the distributions of activations.

    Reference: santurkar2018, Figure 2.

    Args:
        results: of the trainings.

    Returns:
        The curves over (norm, seed, step), and histograms of a unit of two layers.
    """
    layers = chosen_layers(normalized_layers(results), 2)
    return results[list(CURVES)].merge(distributions(results, layers), compat="equals")


def figure3_claims(results: xr.Dataset) -> list[Claim]:
    """Judge shift and training by all layers, including those that the figure does not show."""
    source = "santurkar2018, Figure 3"
    claims = []
    for network, part in (("VGG", results), ("DLN", linear_part(results))):
        claims += shifts_no_less(part, source, network)
        claims.append(trains_better(part, "batch", source, network))
    return claims


@figure("figure3", BOTH, ("none", "batch"), claims=figure3_claims, draw=shift_with_training)
def figure3(results: xr.Dataset) -> xr.Dataset:
    """Covariate shift (Definition 2.1) of VGG and DLN, beside accuracy and loss.

    Reference: santurkar2018, Figure 3 and Definition 2.1.

    Args:
        results: of one network's trainings.

    Returns:
        ``shift_cosine`` and ``shift_distance`` over (norm, seed, step, layer) and the curves; of
        the deep linear network with the prefix ``linear_``.
    """
    return _with_accuracy(results, "shift_cosine", "shift_distance", "training_loss")


def figure4_claims(results: xr.Dataset) -> list[Claim]:
    """Judge the landscape of VGG in the second half of the training."""
    return is_smoother(results, "batch", "santurkar2018, Figure 4", "VGG", second_half=True)


@figure("figure4", VGG, ("none", "batch"), claims=figure4_claims, draw=landscape)
def figure4(results: xr.Dataset) -> xr.Dataset:
    """Variation of loss and gradient along the gradient, and beta, of VGG over training.

    Reference: santurkar2018, Figure 4.

    Args:
        results: of the trainings.

    Returns:
        ``loss_low``, ``loss_high``, ``gradient_distance_low``, ``gradient_distance_high``,
        ``effective_smoothness`` and ``training_loss`` over (norm, seed, step).
    """
    return results[list(LANDSCAPE)]


def figure6_claims(results: xr.Dataset) -> list[Claim]:
    """Judge the covariate shift of both networks."""
    source = "santurkar2018, Figure 6"
    return [
        *shifts_no_less(results, source, "VGG"),
        *shifts_no_less(linear_part(results), source, "DLN"),
    ]


@figure("figure6", BOTH, ("none", "batch"), claims=figure6_claims, draw=shift_by_layer)
def figure6(results: xr.Dataset) -> xr.Dataset:
    """Covariate shift (Definition 2.1) of VGG and DLN, layer by layer.

    Reference: santurkar2018, Figure 6 and Definition 2.1.

    Args:
        results: of one network's trainings.

    Returns:
        ``shift_cosine`` and ``shift_distance`` over (norm, seed, step, layer); of the deep linear
        network with the prefix ``linear_``.
    """
    return results[["shift_cosine", "shift_distance"]]


def figure7_claims(results: xr.Dataset) -> list[Claim]:
    """Judge the changes of moments, and the training, with noisy BatchNorm."""
    source = "santurkar2018, Figure 7"
    return [
        *changes_moments_more(results, "noisy", source),
        trains_better(results, "noisy", source, "VGG"),
    ]


@figure("figure7", VGG, ("none", "batch", "noisy"), claims=figure7_claims, draw=moment_changes)
def figure7(results: xr.Dataset) -> xr.Dataset:
    """Change of mean and variance of activations between successive steps of VGG's training.

    Reference: santurkar2018, Figure 7.

    Args:
        results: of the trainings.

    Returns:
        ``activation_mean_change`` and ``activation_variance_change`` over (norm, seed, step,
        layer, unit), and ``training_loss``.
    """
    names = ["activation_mean_change", "activation_variance_change", "training_loss"]
    return normalized_layers(results)[names]


def figure8_claims(results: xr.Dataset) -> list[Claim]:
    """Return nothing: the caption describes a picture and states nothing about it."""
    return []


@figure(
    "figure8", LINEAR, ("none", "batch"), claims=figure8_claims, draw=distributions_over_training
)
def figure8(results: xr.Dataset) -> xr.Dataset:
    """Distributions of a sampled activation of some layers of the DLN over training.

    Reference: santurkar2018, Figure 8.

    Args:
        results: of the trainings.

    Returns:
        ``histogram`` over (norm, step, layer, bin), and its ends.
    """
    return distributions(results, chosen_layers(results, 4))


def figure9_claims(results: xr.Dataset) -> list[Claim]:
    """Judge the landscape of the deep linear network over the whole training."""
    return is_smoother(results, "batch", "santurkar2018, Figure 9", "DLN", second_half=False)


@figure("figure9", LINEAR, ("none", "batch"), claims=figure9_claims, draw=landscape)
def figure9(results: xr.Dataset) -> xr.Dataset:
    """Variation of loss and gradient along the gradient, and beta, of the DLN over training.

    Reference: santurkar2018, Figure 9.

    Args:
        results: of the trainings.

    Returns:
        ``loss_low``, ``loss_high``, ``gradient_distance_low``, ``gradient_distance_high``,
        ``effective_smoothness`` and ``training_loss`` over (norm, seed, step).
    """
    return results[list(LANDSCAPE)]


def figure10_claims(results: xr.Dataset) -> list[Claim]:
    """Judge the predictiveness of gradients of both networks."""
    source = "santurkar2018, Figure 10"
    return [
        predicts_better(results, "batch", source, "VGG", second_half=True),
        predicts_better(linear_part(results), "batch", source, "DLN", second_half=False),
    ]


@figure("figure10", BOTH, ("none", "batch"), claims=figure10_claims, draw=predictiveness)
def figure10(results: xr.Dataset) -> xr.Dataset:
    """Change of the gradient against the distance moved along it, of VGG and DLN.

    Reference: santurkar2018, Figure 10.

    Args:
        results: of one network's trainings.

    Returns:
        ``gradient_distance`` over (norm, seed, step, distance) and ``training_loss``; of the deep
        linear network with the prefix ``linear_``.
    """
    return results[["gradient_distance", "training_loss"]]


def figure11_claims(results: xr.Dataset) -> list[Claim]:
    """Judge training and landscape of VGG under each l_p normalization."""
    return is_better_throughout(results, "santurkar2018, Figure 11", "VGG", second_half=True)


@figure(
    "figure11", VGG, ("none", "batch", *L_P), claims=figure11_claims, draw=training_and_landscape
)
def figure11(results: xr.Dataset) -> xr.Dataset:
    """Training loss and landscape of VGG under l_p normalization.

    Reference: santurkar2018, Figure 11.

    Args:
        results: of the trainings.

    Returns:
        ``training_loss`` and the landscape over (norm, seed, step).
    """
    return results[list(LANDSCAPE)]


def figure12_claims(results: xr.Dataset) -> list[Claim]:
    """Judge training and landscape of the deep linear network under each l_p normalization."""
    return is_better_throughout(results, "santurkar2018, Figure 12", "DLN", second_half=False)


@figure(
    "figure12", LINEAR, ("none", "batch", *L_P), claims=figure12_claims, draw=training_and_landscape
)
def figure12(results: xr.Dataset) -> xr.Dataset:
    """Training loss and landscape of the DLN under l_p normalization.

    Reference: santurkar2018, Figure 12.

    Args:
        results: of the trainings.

    Returns:
        ``training_loss`` and the landscape over (norm, seed, step).
    """
    return results[list(LANDSCAPE)]


def figure13_claims(results: xr.Dataset) -> list[Claim]:
    """Judge the training of both networks under each l_p normalization."""
    source = "santurkar2018, Figure 13"
    parts = (("VGG", results), ("DLN", linear_part(results)))
    return [trains_as_well(part, norm, source, network) for network, part in parts for norm in L_P]


@figure("figure13", BOTH, ("none", "batch", *L_P), claims=figure13_claims, draw=training_of_both)
def figure13(results: xr.Dataset) -> xr.Dataset:
    """Training of VGG and DLN under l_p normalization.

    Reference: santurkar2018, Figure 13.

    Args:
        results: of one network's trainings.

    Returns:
        ``training_loss`` and, for VGG, ``training_accuracy`` over (norm, seed, step); of the deep
        linear network with the prefix ``linear_``.
    """
    return _with_accuracy(results, "training_loss")


def figure14_claims(results: xr.Dataset) -> list[Claim]:
    """Judge the drift of activations under each l_p normalization."""
    source = "santurkar2018, Figure 14"
    return [drifts_more(results, norm, source) for norm in L_P]


@figure(
    "figure14",
    VGG,
    ("none", "batch", *L_P),
    claims=figure14_claims,
    draw=distributions_over_training,
)
def figure14(results: xr.Dataset) -> xr.Dataset:
    """Distributions of sampled activations of VGG under l_p normalization over training.

    Reference: santurkar2018, Figure 14.

    Args:
        results: of the trainings.

    Returns:
        ``histogram`` over (norm, step, layer, bin) and its ends for the layers to be shown;
        ``activation_mean`` and ``activation_variance`` over (norm, seed, step, layer, unit) for
        all that a norm layer follows.
    """
    moved = normalized_layers(results)
    shown = distributions(results, chosen_layers(moved, 3))
    moments = moved[["activation_mean", "activation_variance"]]
    return moments.merge(shown.reindex(layer=moved["layer"]), compat="equals")
