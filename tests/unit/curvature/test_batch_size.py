from itertools import pairwise

import pytest
import torch
from tests.unit.curvature.networks import batch, network
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from normscope.curvature import batch_size_effect, dense, top_eigenvalue
from normscope.errors import InputError, NormscopeWarning
from normscope.problem import whole_loss

LOSS = functional.cross_entropy
SIZES = [32, 16, 8, 4]


def split(data, size):
    return [tuple(part[start : start + size] for part in data) for start in range(0, 32, size)]


def dense_top(model, data, size, **options):
    matrices = [dense(model, LOSS, part, **options) for part in split(data, size)]
    return float(torch.linalg.eigvalsh(sum(matrices) / len(matrices))[-1])


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
def test_values_are_those_of_the_mean_dense_matrix(kind):
    model, data = network("torch_batch"), batch("torch_batch", 32)
    effect = batch_size_effect(model, LOSS, data, SIZES, kind=kind, tol=1e-6)
    expected = [dense_top(model, data, size, kind=kind) for size in SIZES]
    assert effect.converged
    assert effect.batch_sizes == tuple(SIZES)
    assert effect.values == pytest.approx(expected, rel=1e-6)


def test_batch_size_matters_with_batch_statistics():
    model, data = network("tied", 2), batch("tied", 32)
    values = batch_size_effect(model, LOSS, data, SIZES, kind="hessian", tol=1e-6).values
    assert values == pytest.approx(
        [dense_top(model, data, size, kind="hessian") for size in SIZES], rel=1e-6
    )
    assert all(smaller > 1.04 * larger for larger, smaller in pairwise(values))
    assert values[-1] > 2 * values[0]


@pytest.mark.parametrize(("name", "mode"), [("torch_batch", "eval"), ("layer", "train")])
def test_batch_size_is_nothing_without_batch_statistics(name, mode):
    data = batch(name, 32)
    effect = batch_size_effect(network(name), LOSS, data, SIZES, "hessian", mode, tol=1e-6)
    assert effect.values == pytest.approx([effect.values[0]] * 4, rel=1e-6)


def test_data_in_any_form_gives_the_same_samples():
    model, data = network("torch_batch"), batch("torch_batch", 32)
    expected = batch_size_effect(model, LOSS, data, [16, 8], tol=1e-6).values
    loader = DataLoader(TensorDataset(*data), batch_size=5)
    for given in (split(data, 4), loader):
        assert batch_size_effect(model, LOSS, given, [16, 8], tol=1e-6).values == pytest.approx(
            expected, rel=1e-6
        )
    by_name = [{"x": x, "y": y} for x, y in split(data, 8)]
    loss = whole_loss(lambda model, part: LOSS(model(part["x"]), part["y"]))
    whole = batch_size_effect(model, loss, by_name, [16, 8], kind="hessian", tol=1e-6)
    plain = batch_size_effect(model, LOSS, data, [16, 8], kind="hessian", tol=1e-6)
    assert whole.values == pytest.approx(plain.values, rel=1e-6)


def test_default_sizes_are_halvings():
    model = network("torch_batch")
    assert batch_size_effect(model, LOSS, batch("torch_batch", 40)).batch_sizes == (40, 20, 10, 5)
    assert batch_size_effect(model, LOSS, batch("torch_batch", 3)).batch_sizes == (3,)


def test_samples_are_shared_out_evenly():
    effect = batch_size_effect(network("torch_batch"), LOSS, batch("torch_batch", 10), [4])
    assert effect.batch_sizes == (4,)
    assert effect.to_dict()["rows"][0]["batches"] == 3


def test_result_prints_tabulates_and_plots():
    effect = batch_size_effect(network("torch_batch"), LOSS, batch("torch_batch", 32), [32, 8])
    lines = str(effect).splitlines()
    assert lines[0] == "ggn, mode train, the same 32 samples in batches"
    assert lines[3].split()[:3] == ["32", "1", f"{effect.values[0]:.6g}"]
    assert lines[4].split()[:3] == ["8", "4", f"{effect.values[1]:.6g}"]
    frame = effect.to_dataframe()
    assert frame["eigenvalue"].tolist() == list(effect.values)
    assert frame["batches"].tolist() == [1, 4]
    assert set(frame["kind"]) == {"ggn"}
    assert all(f">{value:.6g}</td>" in effect._repr_html_() for value in effect.values)
    axes = effect.plot()
    assert axes.get_xscale() == "log"
    assert axes.lines[0].get_ydata().tolist() == list(effect.values)


def test_value_without_convergence_is_marked():
    model, data = network("torch_batch"), batch("torch_batch", 32)
    with pytest.warns(NormscopeWarning, match="above the tolerance"):
        effect = batch_size_effect(model, LOSS, data, [32], "hessian", tol=1e-9, max_products=2)
    assert not effect.converged
    assert "NOT CONVERGED" in str(effect)


def test_model_is_left_as_it_is():
    model, data = network("torch_batch"), batch("torch_batch", 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch_size_effect(model, LOSS, data, [16])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training


@pytest.mark.parametrize(("sizes", "message"), [([], "empty"), ([0], "got 0"), ([33], "got 33")])
def test_bad_sizes_are_refused(sizes, message):
    with pytest.raises(InputError, match=message):
        batch_size_effect(network("torch_batch"), LOSS, batch("torch_batch", 32), sizes)


def test_single_samples_in_train_mode_are_refused_with_advice():
    with pytest.raises(InputError, match="larger batch"):
        batch_size_effect(network("torch_batch"), LOSS, batch("torch_batch", 4), [1])


def test_closed_form_of_one_layer():
    layer = nn.BatchNorm1d(1, eps=0.5).double()
    inputs = torch.arange(8, dtype=torch.float64).reshape(8, 1) ** 2
    data = (inputs, torch.zeros_like(inputs))
    effect = batch_size_effect(layer, "squared_error", data, [8, 4, 2], params="weight", tol=1e-9)
    shares = []
    for size in (8, 4, 2):
        variances = inputs.reshape(-1, size).var(1, unbiased=False)
        shares.append(float((variances / (variances + 0.5)).mean()))
    assert effect.values == pytest.approx(shares, rel=1e-9)
    assert top_eigenvalue(layer, "squared_error", data, params="weight").value == pytest.approx(
        shares[0]
    )


def test_a_shuffling_loader_follows_the_seed_and_leaves_the_generators():
    model, (x, y) = network("torch_batch"), batch("torch_batch", 12)
    data = DataLoader(TensorDataset(x, y), 4, shuffle=True)
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        found.append(batch_size_effect(model, "cross_entropy", data, [12, 4]).to_dict()["rows"])
        assert torch.equal(torch.get_rng_state(), before)
    values = [[row["eigenvalue"] for row in rows] for rows in found]
    assert values[0] == values[1]


def test_error_bars_are_the_absolute_residuals():
    effect = batch_size_effect(network("torch_batch"), LOSS, batch("torch_batch", 32), [32, 16])
    _, _, (bars,) = effect.plot().containers[0]
    drawn = [float(segment[1, 1] - segment[0, 1]) / 2 for segment in bars.get_segments()]
    expected = [result.residual * result.value for result in effect.results]
    assert drawn == pytest.approx(expected, rel=1e-6)
