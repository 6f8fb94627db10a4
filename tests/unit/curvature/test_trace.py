import numpy as np
import pytest
import torch
from tests.unit.curvature.networks import batch, network
from torch import nn
from torch.nn import functional

from normscope.curvature import dense, trace
from normscope.curvature.trace import exact_trace, hutch_plus_plus
from normscope.errors import InputError

LOSS = functional.cross_entropy


def matrix_with(values, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(drawn).Q
    return basis @ torch.diag(torch.as_tensor(values, dtype=torch.float64)) @ basis.T


SPECTRA = {
    "network-like": np.concatenate([[500.0, 80.0, 30.0], np.linspace(-1, 2, 97)]),
    "flat and indefinite": np.linspace(-3, 4, 100),
    "power law": 100.0 / np.arange(1, 101) ** 1.5,
}


@pytest.mark.parametrize("name", SPECTRA)
def test_standard_error_covers_the_true_trace(name):
    matrix, like = matrix_with(SPECTRA[name]), torch.empty(100, dtype=torch.float64)
    exact = float(SPECTRA[name].sum())
    scores = []
    for seed in range(400):
        found = hutch_plus_plus(matrix.matmul, like, 60, seed)
        scores.append((found.value - exact) / found.standard_error)
    scores = np.array(scores)
    # Student's t with 19 degrees of freedom: 67 % within one, 94 % within two, binomial error 2.4 %
    assert np.mean(np.abs(scores) < 1) == pytest.approx(0.67, abs=0.08)
    assert np.mean(np.abs(scores) < 2) == pytest.approx(0.94, abs=0.04)
    assert abs(scores.mean()) < 4 / np.sqrt(400) * scores.std()


def test_sketch_takes_the_large_eigenvalues_out_of_the_error():
    values = SPECTRA["network-like"]
    matrix, like = matrix_with(values), torch.empty(100, dtype=torch.float64)
    sketched = [hutch_plus_plus(matrix.matmul, like, 60, seed) for seed in range(20)]
    plain = (2 * ((matrix**2).sum() - (matrix.diagonal() ** 2).sum()) / 60).sqrt()
    assert np.mean([found.standard_error for found in sketched]) < float(plain) / 20


def test_low_rank_is_exact():
    matrix = matrix_with([7.0, 3.0, -2.0] + [0.0] * 47)
    found = hutch_plus_plus(matrix.matmul, torch.empty(50, dtype=torch.float64), 12, 0)
    assert found.value == pytest.approx(8.0, abs=1e-9)
    assert found.standard_error < 1e-9


@pytest.mark.parametrize("products", [4, 5, 10, 31])
def test_products_are_those_asked_for(products):
    matrix, columns = matrix_with(SPECTRA["power law"]), []

    def multiply(block):
        columns.append(block.shape[1])
        return matrix @ block

    like = torch.empty(100, dtype=torch.float64)
    found = hutch_plus_plus(multiply, like, products, 0)
    assert sum(columns) == found.products == products
    columns.clear()
    exact = exact_trace(multiply, like)
    assert sum(columns) == exact.products == 100
    assert exact.value == pytest.approx(float(matrix.trace()))


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
def test_trace_agrees_with_the_dense_matrix(kind, mode):
    model, data = network("residual"), [batch("residual", 11), batch("residual", 7, 3)]
    exact = float(dense(model, LOSS, data, kind, mode).trace())
    found = trace(model, LOSS, data, kind, mode, products=30)
    assert found.products == 30
    assert found.standard_error > 0
    assert abs(found.value - exact) < 4 * found.standard_error
    assert (found.batch_size, found.samples, found.kind, found.mode) == (11, 18, kind, mode)
    whole = trace(model, LOSS, data, kind, mode, products=1000)
    assert whole.value == pytest.approx(exact, rel=1e-9)
    assert whole.standard_error == 0


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
def test_trace_in_the_space_of_the_outputs_is_the_same(kind):
    model, data = network("residual"), batch("residual", 20)
    exact = float(dense(model, LOSS, data, kind).trace())
    found = trace(model, LOSS, data, kind, products=24, seed=2)
    assert 0 < found.standard_error < exact
    assert abs(found.value - exact) < 4 * found.standard_error
    few = batch("residual", 5)  # ten outputs: no more than the products
    assert trace(model, LOSS, few, kind, products=24).products == 10
    assert trace(model, LOSS, few, kind, products=24).value == pytest.approx(
        float(dense(model, LOSS, few, kind).trace()), rel=1e-9
    )


def test_trace_of_some_parameters_repeats_with_its_seed():
    model, data = network("torch_batch"), batch("torch_batch", 20)
    matrix = dense(model, LOSS, data, "hessian", params="0")
    assert trace(model, LOSS, data, "hessian", params="0").value == pytest.approx(
        float(matrix.trace()), abs=1e-9
    )
    values = [trace(model, LOSS, data, "hessian", products=9, seed=s).value for s in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


def test_trace_leaves_model_and_random_state():
    model, data = network("dropout"), batch("dropout", 9)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trace(model, LOSS, data, "hessian", products=9)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_trace_prints_and_plots():
    found = trace(network("residual"), LOSS, batch("residual", 12), "hessian", products=12)
    assert f"{found.value:.6g} ± {found.standard_error:.2g}" in str(found)
    page = found._repr_html_()
    assert all(
        part in page for part in (f"{found.value:.6g}", "trace of the hessian", "12 products")
    )
    frame = found.to_dataframe()
    assert frame["trace"].item() == found.value == found.to_dict()["trace"]
    axes = found.plot()
    drawn = axes.lines[0].get_ydata()
    assert np.mean(drawn) == pytest.approx(found.value)
    assert len(drawn) == 4


def test_too_few_products_are_refused():
    with pytest.raises(InputError, match="at least 4, got 3"):
        trace(network("residual"), LOSS, batch("residual"), products=3)


def test_trace_in_half_precision_is_that_in_single():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    data = torch.randn(128, 20), torch.arange(128) % 10
    expected = trace(model, "cross_entropy", data)
    found = trace(model.bfloat16(), "cross_entropy", data)
    assert found.value == pytest.approx(expected.value, rel=0.05)
