"""Wrong arguments are refused by one sentence when the scope or the probe is made."""

import pytest
import torch
from torch import nn

from normscope.errors import ArgumentTypeError, InputError, UnknownNameError
from normscope.probes import ActivationMoments, Curvature, LossVariation, Scope


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "a"}, "every must be an integer number of steps, got 'a'"),
        ({"steps": 5}, "steps must be a list of step numbers, got 5"),
        ({"budget": "x"}, "budget must be a number, got 'x'"),
        ({"probes": None}, "probes takes a preset, a name, a probe .* got None"),
        ({"probes": LossVariation}, "got the class LossVariation; call it"),
        ({"probes": [LossVariation]}, "got the class LossVariation; call it"),
        ({"distances": 0.5}, "distances must be a list of numbers, .* got 0.5"),
        ({"distances": ["a"]}, "distances must be a list of numbers"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number, got '0.1'"),
        ({"store": "runs.db"}, r"store must be an open normscope\.results\.Store, .* 'runs.db'"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
    ],
)
def test_argument_of_another_type_is_refused(options, message):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ArgumentTypeError, match=message):
        Scope(model, "cross_entropy", optimizer, **{"probes": "economy", **options})


def test_negative_seed_is_refused():
    with pytest.raises(InputError, match="seed must not be negative, got -1"):
        Scope(nn.Linear(4, 3), "cross_entropy", probes="gradient_norms", seed=-1)


def test_unknown_loss_is_refused_at_once():
    with pytest.raises(UnknownNameError, match="did you mean 'cross_entropy'"):
        Scope(nn.Linear(4, 3), "crossentropy", probes="gradient_norms", learning_rate=0.1)


def test_probes_refuse_their_own_arguments():
    with pytest.raises(UnknownNameError, match="'hesian'; did you mean 'hessian'"):
        Curvature(kind="hesian")
    with pytest.raises(UnknownNameError, match="'evil'; did you mean 'eval'"):
        Curvature(mode="evil")
    with pytest.raises(ArgumentTypeError, match="units and bins must be integers, got 'a'"):
        ActivationMoments(units="a")
    with pytest.raises(ArgumentTypeError, match="every of curvature must be an integer"):
        Curvature(every="often")


def test_parameters_without_a_shape_are_refused():
    with pytest.raises(InputError, match=r"'0\.weight' of the model has no shape yet; run"):
        Scope(nn.Sequential(nn.LazyLinear(3)), "cross_entropy", probes="gradient_norms")


def test_complex_parameters_are_refused():
    model = nn.Linear(4, 3, dtype=torch.cfloat)
    with pytest.raises(InputError, match="'weight' is complex; a scope takes real ones"):
        Scope(model, "cross_entropy", probes="gradient_norms")


def test_optimizer_in_the_place_of_the_loss_is_named():
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ArgumentTypeError, match=r"got SGD; it comes before the optimizer"):
        Scope(model, torch.optim.SGD(model.parameters(), 0.1))
