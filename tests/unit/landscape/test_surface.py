"""Surfaces against plain evaluations of copies, dense Hessians and closed forms."""

import copy
import random

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn
from torch.nn.functional import cross_entropy

import normscope as ns
from normscope.errors import ArgumentTypeError, DataError, InputError, NormscopeWarning, StateError
from normscope.landscape import surface
from normscope.landscape.directions import read_state
from normscope.landscape.points import STACK, Plane, faster_stack
from normscope.problem.parameters import parameter_layout


def dense_net(norm=True, dropout=0.0):
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(5)] if norm else []
    parts = [nn.Linear(4, 5), *norms, nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 3)]
    return nn.Sequential(*parts).double()


def conv_net():
    torch.manual_seed(0)
    parts = [nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(3 * 16, 3)).double()


def batch_of(*shape, count=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return x, torch.arange(count) % 3


def used(model, batch, steps=3):
    """A net whose running statistics are not those of its weights."""
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    model.zero_grad()
    return model


def vectors(model, count=2):
    generator = torch.Generator().manual_seed(7)
    size = sum(p.numel() for p in model.parameters())
    return [torch.randn(size, generator=generator, dtype=torch.float64) / 3 for _ in range(count)]


def moved(model, directions, at):
    """A copy of the model with its weights moved."""
    copied = copy.deepcopy(model)
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    for step, direction in zip(at, directions, strict=True):
        flat = flat + step * direction
    nn.utils.vector_to_parameters(flat, copied.parameters())
    return copied


def plain_loss(model, batches, mode):
    if mode == "population":
        ns.layers.population_statistics(model, batches)
    model.train(mode == "train")
    with torch.no_grad():
        losses = [cross_entropy(model(x), y) for x, y in batches]
    sizes = [len(y) for _, y in batches]
    return sum(n * each for n, each in zip(sizes, losses, strict=True)).item() / sum(sizes)


@pytest.mark.parametrize("mode", ["train", "population", "eval"])
@pytest.mark.parametrize(("build", "shape"), [(dense_net, (4,)), (conv_net, (1, 4, 4))])
def test_every_point_equals_a_plain_evaluation_of_a_copy(build, shape, mode):
    batches = [batch_of(*shape), batch_of(*shape, count=6, seed=2)]
    model = used(build(), batches[0])
    directions = vectors(model)
    found = surface(model, "cross_entropy", batches, directions, mode, points=(3, 4), hessian=False)
    assert found.loss.shape == (3, 4)
    for a in found.loss["alpha"].values:
        for b in found.loss["beta"].values:
            wanted = plain_loss(moved(model, directions, (a, b)), batches, mode)
            assert found.loss.sel(alpha=a, beta=b).item() == pytest.approx(wanted, rel=1e-12)


def test_population_mode_names_the_instance_norms_whose_statistics_it_keeps():
    layers = (nn.InstanceNorm2d(3, track_running_stats=True), nn.InstanceNorm2d(3))
    tail = [nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 3)]
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), *layers, *tail).double()
    given = (model, "cross_entropy", batch_of(1, 4, 4), [vectors(model)[0]])
    with pytest.warns(NormscopeWarning, match=r"mode='population' keeps .* norm layers '1': only"):
        surface(*given, "population", points=3, hessian=False)


def test_modes_differ_and_name_the_running_statistics_artefact():
    batch = batch_of(4)
    model = used(dense_net(), batch)
    direction = [vectors(model)[0]]
    train, running = (
        surface(model, "cross_entropy", batch, direction, mode, points=5)
        for mode in ("train", "eval")
    )
    assert abs(train.loss - running.loss).max() > 1e-2


def test_data_loader_gives_the_values_of_its_batches():
    x, y = batch_of(4)
    model = used(dense_net(), (x, y))
    dataset = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(dataset, 6)
    found, wanted = (
        surface(model, "cross_entropy", data, ["gradient"], points=3)
        for data in (loader, [(x[:6], y[:6]), (x[6:], y[6:])])
    )
    xr.testing.assert_equal(found.loss, wanted.loss)


class _Changing(torch.utils.data.Dataset):
    """Samples whose noise does not follow torch's random numbers."""

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.from_numpy(self.generator.normal(size=4)), index % 3


def test_a_data_loader_that_changes_is_refused():
    loader = torch.utils.data.DataLoader(_Changing(), 6)
    with pytest.raises(StateError, match="changes each time"):
        surface(dense_net(), "cross_entropy", loader, points=3)


def failing_loss(calls):
    """Return cross-entropy that raises after so many calls."""
    left = iter(range(calls))

    def loss(output, target):
        if next(left, None) is None:
            raise RuntimeError("no more")
        return cross_entropy(output, target)

    return loss


@pytest.mark.parametrize("fails", [False, True])
def test_model_gradients_flags_and_random_states_are_untouched(fails):
    batch = batch_of(1, 4, 4) if fails else batch_of(4)
    model = used(conv_net() if fails else dense_net(dropout=0.3), batch)
    model[1].eval()
    cross_entropy(model(batch[0]), batch[1]).backward()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {name: (id(each), each.detach().clone()) for name, each in tensors.items()}
    gradients = {name: each.grad.clone() for name, each in model.named_parameters()}
    flags = [module.training for module in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    for mode in ("train", "population", "eval"):
        if fails:
            with pytest.raises(StateError, match="no more"):
                surface(model, failing_loss(9), batch, "random", mode, points=5)
        else:
            surface(model, "cross_entropy", batch, "random", mode, points=3)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, each in tensors.items():
        assert (id(each), True) == (before[name][0], torch.equal(each, before[name][1]))
    assert all(torch.equal(p.grad, gradients[name]) for name, p in model.named_parameters())
    assert flags == [module.training for module in model.modules()]
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()  # noqa: NPY002


def test_dropout_masks_are_the_same_at_every_point():
    x, y = batch_of(4)
    model = dense_net(norm=False, dropout=0.5)
    nn.init.zeros_(model[-1].weight)
    direction = torch.cat([torch.zeros_like(p).flatten() for p in model.parameters()])
    direction[-3:] = 1.0  # shifts all logits, so that the loss stays the same
    with pytest.warns(NormscopeWarning, match="along alpha is NaN"):  # as flat as it can be
        found = surface(model, "cross_entropy", (x, y), [direction], points=5)
    assert np.ptp(found.loss.values) < 1e-12
    again = surface(model, "cross_entropy", (x, y), ["gradient"], points=3)
    wanted = surface(model, "cross_entropy", (x, y), ["gradient"], points=3)
    xr.testing.assert_equal(again.loss, wanted.loss)


def test_stacked_points_equal_single_ones():
    batch = batch_of(4)
    for model in (used(dense_net(), batch), dense_net(dropout=0.5)):
        layout = parameter_layout(model)
        plane = Plane(ns.Problem(model, "cross_entropy", batch), layout, tuple(vectors(model)))
        at = [(0.1 * n, -0.2 * n) for n in range(5)]
        assert faster_stack(plane, [np.array([-1.0, 0.0, 1.0])] * 2) == STACK
        stacked = plane.along(plane.directions, 3).losses(at)
        np.testing.assert_allclose(stacked, plane.losses(at), rtol=1e-12)


def test_stack_is_refused_for_convolutions_population_and_wide_nets():
    batch = batch_of(1, 4, 4)
    model = conv_net()
    directions = tuple(vectors(model))
    problem = ns.Problem(model, "cross_entropy", batch)
    grid = [np.array([-1.0, 0.0, 1.0])] * 2
    assert faster_stack(Plane(problem, parameter_layout(model), directions), grid) == 1
    dense = dense_net()
    plane = Plane(
        ns.Problem(dense, "cross_entropy", batch_of(4)),
        parameter_layout(dense),
        tuple(vectors(dense)),
        "population",
    )
    assert faster_stack(plane, grid) == 1


def test_curvature_equals_the_hessian_on_a_quadratic():
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 1.0]], dtype=torch.float64)
    model = nn.Linear(2, 1, bias=False).double()
    directions = [torch.tensor([1.0, 2.0]), torch.tensor([-2.0, 1.0])]
    target = torch.ones(3, 1, dtype=torch.float64)
    found = surface(model, "squared_error", (x, target), directions, points=5)
    hessian = (x.T @ x / 3).numpy()
    for name, direction in zip(("alpha", "beta"), directions, strict=True):
        d = direction.double().numpy()
        wanted = d @ hessian @ d
        numbers = found.numbers(name)
        for key in ("curvature", "hessian_curvature", "roughness"):
            assert numbers[key] == pytest.approx(wanted, rel=1e-9)
        assert numbers["direction_norm"] == pytest.approx(5**0.5)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_hessian_directions_have_the_top_eigenvalues_as_curvature(mode):
    batch = batch_of(4)
    model = used(dense_net(), batch)
    model.train(mode == "train")
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()

    def loss_at(vector):
        parts = torch.split(vector, [p.numel() for p in model.parameters()])
        shapes = {n: p.shape for n, p in model.named_parameters()}
        named = {
            n: part.view(shapes[n]) for (n, _), part in zip(shapes.items(), parts, strict=True)
        }
        buffers = {n: b.clone() for n, b in model.named_buffers()}
        output = torch.func.functional_call(model, named | buffers, (batch[0],))
        return cross_entropy(output, batch[1])

    dense = torch.autograd.functional.hessian(loss_at, flat)
    values = torch.linalg.eigvalsh(dense).flip(0)[:2].tolist()
    found = surface(model, "cross_entropy", batch, "hessian", mode, extent=0.01, points=3)
    for name, value in zip(("alpha", "beta"), values, strict=True):
        assert found.numbers(name)["hessian_curvature"] == pytest.approx(value, rel=1e-3)
        assert found.numbers(name)["curvature"] == pytest.approx(value, rel=1e-2)


def test_slope_along_the_gradient_is_its_norm():
    batch = batch_of(4)
    model = dense_net()
    cross_entropy(model(batch[0]), batch[1]).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    model.zero_grad()
    found = surface(model, "cross_entropy", batch, ["gradient"], extent=1e-5, points=3)
    low, _, high = found.loss.values
    assert (high - low) / 2e-5 == pytest.approx(norm, rel=1e-6)


def test_ggn_and_random_can_be_combined():
    batch = batch_of(4)
    found = surface(dense_net(), "cross_entropy", batch, ["ggn", "random"], points=3)
    assert found.dataset["direction"].values.tolist() == ["ggn", "random"]
    assert found.dataset["direction_norm"][0] == pytest.approx(1)


@pytest.mark.parametrize("scaling", ["filter", "layer"])
def test_random_directions_are_scaled_to_the_weights(scaling):
    batch = batch_of(1, 4, 4)
    model = conv_net()
    found = surface(model, "cross_entropy", batch, scaling=scaling, dimensions=1, points=3)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    wanted = sum(p.square().sum() for p in matrices).sqrt().item()
    assert found.numbers("alpha")["direction_norm"] == pytest.approx(wanted)


def test_checkpoints_span_the_plane_and_lie_on_it():
    batch = batch_of(4)
    model = dense_net()
    directions = vectors(model)
    places = [(1.0, 0.0), (0.5, 0.5), (0.2, 1.0)]
    states = [moved(model, directions, at).state_dict() for at in places]
    found = surface(model, "cross_entropy", batch, "checkpoints", checkpoints=states, points=9)
    data = found.dataset
    assert float(data["trajectory_distance"].max()) < 1e-6
    for at, coordinates in zip(places, data["trajectory"].values, strict=True):
        wanted = plain_loss(moved(model, directions, at), [batch], "train")
        along = [coordinates[0]], [coordinates[1]]
        inside = [low < c[0] < high for c, (low, high) in zip(along, _ends(data), strict=True)]
        assert all(inside)
        near = data["loss"].interp(alpha=coordinates[0], beta=coordinates[1], method="cubic").item()
        assert near == pytest.approx(wanted, rel=0.03)
    assert 0.0 in data["alpha"].values
    assert 0.0 in data["beta"].values


@pytest.mark.parametrize("points", [3, 4, 9])
@pytest.mark.parametrize("directions", ["checkpoints", "given"])
def test_default_extent_covers_the_checkpoints(directions, points):
    model = dense_net()
    given = vectors(model)
    states = [moved(model, given, at).state_dict() for at in [(1.0, 0.1), (4.0, -2.5)]]
    wanted = given if directions == "given" else directions
    options = {"points": points, "checkpoints": states, "hessian": False}
    found = surface(model, "cross_entropy", batch_of(4), wanted, **options).dataset
    ends = np.array(_ends(found))
    assert (ends[:, 0] < found["trajectory"].values).all()
    assert (ends[:, 1] > found["trajectory"].values).all()
    assert all(0.0 in found[name].values for name in ("alpha", "beta"))


def _ends(data):
    return [(float(data[name][0]), float(data[name][-1])) for name in ("alpha", "beta")]


def test_line_between_two_checkpoints_ends_at_them(tmp_path):
    batch = batch_of(4)
    first, second = dense_net(), used(dense_net(), batch, steps=9)
    torch.save({"model": second.state_dict()}, tmp_path / "second.pt")
    found = surface(
        first, "cross_entropy", batch, "checkpoints", dimensions=1, points=11,
        checkpoints=[tmp_path / "second.pt"], extent=(0, 1),
    )  # fmt: skip
    length = abs(found.dataset["trajectory"].item())
    reach = surface(
        first, "cross_entropy", batch, "checkpoints", dimensions=1, points=3,
        checkpoints=[second], extent=length,
    )  # fmt: skip
    ends = plain_loss(second, [batch], "train")
    assert min(abs(reach.loss.values - ends)) < 1e-9


def test_centre_is_another_checkpoint_and_the_model_stays():
    batch = batch_of(4)
    model, other = dense_net(), used(dense_net(), batch, steps=9)
    before = copy.deepcopy(model.state_dict())
    for mode in ("train", "eval"):
        found = surface(model, "cross_entropy", batch, mode=mode, centre=other, points=3)
        wanted = plain_loss(copy.deepcopy(other), [batch], mode)
        assert found.dataset.attrs["centre_loss"] == pytest.approx(wanted, rel=1e-12)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_subset_of_parameters_moves():
    batch = batch_of(4)
    model = dense_net()
    only = surface(model, "cross_entropy", batch, "random", params="4.weight", points=3)
    assert only.dataset.attrs["parameters"] == 15


def test_refinement_measures_fewer_points_within_the_tolerance():
    batch = batch_of(4)
    model = used(dense_net(), batch)
    whole = surface(model, "cross_entropy", batch, points=33, hessian=False)
    found = surface(model, "cross_entropy", batch, points=33, refine=0.01, hessian=False)
    measured = found.dataset["measured"].values
    assert measured.sum() == found.dataset.attrs["evaluated"] < 0.6 * measured.size
    assert (found.loss.values[measured] == whole.loss.values[measured]).mean() > 0.99
    np.testing.assert_allclose(found.loss.values, whole.loss.values, rtol=0.03)


def test_a_surface_resumes_from_its_store_bit_for_bit(tmp_path):
    batch = batch_of(4)
    model = used(dense_net(), batch)
    wanted = surface(model, "cross_entropy", batch, points=21)
    events = []

    def stop(event):
        events.append(event)
        if event.done and event.done >= 128:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        surface(model, "cross_entropy", batch, points=21, store=tmp_path / "s.db", progress=stop)
    events.clear()
    found = surface(
        model, "cross_entropy", batch, points=21, store=tmp_path / "s.db", progress=events.append
    )
    assert max(event.kept for event in events) >= 128
    xr.testing.assert_equal(found.loss, wanted.loss)
    events.clear()
    surface(
        model, "cross_entropy", batch, points=21, store=tmp_path / "s.db", progress=events.append
    )
    assert not any(event.done for event in events)  # nothing was computed again
    model[0].weight.data += 0.01
    other = surface(model, "cross_entropy", batch, points=21, store=tmp_path / "s.db")
    assert not np.allclose(other.loss, found.loss)


@pytest.mark.slow
def test_other_processes_give_the_same_values(tmp_path):
    batch = batch_of(1, 4, 4)
    model = used(conv_net(), batch)
    here, there = (
        surface(model, lambda o, t: cross_entropy(o, t), batch, points=9, workers=workers)
        for workers in (1, 2)
    )
    xr.testing.assert_equal(here.loss, there.loss)


@pytest.mark.extras
@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_clusters_give_the_same_values(engine):
    batch = batch_of(1, 4, 4)
    model = used(conv_net(), batch)
    here = surface(model, "cross_entropy", batch, points=5)
    there = surface(model, "cross_entropy", batch, points=5, engine=engine, workers=2)
    xr.testing.assert_equal(here.loss, there.loss)


def test_overflow_is_a_value_and_not_an_error():
    x, y = batch_of(4)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    found = surface(model, "cross_entropy", (x, y), ["gradient"], extent=1e30, points=5)
    assert np.isfinite(found.loss.sel(alpha=0.0))
    assert not np.isfinite(found.loss.values).all()
    assert np.isfinite(found.minimum)


class _Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3).double(), 0

    def forward(self, x):
        self.calls += 1
        return self.calls * self.layer(x)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"mode": "frozen"}, StateError, "derivatives alone"),
        ({"mode": "evall"}, InputError, "eval"),
        ({"directions": "hesian"}, InputError, "hessian"),
        ({"scaling": "filters"}, InputError, "filter"),
        ({"extent": (1, -1)}, InputError, "lower to a higher"),
        ({"extent": "wide"}, ArgumentTypeError, "extent"),
        ({"points": 2}, InputError, "at least 3"),
        ({"points": (5, 5, 5)}, ArgumentTypeError, "points"),
        ({"dimensions": 3}, InputError, "1 or 2"),
        ({"refine": 0}, InputError, "positive"),
        ({"directions": "checkpoints"}, InputError, "checkpoints="),
        ({"directions": ["gradient", "gradient"]}, InputError, "no further direction"),
        ({"directions": [torch.ones(3)]}, InputError, "43"),
        ({"directions": {"nothing": torch.ones(3)}}, InputError, "nothing"),
        ({"directions": {"0.bias": torch.ones(3)}}, InputError, "shape"),
        ({"directions": [torch.ones(43), -torch.ones(43)]}, InputError, "parallel"),
        ({"directions": {"0.bias": torch.ones(5)}, "scaling": "filter"}, StateError, "zero"),
        ({"checkpoints": [{"0.weight": torch.ones(5, 4)}]}, InputError, "no parameter"),
        ({"checkpoints": [3]}, ArgumentTypeError, "checkpoint"),
        ({"checkpoints": None}, ArgumentTypeError, "checkpoints must be a list"),
        ({"checkpoints": "abc.pt"}, DataError, "abc.pt cannot be read .*No such file"),
        ({"points": 25.0}, ArgumentTypeError, "points must be an integer"),
        ({"points": None}, ArgumentTypeError, "points must be an integer"),
        ({"points": True}, ArgumentTypeError, "points must be an integer"),
        ({"extent": "ab"}, ArgumentTypeError, "extent must be"),
        ({"refine": "x"}, ArgumentTypeError, "refine must be a number"),
        ({"dimensions": 2.0}, ArgumentTypeError, "dimensions must be an integer"),
        ({"directions": None}, ArgumentTypeError, "directions must be"),
        ({"directions": [None]}, ArgumentTypeError, "a direction is"),
        ({"seed": 1.5}, ArgumentTypeError, "seed must be an integer"),
        ({"threads": 0}, InputError, "threads must be at least 1"),
        ({"directions": [torch.zeros(43)]}, InputError, "'given 1' is zero; give one"),
        ({"directions": [torch.ones(43) * 1j]}, ArgumentTypeError, "real numbers"),
        ({"directions": {"0.bias": torch.ones(5) * 1j}}, ArgumentTypeError, "real numbers"),
    ],
)
def test_bad_arguments_are_refused(options, error, words):
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double()
    with pytest.raises(error, match=words):
        surface(model, "cross_entropy", batch_of(4), **options)


def test_a_sparse_batch_is_refused():
    x, y = batch_of(4)
    with pytest.raises(InputError, match="to_dense"):
        surface(dense_net(norm=False), "cross_entropy", (x.to_sparse(), y))


@pytest.mark.parametrize("directions", ["random", "checkpoints"])
def test_a_checkpoint_that_is_not_finite_is_refused(directions):
    diverged = dense_net()
    diverged[0].weight.data[0, 0] = torch.inf
    with pytest.raises(InputError, match="of a checkpoint is not finite"):
        surface(dense_net(), "cross_entropy", batch_of(4), directions, checkpoints=[diverged])


def test_integers_of_numpy_are_accepted():
    options = {"points": np.int64(3), "dimensions": np.int64(1), "seed": np.int32(0)}
    found = surface(dense_net(), "cross_entropy", batch_of(4), **options)
    assert found.loss.shape == (3,)


@pytest.mark.parametrize(
    "content", [b"", b"root:x:0:0::/:", b"cposix\nsystem\n(S'true'\ntR.", b"."]
)
def test_a_file_that_is_no_checkpoint_is_refused_without_unsafe_advice(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match=r"not a file that torch\.save wrote") as caught:
        read_state(tmp_path / "file")
    assert "weights_only" not in str(caught.value)


def test_one_checkpoint_needs_no_list(tmp_path):
    model, batch = dense_net(), batch_of(4)
    other = used(dense_net(), batch)
    torch.save(other.state_dict(), tmp_path / "other.pt")
    for given in (other, other.state_dict(), tmp_path / "other.pt", str(tmp_path / "other.pt")):
        found = surface(model, "cross_entropy", batch, points=3, checkpoints=given)
        assert found.dataset.sizes["checkpoint"] == 1


def test_a_model_that_changes_from_call_to_call_is_refused():
    with pytest.raises(StateError, match="changes from call to call"):
        surface(_Counting(), "cross_entropy", batch_of(4))


def test_a_loss_that_is_not_finite_at_the_centre_is_refused():
    model = dense_net()
    model[-1].bias.data.fill_(torch.nan)
    with pytest.raises(StateError, match="at the centre is nan"):
        surface(model, "cross_entropy", batch_of(4))


def test_oblique_directions_warn():
    model = dense_net()
    one, other = vectors(model)
    with pytest.warns(NormscopeWarning, match="not orthogonal"):
        found = surface(model, "cross_entropy", batch_of(4), [one, one + other], points=3)
    wanted = torch.cosine_similarity(one, one + other, 0).item()
    assert found.dataset.attrs["cosine"] == pytest.approx(wanted)


def test_files_hold_the_same_numbers(tmp_path):
    batch = batch_of(4)
    found = surface(dense_net(), "cross_entropy", batch, points=(3, 4))
    found.write(tmp_path / "s.nc")
    with xr.open_dataset(tmp_path / "s.nc", engine="scipy") as read:
        np.testing.assert_array_equal(read["loss"].values, found.loss.values)
        assert read.attrs["statistics"] == "train"
    rows = np.loadtxt(found.write(tmp_path / "s.csv"), delimiter=",", skiprows=1)
    np.testing.assert_allclose(rows[:, 2], found.loss.values.ravel(), rtol=1e-12)
    lines = found.write(tmp_path / "s.vtk").read_text().splitlines()
    assert lines[4] == "DIMENSIONS 3 4 1"
    places = np.array([line.split() for line in lines[6:18]], float)
    for a, b, height in places:
        assert height == found.loss.sel(alpha=a, beta=b).item()
    assert (places[1, 0], places[1, 1]) == (0.0, -1.0)  # the first coordinate varies fastest
    with pytest.raises(InputError, match="vtk"):
        found.write(tmp_path / "s.xyz")


def test_result_renders_itself():
    found = surface(dense_net(), "cross_entropy", batch_of(4), points=3)
    assert "at the centre" in str(found)
    assert "roughness" in found._repr_html_()
    plain = found.to_dict()
    assert plain["mode"] == "train"
    assert plain["axes"]["beta"]["points"] == 3
    assert plain["minimum"] <= plain["centre_loss"]
    assert len(found.to_dataframe()) == 9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_small_nets_have_the_losses_of_plain_passes_in_any_precision(dtype):
    torch.manual_seed(0)
    x, y = batch_of(36)
    x = x.to(dtype)
    model = nn.Sequential(nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    directions = [each.float() for each in vectors(model)]
    found = surface(model, "cross_entropy", (x, y), directions, points=5, hessian=False)
    is_half = dtype == torch.bfloat16  # away from the centre, its weights may be rounded otherwise
    assert found.dataset.attrs["stack"] == (1 if is_half else STACK)
    rounding = 0 if is_half else 1e-6
    for alpha, beta in ((0.0, 0.0),) if is_half else ((-1.0, 0.5), (0.0, 0.0), (1.0, 1.0)):
        other = moved(model, directions, (alpha, beta)).to(dtype)
        value = found.loss.sel(alpha=alpha, beta=beta).item()
        assert value == pytest.approx(cross_entropy(other(x), y).item(), rel=rounding, abs=0)


WRAPPERS = {
    "plain": lambda model: model,
    "data parallel": nn.DataParallel,
    "compiled": torch.compile,
    "compiled, data parallel": lambda model: nn.DataParallel(torch.compile(model)),
    "compiled part": lambda model: nn.Sequential(torch.compile(model[0]), *model[1:]),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("there", WRAPPERS)
@pytest.mark.parametrize("here", ["plain", "data parallel", "compiled"])
def test_checkpoints_of_a_model_wrapped_in_another_way_are_read(here, there):
    batch, final = batch_of(4), used(dense_net(), batch_of(4), steps=6)
    model = used(dense_net(), batch)
    middle = used(dense_net(), batch, steps=4)
    options = {"points": 3, "hessian": False, "mode": "eval"}

    def found(wrap, states):
        return surface(
            wrap(copy.deepcopy(model)),
            "cross_entropy",
            batch,
            [vectors(model)[0]],
            centre=states[-1],
            checkpoints=states,
            **options,
        )

    states = [each.state_dict() for each in (middle, final)]
    wrapped = [WRAPPERS[there](copy.deepcopy(each)).state_dict() for each in (middle, final)]
    plain, other = found(WRAPPERS["plain"], states), found(WRAPPERS[here], wrapped)
    xr.testing.assert_equal(plain.loss, other.loss)
    trajectories = plain.dataset["trajectory"], other.dataset["trajectory"]
    xr.testing.assert_allclose(*trajectories, rtol=1e-12)  # sums of another memory layout
