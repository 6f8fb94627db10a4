"""The length of a check, told before it begins."""

from collections import Counter
from itertools import count

import pytest
import torch
from torch import nn

from normscope.cli.check_model import (
    add_remedy,
    check_in_parts,
    hessian_products,
    note_duration,
)
from normscope.theorems import TooLarge, Unchecked, Verdict, Verdicts, check_layer
from normscope.theorems.observation import Observation


def network(units=3):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, units, 3, padding=1), nn.BatchNorm2d(units), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.LazyLinear(4))


def samples(size, side):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 1, side, side, generator=generator)
    return inputs, torch.randint(4, (size,), generator=generator)


@pytest.mark.parametrize(
    ("units", "size", "side"),
    [
        (3, 8, 2),  # all of it fits Theorem C.1
        (10, 12, 4),  # a part of it does
        (2, 4, 9),  # not even two samples do
    ],
)
def test_products_are_those_that_the_statements_take(units, size, side, monkeypatch):
    taken, original = Counter(), Observation._hessian

    def counted(self, chosen, rows, vectors):
        taken[len(self.y)] += 1
        return original(self, chosen, rows, vectors)

    monkeypatch.setattr(Observation, "_hessian", counted)
    model, batch = network(units), samples(size, side)
    model(batch[0])

    def check(part, most=8, limit=32):
        few = min(most, units)
        chosen = [index * units // few for index in range(few)]
        return check_layer(model, "cross_entropy", part, "1", units=chosen, dense_limit=limit)

    check_in_parts(check, batch)
    assert hessian_products(min(8, units), side * side, size) == dict(taken)


def told(capsys, seconds, names=("1",), batch=None, smaller="take --batch-size"):
    model = network()
    batch = samples(64, 4) if batch is None else batch
    model(samples(64, 4)[0])
    before = {name: each.clone() for name, each in model.state_dict().items()}
    state = torch.get_rng_state()
    ticks = count(step=seconds)  # what comes after the layer takes so long in every pass
    note_duration(model, batch, names, smaller, clock=lambda: next(ticks))
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_long_check_is_told_with_ways_out(capsys):
    batch = samples(64, 9)  # of which two samples are too many for Theorem C.1: 7 products
    ticks = iter([0, 20, 20, 40, 40, 41, 41, 42])  # two passes on all samples, two on eight
    model = network()
    model(batch[0])
    note_duration(model, batch, ["1"], "take --batch-size", clock=lambda: next(ticks))
    assert capsys.readouterr().err == (
        "normscope: note: this may take about 6 min; for less, take --batch-size 8.\n"
    )


def test_batch_that_would_not_be_faster_is_not_advised(capsys):
    # 4 passes, and 2 for each product: 7 of all samples, 97 of two
    assert told(capsys, 1.0) == "normscope: note: this may take about 3.6 min.\n"


def test_short_check_is_not_told(capsys):
    assert told(capsys, 0.09) == ""
    assert "60 s" in told(capsys, 60.1 / 216)


def test_several_layers_may_be_checked_one_by_one(capsys):
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 4))
    ticks = count()
    data = torch.randn(8, 5), None
    note_duration(model, data, ["0", "2"], "return batches of size", clock=ticks.__next__)
    said = capsys.readouterr().err
    assert "; for less, choose one of the 2 layers by --layer" in said


@pytest.mark.parametrize("inputs", [torch.randn(8, 7), torch.randn(8, 1, 4, 5), {"x": 1}])
def test_data_that_the_model_does_not_take_are_left_to_the_check(inputs, capsys):
    assert told(capsys, 1.0, batch=(inputs, None)) == ""


def test_layer_that_is_not_there_is_left_to_the_check(capsys):
    assert told(capsys, 1.0, names=["nonsense"]) == ""


BATCH = torch.zeros(64, 3), torch.zeros(64, 2)


def check_of(positions, limit=128):
    """A check of units with so many positions a sample, whose verdict's slack is the batch's size.

    Its sentence says nothing of the sizes.
    """

    def check(batch, most=8, limit=limit):
        samples = len(batch[0])
        made = [Verdict("fact_c1", "identity", "exact", 0.0, 0.0, True, float(samples))]
        other = Unchecked("fact_c2", "its scale is zero")
        if samples * positions > limit:
            sizes = TooLarge(samples * positions, limit)
            return Verdicts(made, [other, Unchecked("theorem_c1", "no", too_large=sizes)])
        made.append(Verdict("theorem_c1", "identity", "exact", 0.0, 0.0, True, float(samples)))
        return Verdicts(made, [other])

    return check


@pytest.mark.parametrize(("positions", "part"), [(4, 4), (16, 2), (64, 2)])
def test_what_is_too_large_is_put_to_the_first_samples(positions, part):
    found, taken = check_in_parts(check_of(positions), BATCH)
    assert taken == part
    assert {each.name: each.slack for each in found} == {"fact_c1": 64.0, "theorem_c1": part}
    assert [each.name for each in found.unchecked] == ["fact_c2"]


@pytest.mark.parametrize(("positions", "unchecked"), [(2, []), (65, ["theorem_c1"])])
def test_there_is_no_part_of_what_fits_nor_where_two_samples_do_not(positions, unchecked):
    found, taken = check_in_parts(check_of(positions), BATCH)
    assert taken is None
    assert [each.name for each in found.unchecked] == ["fact_c2", *unchecked]


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (512, "take --batch-size 32"),
        (8192, "take --batch-size 2"),
        (8193, "choose by --layer one that has fewer positions"),  # one sample has no variance
    ],
)
def test_advised_batch_has_at_least_two_samples(values, advice):
    found = Unchecked("theorem_c1", "in any words", too_large=TooLarge(values, 256))
    reason = add_remedy(found, 64, "take --batch-size").reason
    assert reason == f"a unit has {values} values in a batch of 64, more than 256: {advice}"


def test_only_what_is_too_large_is_given_a_remedy():
    found = Unchecked("theorem_c1", "a unit has 512 values, above dense_limit=256")
    assert add_remedy(found, 64, "take --batch-size") is found
