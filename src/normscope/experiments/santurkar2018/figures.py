"""The figures of the paper in one table: trainings, selected variables, claims and drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Drawing

from normscope.experiments.recipe import SCALES, experiment
from normscope.experiments.santurkar2018.claims import (
    L_P,
    VGG,
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
from normscope.experiments.santurkar2018.run_training import Training
from normscope.experiments.santurkar2018.trainings import (
    DEFAULTS,
    MISSING,
    SETTINGS,
    UNFINISHED,
    VGG_RATE,
    beside,
    deep_linear_trainings,
    linear_part,
    run_trainings,
    vgg_trainings,
)
from normscope.plots.layer_shift import moment_changes, shift_by_layer, shift_with_training
from normscope.plots.loss_landscape import landscape, predictiveness, training_and_landscape
from normscope.plots.training_curves import (
    accuracy_and_distributions,
    distributions_over_training,
    training_of_both,
)
from normscope.progress import ProgressCallback
from normscope.results import Claim, Store

Judge = Callable[[xr.Dataset, str, str], list[Claim]]
"""Judges one network's results; also takes the source and the network's name in the claims."""

Select = Callable[[xr.Dataset], xr.Dataset]
"""Selects a figure's variables from one network's trainings."""

VGG_ONLY, LINEAR, BOTH = ("vgg",), ("deep_linear",), ("vgg", "deep_linear")
CURVES = ("training_loss", "training_accuracy", "test_accuracy", "final_test_accuracy")
LANDSCAPE = (
    *("loss_low", "loss_high", "gradient_distance_low", "gradient_distance_high"),
    *("effective_smoothness", "training_loss"),
)
_HISTOGRAMS = ("histogram", "histogram_low", "histogram_high")
_NETWORKS = {"vgg": VGG, "deep_linear": "DLN"}  # their names in claims
_TWO, _THREE, _FIVE = ("none", "batch"), ("none", "batch", "noisy"), ("none", "batch", *L_P)
_RATES = (VGG_RATE, 0.5)  # of Figure 1
_PRINTED = {"batch": 0.83, "none": 0.80}
_CLOSE = 0.02  # an accuracy within two points of the printed one counts as equal to it
_PAPER = {"data": "cifar10", "width": 1.0, "steps": 15_000, "evaluated": 10_000}


_SHIFT_STATEMENT = (
    "Models with BatchNorm have similar, or even worse, internal covariate shift, despite "
    "performing better in terms of accuracy and loss"
)
_SMOOTH_STATEMENT = (
    "There is a clear improvement in each of these measures of smoothness of the optimization "
    "landscape in networks with BatchNorm layers"
)
_ANY_STATEMENT = (
    "Networks with any normalization strategy have improved performance and smoothness of the loss "
    "landscape over standard training"
)
#: What the paper says of each figure, closely paraphrased, and where.
STATEMENTS = {
    1: "With BatchNorm, VGG trains faster and to a higher accuracy than without, at both learning "
    "rates (Section 2).",
    2: "Networks with noisy BatchNorm, whose distributions are less stable, still perform better "
    "than standard ones, nearly as well as with BatchNorm (Section 2.1).",
    3: f"{_SHIFT_STATEMENT} (Section 2.2).",
    4: f"{_SMOOTH_STATEMENT} (VGG, Section 3.1).",
    6: f"{_SHIFT_STATEMENT}, in every layer shown (Appendix B).",
    7: "Noisy BatchNorm layers have significantly higher internal covariate shift than standard "
    "networks, yet perform better from an optimization perspective (Appendix B).",
    9: f"{_SMOOTH_STATEMENT} (deep linear network, Appendix B).",
    10: "Gradients are significantly more predictive in networks with BatchNorm, and change slowly "
    "in a given local neighbourhood (Appendix B).",
    11: f"{_ANY_STATEMENT} (VGG, Section 3.3 and Appendix B).",
    12: f"{_ANY_STATEMENT} (deep linear network, Appendix B).",
    13: "For both networks, all l_p normalization strategies perform comparably to BatchNorm or "
    "even better (Section 3.3 and Appendix B).",
    14: "l_p normalization leads to larger distributional covariate shift than in normal networks, "
    "yet improves optimization (Section 3.3 and Appendix B).",
}


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


def _curves_and_histograms(results: xr.Dataset) -> xr.Dataset:
    """Return the curves, and histograms of a unit of two layers at the paper's learning rate."""
    layers = chosen_layers(normalized_layers(results), 2)
    several = "learning_rate" in results.dims
    at_rate = results.sel(learning_rate=VGG_RATE, drop=True) if several else results
    return results[list(CURVES)].merge(distributions(at_rate, layers), compat="equals")


def _histograms_and_moments(results: xr.Dataset) -> xr.Dataset:
    """Return histograms of three layers, and moments of all that a norm layer follows."""
    moved = normalized_layers(results)
    shown = distributions(results, chosen_layers(moved, 3))
    moments = moved[["activation_mean", "activation_variance"]]
    return moments.merge(shown.reindex(layer=moved["layer"]), compat="equals")


def _moment_changes(results: xr.Dataset) -> xr.Dataset:
    """Return the changes of moments in the layers that a norm layer follows, and the loss."""
    names = ["activation_mean_change", "activation_variance_change", "training_loss"]
    return normalized_layers(results)[names]


def _histograms(results: xr.Dataset) -> xr.Dataset:
    """Return histograms of a unit of four layers."""
    return distributions(results, chosen_layers(results, 4))


def _variables(*names: str, accuracy: bool = False) -> Select:
    """Return a function that selects variables.

    Args:
        *names: of the variables.
        accuracy: whether to add ``training_accuracy`` where it was measured, as for VGG.
    """

    def select(results: xr.Dataset) -> xr.Dataset:
        measured = accuracy and bool(results["training_accuracy"].notnull().any())
        return results[[*names, *(["training_accuracy"] if measured else [])]]

    return select


def _trains_better_at_both_rates(results: xr.Dataset, source: str, network: str) -> list[Claim]:
    return [
        claim
        for rate in _RATES
        for claim in trains_better(
            results.sel(learning_rate=rate), source, f"{network} at learning rate {rate:g}"
        )
    ]


def _test_accuracy(results: xr.Dataset, _source: str, _network: str) -> list[Claim]:
    """Judge the printed accuracies at the paper's settings; report them at others.

    They are not judged either if the accuracy was measured on a part of the test set.
    """
    final = results["final_test_accuracy"].sel(learning_rate=VGG_RATE)
    found = {norm: np.atleast_1d(final.sel(norm=norm).values) for norm in _PRINTED}
    is_paper = all(results.attrs.get(name) == value for name, value in _PAPER.items())
    is_whole = bool(final.sel(norm=list(_PRINTED)).notnull().all())
    held = np.all([abs(found[norm] - value) <= _CLOSE for norm, value in _PRINTED.items()], axis=0)
    decided = verdict(held) if is_paper and is_whole else None
    claim = Claim(
        "test accuracy 83 % with BatchNorm and 80 % without, after 15,000 steps",
        "santurkar2018, Appendix A.1",
        f"after {results.attrs['steps']} steps at width {results.attrs['width']:g}: BatchNorm "
        f"{spread(found['batch'])}, standard {spread(found['none'])}",
        decided,
        statement="Our network achieves a test accuracy of 83 % with BatchNorm and 80 % without.",
        rule="final accuracy on the whole test set at full width, both within two points of the "
        "printed ones in each of at least 3 seeds; not reproduced if in none",
        resolve="" if decided is not None else "scale paper: full width, 15,000 steps, 3 seeds",
    )
    return [claim]


@dataclass(frozen=True)
class _Figure:
    """A figure of the paper.

    Args:
        number: in the paper.
        summary: what it shows, in one line.
        networks: "vgg", "deep_linear" or both.
        norms: normalizations it needs.
        select: its variables, from one network's trainings.
        judges: of each network in turn.
        draw: draws it.
        rates: learning rates of VGG.
    """

    number: int
    summary: str
    networks: tuple[str, ...]
    norms: tuple[str, ...]
    select: Select
    judges: tuple[Judge, ...]
    draw: Callable[[xr.Dataset], Drawing]
    rates: tuple[float, ...] = (VGG_RATE,)

    def measure(
        self,
        *,
        seeds: int,
        seed: int,
        other_seeds: int | None = None,
        unfinished: bool = False,
        store: Store,
        progress: ProgressCallback,
        **settings: Any,
    ) -> xr.Dataset:
        """Return the figure's variables, selected from the shared trainings.

        With both networks, variables and dimensions of the deep linear one have a prefix.
        """
        planned = [self._trainings(each, settings) for each in self.networks]  # checks all settings
        results = [
            run_trainings(
                each,
                range(seed, seed + seeds),
                store,
                progress,
                other_seeds if network == "vgg" else None,
                unfinished,
            )
            for network, each in zip(self.networks, planned, strict=True)
        ]
        parts = [
            self.select(each.isel(learning_rate=0) if each.sizes["learning_rate"] == 1 else each)
            for each in results
        ]
        selected = beside(*parts) if len(parts) > 1 else parts[0]
        for name in (MISSING, UNFINISHED):
            listed = [each.attrs[name] for each in results if name in each.attrs]
            if listed:
                selected = selected.assign_attrs({name: "; ".join(listed)})
        if "vgg" not in self.networks:
            return selected.assign_attrs(steps=settings["linear_steps"])
        read = ("data", "width", "steps", "evaluated")[: 3 if len(parts) > 1 else 4]
        return selected.assign_attrs({name: settings[name] for name in read})

    def _trainings(self, network: str, settings: Mapping[str, Any]) -> list[Training]:
        own = {key: settings[key] for key in DEFAULTS[network]}
        if network == "vgg":
            return vgg_trainings(self.norms, self.rates, **own)
        return deep_linear_trainings(self.norms, **own)

    def claims(self, results: xr.Dataset) -> list[Claim]:
        """Return the paper's statements about the figure, judged network by network."""
        source = f"santurkar2018, Figure {self.number}"
        parts = [results, *([linear_part(results)] if len(self.networks) > 1 else [])]
        claims = [
            replace(claim, statement=claim.statement or STATEMENTS[self.number])
            for network, part in zip(self.networks, parts, strict=True)
            for judge in self.judges
            for claim in judge(part, source, _NETWORKS[network])
        ]
        under_way = results.attrs.get(UNFINISHED)
        if not under_way:
            return claims
        remedy = f"the end of the trainings ({under_way})"
        return [replace(each, holds=None, partly=False, resolve=remedy) for each in claims]

    def register(self) -> None:
        """Make an experiment of the figure."""

        def measure(**given: Any) -> xr.Dataset:
            return self.measure(**given)

        measure.__doc__ = self.summary
        defaults = {key: value for each in self.networks for key, value in DEFAULTS[each].items()}
        scales: dict[str, dict[str, Any]] = {scale: {} for scale in SCALES}
        scales["quick"]["seeds"] = 1
        counts: dict[str, Any] = {"seeds": 3, "seed": 0, "unfinished": False}
        if "vgg" in self.networks and set(self.norms) - set(_TWO):
            counts["other_seeds"] = 3
            scales["medium"]["other_seeds"] = 1
        for network, scale in product(self.networks, SCALES):
            scales[scale] |= SETTINGS[network][scale]
        experiment(
            f"santurkar2018/figure{self.number}",
            claims=self.claims,
            figure=self.draw,
            scales=scales,
            defaults={**defaults, **counts},
        )(measure)


_SHIFT = ("shift_cosine", "shift_distance")

FIGURES = (
    _Figure(
        1,
        "Accuracy of VGG at learning rates 0.1 and 0.5, and the distributions of activations at "
        "0.1.",
        *(VGG_ONLY, _TWO, _curves_and_histograms),
        (_trains_better_at_both_rates, _test_accuracy),
        accuracy_and_distributions,
        _RATES,
    ),
    _Figure(
        2,
        "Accuracy of VGG with noisy BatchNorm, and the distributions of activations.",
        *(VGG_ONLY, _THREE, _curves_and_histograms),
        (partial(trains_better, norms=("noisy", "batch")),),
        accuracy_and_distributions,
    ),
    _Figure(
        3,
        "Covariate shift (Definition 2.1) of VGG and DLN, beside accuracy and loss.",
        *(BOTH, _TWO, _variables(*_SHIFT, "training_loss", accuracy=True)),
        (shifts_no_less, trains_better),
        shift_with_training,
    ),
    _Figure(
        4,
        "Variation of loss and gradient along the gradient, and beta, of VGG over training.",
        *(VGG_ONLY, _TWO, _variables(*LANDSCAPE)),
        (is_smoother,),
        landscape,
    ),
    _Figure(
        6,
        "Covariate shift (Definition 2.1) of VGG and DLN, layer by layer.",
        *(BOTH, _TWO, _variables(*_SHIFT)),
        (shifts_no_less,),
        shift_by_layer,
    ),
    _Figure(
        7,
        "Change of mean and variance of activations between successive steps of VGG's training.",
        *(VGG_ONLY, _THREE, _moment_changes),
        (changes_moments_more, partial(trains_better, norms=("noisy",))),
        moment_changes,
    ),
    _Figure(
        8,
        "Distributions of a sampled activation of some layers of the DLN over training.",
        *(LINEAR, _TWO, _histograms),
        (),  # the caption describes a picture and states nothing about it
        distributions_over_training,
    ),
    _Figure(
        9,
        "Variation of loss and gradient along the gradient, and beta, of the DLN over training.",
        *(LINEAR, _TWO, _variables(*LANDSCAPE)),
        (is_smoother,),
        landscape,
    ),
    _Figure(
        10,
        "Change of the gradient against the distance moved along it, of VGG and DLN.",
        *(BOTH, _TWO, _variables("gradient_distance", "training_loss")),
        (predicts_better,),
        predictiveness,
    ),
    _Figure(
        11,
        "Training loss and landscape of VGG under l_p normalization.",
        *(VGG_ONLY, _FIVE, _variables(*LANDSCAPE)),
        (is_better_throughout,),
        training_and_landscape,
    ),
    _Figure(
        12,
        "Training loss and landscape of the DLN under l_p normalization.",
        *(LINEAR, _FIVE, _variables(*LANDSCAPE)),
        (is_better_throughout,),
        training_and_landscape,
    ),
    _Figure(
        13,
        "Training of VGG and DLN under l_p normalization.",
        *(BOTH, _FIVE, _variables("training_loss", accuracy=True)),
        (trains_as_well,),
        training_of_both,
    ),
    _Figure(
        14,
        "Distributions of sampled activations of VGG under l_p normalization over training.",
        *(VGG_ONLY, _FIVE, _histograms_and_moments),
        (drifts_more,),
        distributions_over_training,
    ),
)

for _each in FIGURES:
    _each.register()
