import numpy as np
import pytest
import torch
from tests.unit.curvature.networks import batch, network
from torch.nn import functional

from normscope.curvature import dense, spectrum
from normscope.curvature.quadrature import (
    Quadrature,
    SymmetricLog,
    axis_for,
    cumulative,
    gauss_quadrature,
    grid,
    smoothed,
)
from normscope.errors import InputError, UnknownNameError
from normscope.plots.spectrum import spectrum as draw

LOSS = functional.cross_entropy


def eigenvalues(name, data, **options):
    return torch.linalg.eigvalsh(dense(network(name), LOSS, data, **options)).numpy()


def random_symmetric(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return matrix + matrix.T


def gaussian_rule(count=2000):
    """Quantiles of a normal distribution: a smooth spectrum of known density."""
    from scipy.special import ndtri

    nodes = ndtri((np.arange(count) + 0.5) / count)
    return Quadrature(nodes, np.full(count, 1 / count), np.zeros(count), count)


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_quadrature_is_exact_for_polynomials_up_to_its_degree(steps):
    matrix, start = random_symmetric(20), torch.ones(20, dtype=torch.float64)
    rule = gauss_quadrature(matrix.mv, start, steps)
    unit, powers = start / start.norm(), torch.linalg.matrix_power
    for degree in range(2 * steps):
        exact = float(unit @ powers(matrix, degree) @ unit)
        assert rule.weights @ rule.nodes**degree == pytest.approx(exact, rel=1e-9, abs=1e-9)
    beyond = float(unit @ powers(matrix, 2 * steps) @ unit)
    assert rule.weights @ rule.nodes ** (2 * steps) < beyond * (1 - 1e-6)


def test_quadrature_with_all_steps_has_the_eigenvalues_as_nodes():
    matrix = random_symmetric(20)
    rule = gauss_quadrature(matrix.mv, torch.ones(20, dtype=torch.float64), 20)
    values, vectors = torch.linalg.eigh(matrix)
    assert np.allclose(rule.nodes, values.numpy(), rtol=1e-9)
    assert np.allclose(rule.weights, vectors.sum(0).square().numpy() / 20, atol=1e-10)
    assert rule.spreads.max() < 1e-9


def test_quadrature_ends_where_its_krylov_space_does():
    matrix = torch.diag(torch.tensor([2.0, 2.0, 2.0, 5.0], dtype=torch.float64))
    rule = gauss_quadrature(matrix.mv, torch.ones(4, dtype=torch.float64), 4)
    assert rule.products == 2
    assert rule.nodes == pytest.approx([2.0, 5.0])
    assert rule.weights == pytest.approx([0.75, 0.25])


def test_spread_of_a_node_is_the_deviation_of_the_eigenvalues_it_stands_for():
    matrix, start = random_symmetric(20), torch.ones(20, dtype=torch.float64)
    rule = gauss_quadrature(matrix.mv, start, 1)  # one node: the whole measure of the start
    values, vectors = torch.linalg.eigh(matrix)
    shares = (vectors.sum(0).square() / 20).numpy()
    mean = shares @ values.numpy()
    assert rule.nodes == pytest.approx([mean])
    assert rule.spreads == pytest.approx([np.sqrt(shares @ (values.numpy() - mean) ** 2)])


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
def test_nodes_are_the_eigenvalues_with_as_many_steps_as_parameters(kind, mode):
    data = batch("torch_batch", 40)
    exact = eigenvalues("torch_batch", data, kind=kind, mode=mode)
    found = spectrum(
        network("torch_batch"), LOSS, data, kind, mode, probes=3, lanczos_steps=len(exact)
    )
    scale = np.abs(exact).max()
    for nodes, weights in zip(found["nodes"].values, found["weights"].values, strict=True):
        heavy = nodes[weights > 1e-9]
        distance = np.abs(heavy[:, None] - exact).min(1)
        assert distance.max() < 1e-8 * scale
        distinct = exact[np.abs(exact) > 1e-6 * scale]
        assert np.abs(heavy[:, None] - distinct).min(0).max() < 1e-7 * scale


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
def test_moments_agree_with_the_dense_matrix_within_their_error(kind):
    data = batch("residual", 12)
    exact = eigenvalues("residual", data, kind=kind)
    found = spectrum(network("residual"), LOSS, data, kind, probes=60, lanczos_steps=12)
    for order in (1, 2):
        moment, error = (float(found[n].sel(order=order)) for n in ("moment", "moment_error"))
        assert abs(moment - (exact**order).mean()) < 4 * error
        assert error < np.sqrt((exact ** (2 * order)).mean())  # and is no excuse


def test_moment_error_is_the_spread_of_repetitions():
    model, data = network("residual"), batch("residual", 12)
    options = {"probes": 6, "lanczos_steps": 3}
    found = [spectrum(model, LOSS, data, seed=seed, **options) for seed in range(40)]
    moments = np.array([float(f["moment"][0]) for f in found])
    claimed = np.sqrt(np.mean([float(f["moment_error"][0]) ** 2 for f in found]))
    assert moments.std(ddof=1) == pytest.approx(claimed, rel=0.35)


def test_cumulative_share_agrees_with_the_dense_matrix():
    data = batch("residual", 12)
    exact = eigenvalues("residual", data, kind="hessian")
    found = spectrum(
        network("residual"), LOSS, data, "hessian", probes=30, lanczos_steps=len(exact)
    )
    at = found["eigenvalue"].values
    counted = (exact[None, :] <= at[:, None]).mean(1)
    # away from the eigenvalues themselves, where rounding decides on which side a step is
    apart = np.abs(at[:, None] - exact).min(1) > 1e-6 * np.abs(exact).max()
    error = np.abs(found["cumulative"].values - counted)[apart]
    assert np.all(error <= 4.5 * found["cumulative_error"].values[apart] + 1e-9)


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
@pytest.mark.parametrize("steps", [2, 10])
def test_integral_of_the_density_is_one(kind, steps):
    data = batch("residual", 12)
    found = spectrum(network("residual"), LOSS, data, kind, probes=3, lanczos_steps=steps)
    assert float(found["density"].integrate("position")) == pytest.approx(1.0, abs=1e-3)
    assert (found["density"] >= 0).all()
    assert np.allclose(SymmetricLog(found.attrs["linear_threshold"]).value(found["position"]),
                       found["eigenvalue"])  # fmt: skip


def test_zeros_that_must_be_there_are_counted_exactly():
    data = batch("residual", 5)  # 5 samples of 2 outputs
    found = spectrum(network("residual"), LOSS, data, "fisher", probes=3, lanczos_steps=4)
    size = found.attrs["parameters"]
    assert size > 10
    zeros = found["weights"].where(found["nodes"] == 0).sum("node").values
    assert zeros == pytest.approx([1 - 10 / size] * 3)


def test_spectrum_of_a_nonnegative_matrix_has_no_negative_part():
    found = spectrum(network("residual"), LOSS, batch("residual", 20), probes=3, lanczos_steps=3)
    assert float(found["spreads"].max()) > 0.1  # the nodes stand for many eigenvalues
    below = found["cumulative"].where(found["eigenvalue"] < 0, drop=True)
    assert float(below.max()) == pytest.approx(0.0, abs=1e-12)


def test_unresolved_nodes_fill_the_gap_between_them():
    matrix = random_symmetric(400, seed=1)
    values = torch.linalg.eigvalsh(matrix).numpy()
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(400, generator=generator, dtype=torch.float64)
    rule = gauss_quadrature(matrix.mv, start, 8)
    at = np.linspace(values.min(), values.max(), 101)
    counted = (values[None, :] <= at[:, None]).mean(1)
    assert np.abs(cumulative(rule, at, nonnegative=False) - counted).max() < 0.06
    steps = Quadrature(rule.nodes, rule.weights, np.zeros(8), 8)  # without the spreads
    assert np.abs(cumulative(steps, at, nonnegative=False) - counted).max() > 0.08


def test_density_is_that_of_a_known_distribution():
    rule, axis = gaussian_rule(), SymmetricLog(10.0)  # all of it in the linear part
    positions = grid([rule], axis, 0.01, nonnegative=False)
    found = smoothed(rule, axis, positions, 0.01, nonnegative=False)
    broadened = np.sqrt(1 + 0.1**2)  # the kernel is 0.1 wide in eigenvalues
    expected = (
        10 * np.exp(-((positions * 10 / broadened) ** 2) / 2) / np.sqrt(2 * np.pi) / broadened
    )
    assert np.abs(found - expected).max() < 0.01 * expected.max()


def test_axis_is_matplotlibs():
    data = batch("residual", 12)
    axes = draw(spectrum(network("residual"), LOSS, data, "hessian", probes=2, lanczos_steps=9))
    transform = axes.xaxis.get_transform()
    values = np.array([-3.0, -1e-3, 0.0, 2e-4, 5e-2, 7.0])
    drawn = transform.transform(values) / transform.linthresh
    assert np.allclose(SymmetricLog(transform.linthresh).position(values), drawn)


def test_axis_reaches_four_decades_below_the_largest_node():
    rule = Quadrature(np.array([-300.0, 20.0]), np.array([0.5, 0.5]), np.zeros(2), 2)
    assert axis_for([rule], None).threshold == pytest.approx(0.01)
    zero = Quadrature(np.zeros(1), np.ones(1), np.zeros(1), 1)
    assert axis_for([zero], None).threshold == 1.0


def test_spectrum_says_what_was_measured_and_counts_its_products():
    seen = []
    data = [batch("residual", 9), batch("residual", 6, 3)]
    found = spectrum(
        network("residual"), LOSS, data, "ggn", "frozen", 3, 7, params="head", seed=5,
        progress=lambda event: seen.append((event.done, event.total)),
    )  # fmt: skip
    expected = {"batch_size": 9, "samples": 15, "parameters": 10,
                "probes": 3, "lanczos_steps": 7, "products": 21, "seed": 5}  # fmt: skip
    assert {name: found.attrs[name] for name in expected} == expected
    assert (found["kind"].item(), found["mode"].item()) == ("ggn", "frozen")
    assert seen == [(count, 21) for count in range(1, 22)]
    assert found["nodes"].dims == ("probe", "node")


def test_spectrum_leaves_model_and_random_state_and_repeats_with_its_seed():
    model, data = network("dropout"), batch("dropout", 9)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first = spectrum(model, LOSS, data, "hessian", probes=2, lanczos_steps=4, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = spectrum(model, LOSS, data, "hessian", probes=2, lanczos_steps=4, seed=3)
    other = spectrum(model, LOSS, data, "hessian", probes=2, lanczos_steps=4, seed=4)
    assert first["nodes"].equals(again["nodes"])
    assert not first["nodes"].equals(other["nodes"])


def test_spectrum_survives_a_file(tmp_path):
    import xarray as xr

    found = spectrum(network("residual"), LOSS, batch("residual"), probes=2, lanczos_steps=4)
    found.to_netcdf(tmp_path / "spectrum.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "spectrum.nc", engine="scipy") as again:
        assert again.load().equals(found)
        assert again["mode"].item() == "train"
        assert again.attrs == found.attrs


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"probes": 1}, InputError, "at least 2"),
        ({"lanczos_steps": 0}, InputError, "at least 1"),
        ({"smoothing": 0.0}, InputError, "positive"),
        ({"linear_threshold": -1.0}, InputError, "linear_threshold must be"),
        ({"kind": "fischer"}, UnknownNameError, "did you mean 'fisher'"),
        ({"mode": "test"}, UnknownNameError, "mode"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        spectrum(network("residual"), LOSS, batch("residual"), **options)
