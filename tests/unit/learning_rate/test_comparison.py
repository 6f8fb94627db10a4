import json
import math

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch import nn

import normscope as ns
from normscope.curvature import top_eigenvalue
from normscope.curvature.problem import Problem
from normscope.errors import InputError
from normscope.learning_rate.copies import Workbench
from normscope.learning_rate.gradient_growth import gradient_growth
from normscope.training import sgd


@pytest.fixture(scope="module")
def compared():
    model = small_network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = ns.compare(
        model, "cross_entropy", labelled(), norms=["none", "batch"], batch_size=16, steps=40
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    return found


def test_row_holds_the_advice_of_the_converted_net(compared):
    model = ns.layers.convert(small_network(), to="none")
    alone = ns.max_learning_rate(model, "cross_entropy", labelled(), batch_size=16)
    assert compared["none"].advice.safe == alone.safe
    assert compared["none"].advice.verified == alone.verified


def test_modes_are_those_of_the_curvature(compared):
    model, data = small_network(), labelled()
    problem = Problem(ns.layers.convert(model, to="batch"), "cross_entropy", data)
    (batch,) = Workbench(problem, sgd(1.0), 16, 0).batches(1)
    for mode, value in compared["batch"].lambda_max.items():
        exact = top_eigenvalue(problem.model, "cross_entropy", batch, kind="ggn", mode=mode).value
        assert value == pytest.approx(exact, rel=0.03)
    values = compared["none"].lambda_max
    assert values["train"] == pytest.approx(values["eval"], rel=0.02)


def test_training_at_half_the_limit_learns(compared):
    for row in compared.rows:
        assert len(row.losses) == 40
        assert row.final_loss < row.losses[0]
        assert not row.diverged


def test_table_dict_and_figure_show_every_norm(compared, tmp_path):
    lines = str(compared).splitlines()
    assert lines[0] == "The same net under several normalizations"
    assert lines[2].split()[:3] == ["norm", "safe", "limit"]
    assert [line.split()[0] for line in lines[4:]] == ["none", "batch"]
    assert max(map(len, lines)) <= 80
    assert [row["norm"] for row in json.loads(json.dumps(compared.to_dict()))["norms"]] == [
        "none",
        "batch",
    ]
    figure = compared.plot()
    assert len(figure.axes) == 3
    figure.savefig(tmp_path / "compared.png")


def test_norm_that_was_not_compared_is_named(compared):
    with pytest.raises(InputError, match="choose from none, batch"):
        compared["layer"]


@pytest.mark.parametrize("norms", [[], "batch"])
def test_norms_must_be_a_list(norms):
    with pytest.raises(InputError, match="must be a list"):
        ns.compare(small_network(), "cross_entropy", labelled(), norms=norms)


def test_gradient_growth_of_linear_layers_is_exact():
    # h_{l+1} = 2 h_l: the gradient with respect to h_l is twice that of the next
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(4)))
    for layer in model:
        nn.init.constant_(layer.weight, 2.0)
    data = (torch.ones(3, 1), torch.zeros(3, 1))
    assert gradient_growth(Problem(model, "squared_error", data), data) == pytest.approx(4.0)


def test_gradient_growth_of_deep_batch_norm_nets_nears_the_known_rate():
    torch.manual_seed(0)
    data = (torch.randn(256, 100), torch.randn(256, 100))

    def whole_growth(depth):
        sizes = {"width": 300, "input_shape": (100,), "outputs": 100}
        model = ns.models.build("fully_connected", depth=depth, **sizes)
        return gradient_growth(Problem(model, "squared_error", data), data) ** (depth - 2)

    # the layers next to the ends differ: ten more in the middle show the rate
    rate = (whole_growth(22) / whole_growth(12)) ** (1 / 10)
    assert rate == pytest.approx(math.pi / (math.pi - 1), rel=0.05)


def test_shallow_net_has_no_growth():
    assert (
        gradient_growth(Problem(small_network(), "cross_entropy", labelled()), labelled()) is None
    )
