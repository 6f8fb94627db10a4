import copy
import random

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from normscope.errors import ArgumentTypeError, InputError, NormscopeWarning, ShapeError, StateError
from normscope.layers import (
    BatchNorm1d,
    BatchNorm2d,
    LpNorm1d,
    LpNorm2d,
    NoisyBatchNorm1d,
    population_statistics,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The tensors are small: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def mlp(norm=nn.BatchNorm1d, **options):
    model = nn.Sequential(
        nn.Linear(5, 8), norm(8, **options), nn.Tanh(), nn.Dropout(), nn.Linear(8, 6),
        norm(6, **options), nn.ReLU(), nn.Linear(6, 2),
    )  # fmt: skip
    return model.double()


def conv_net(norm=nn.BatchNorm2d):
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm(4), nn.ReLU(), nn.Conv2d(4, 3, 3), norm(3))


def snapshot(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def reference_statistics(inputs, weights=None):
    """E_B[mu_B] and E_B[m/(m-1) var_B] by the definition; inputs (batch, channels, ...)."""
    weights = torch.tensor(weights or [len(x) for x in inputs], dtype=torch.float64)
    rows = [x.double().transpose(0, 1).flatten(1) for x in inputs]
    means = torch.stack([row.mean(1) for row in rows])
    variances = torch.stack([row.var(1, correction=1) for row in rows])
    weights = (weights / weights.sum())[:, None]
    return (weights * means).sum(0), (weights * variances).sum(0)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, BatchNorm2d], ids=["torch", "ours"])
def test_first_layer_gets_the_sample_weighted_batch_averages(norm):
    model = conv_net(norm)
    batches = [torch.randn(n, 1, 7, 7) * n for n in (2, 5, 9)]
    population_statistics(model, batches)
    mean, variance = reference_statistics([model[0](x).detach() for x in batches])
    torch.testing.assert_close(model[1].running_mean.double(), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model[1].running_var.double(), variance, rtol=1e-5, atol=0)


def test_one_pass_equals_cumulative_training_mode_of_torch():
    model = mlp(momentum=None).eval()
    batches = [torch.randn(16, 5, dtype=torch.float64) for _ in range(4)]
    expected = copy.deepcopy(model)
    for module in expected.modules():
        module.training = isinstance(module, nn.BatchNorm1d)
    for x in batches:  # equal batches: torch's cumulative average is the average of the paper
        expected(x)
    written = population_statistics(model, batches)
    for name in ("1", "5"):
        layer, wanted = model.get_submodule(name), expected.get_submodule(name)
        torch.testing.assert_close(layer.running_mean, wanted.running_mean)
        torch.testing.assert_close(layer.running_var, wanted.running_var)
        assert torch.equal(written[name].mean, layer.running_mean)
        assert torch.equal(written[name].spread, layer.running_var)


def test_sequential_feeds_each_layer_through_population_statistics():
    model = mlp()
    batches = [torch.randn(n, 5, dtype=torch.float64) for n in (4, 7)]
    expected = copy.deepcopy(model).eval()
    for position in (1, 5):
        inputs = [expected[:position](x).detach() for x in batches]
        mean, variance = reference_statistics(inputs)
        expected[position].running_mean.copy_(mean)
        expected[position].running_var.copy_(variance)
    population_statistics(model, batches, sequential=True)
    for position in (1, 5):
        torch.testing.assert_close(model[position].running_mean, expected[position].running_mean)
        torch.testing.assert_close(model[position].running_var, expected[position].running_var)


def test_sequential_and_one_pass_differ_only_behind_the_first_layer_and_less_for_large_batches():
    x = torch.randn(512, 5, dtype=torch.float64)
    differences = []
    for size in (8, 64):
        one_pass, sequential = mlp(), mlp()
        sequential.load_state_dict(one_pass.state_dict())
        population_statistics(one_pass, list(x.split(size)))
        population_statistics(sequential, list(x.split(size)), sequential=True)
        assert torch.equal(one_pass[1].running_var, sequential[1].running_var)
        differences.append((one_pass[5].running_var / sequential[5].running_var - 1).abs().max())
    assert differences[0] > 0.01
    assert differences[1] < differences[0] / 3


@pytest.fixture(scope="module")
def trained_on_digits():
    """The net and data of the example in the docstring of population_statistics."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None]
    images, labels = (images - images.mean()) / images.std(), torch.tensor(digits.target)
    torch.manual_seed(0)
    blocks = [
        (nn.Conv2d(width, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU())
        for width, out in ((1, 30), (30, 60), (60, 90))
    ]
    net = nn.Sequential(*[m for block in blocks for m in block], nn.Flatten(), nn.Linear(90, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(200):
        batch = torch.randint(1437, (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
        optimizer.step()
    return net, images[:1437], images[1437:]


@pytest.mark.parametrize(
    ("size", "variance", "output"), [(8, 0.059, 0.013), (32, 0.019, 0.006), (1437, 2e-4, 1e-4)]
)
def test_documented_example_holds_within_a_factor_of_two(trained_on_digits, size, variance, output):
    net, train, test = trained_on_digits
    one_pass, sequential = copy.deepcopy(net), copy.deepcopy(net)
    written = population_statistics(one_pass, list(train.split(size)))
    wanted = population_statistics(sequential, list(train.split(size)), sequential=True)
    found = max((written[name].spread / wanted[name].spread - 1).abs().max() for name in wanted)
    with torch.no_grad():
        left, right = one_pass.eval()(test), sequential.eval()(test)
    assert variance / 2 < found < 2 * variance
    assert output / 2 < (left - right).abs().max() / right.abs().max() < 2 * output


@pytest.mark.parametrize("p", [1, 2, float("inf")])
@pytest.mark.parametrize("centred", [False, True])
def test_lp_layers_get_the_average_of_mean_and_scale(p, centred):
    layer = LpNorm2d(3, p=p, centred=centred, momentum=None, dtype=torch.float64)
    expected = copy.deepcopy(layer)
    batches = [torch.randn(5, 3, 4, 4, dtype=torch.float64) + 1 for _ in range(3)]
    for x in batches:
        expected(x)
    population_statistics(layer, batches)
    torch.testing.assert_close(layer.running_mean, expected.running_mean)
    torch.testing.assert_close(layer.running_scale, expected.running_scale)


def test_layer_behind_lp_norm_sees_the_batch_normalized():
    model = mlp(LpNorm1d, p=1)
    batches = [torch.randn(9, 5, dtype=torch.float64) for _ in range(3)]
    trained = copy.deepcopy(model)
    trained[3].eval()
    inputs = [trained[:5](x).detach() for x in batches]
    population_statistics(model, batches)
    torch.testing.assert_close(model[5].running_mean, reference_statistics(inputs)[0])


def test_noise_is_off():
    plain, noisy = mlp(BatchNorm1d), mlp(NoisyBatchNorm1d)
    noisy.load_state_dict(plain.state_dict())
    x = torch.randn(30, 5, dtype=torch.float64)
    population_statistics(plain, x)
    population_statistics(noisy, x)
    assert torch.equal(plain[5].running_var, noisy[5].running_var)


def test_shared_layer_pools_the_inputs_of_its_uses():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2).double()

        def forward(self, x):
            return self.norm(input=self.norm(x) * 3 + 1)

    model = Shared()
    x = torch.randn(20, 2, dtype=torch.float64)
    again = torch.nn.functional.batch_norm(x, None, None, training=True) * 3 + 1
    mean, variance = reference_statistics([x, again])
    population_statistics(model, x)
    torch.testing.assert_close(model.norm.running_mean, mean)
    torch.testing.assert_close(model.norm.running_var, variance)


def test_large_offset_does_not_cancel():
    layer = nn.BatchNorm1d(1)
    x = 1e4 + 1e-2 * torch.randn(64, 1)
    population_statistics(layer, x)
    torch.testing.assert_close(layer.running_var.double(), x.double().var(0), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "as_data",
    [
        lambda x: x,
        lambda x: (x, torch.zeros(len(x))),
        lambda x: [x],
        lambda x: [(x, torch.zeros(len(x)))],
        lambda x: DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=len(x)),
        lambda x: DataLoader(x, batch_size=len(x)),
        lambda x: iter([x]),
    ],
    ids=["tensor", "tuple", "list", "list of tuples", "loader", "bare loader", "iterator"],
)
def test_every_form_of_data_gives_the_same(as_data):
    x = torch.randn(12, 5)
    expected, model = mlp(), mlp()
    model.load_state_dict(expected.state_dict())
    population_statistics(expected, x)
    population_statistics(model, as_data(x))
    assert torch.equal(model[5].running_var, expected[5].running_var)


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("sequential", [False, True])
def test_nothing_but_the_running_statistics_changes(sequential, seed):
    model = mlp(momentum=0.3)
    model.train()
    model[5].eval()
    model(torch.randn(4, 5, dtype=torch.float64)).sum().backward()
    hook = model[1].register_forward_hook(lambda *_: None)
    before, gradients = snapshot(model), [p.grad.clone() for p in model.parameters()]
    buffers = [id(buffer) for buffer in model.buffers()]
    own = torch.Generator().manual_seed(seed) if seed else None
    loader = DataLoader(torch.randn(24, 5), batch_size=6, shuffle=True, generator=own)
    random, own_random = torch.get_rng_state(), own.get_state() if own else None

    population_statistics(model, loader, sequential)

    assert torch.equal(torch.get_rng_state(), random)
    assert own is None or torch.equal(own.get_state(), own_random)
    assert [module.training for module in model] == [True] * 5 + [False] + [True] * 2
    assert model[1].momentum == 0.3
    assert list(model[1]._forward_hooks) == [hook.id]
    assert not model[1]._forward_pre_hooks
    assert [id(buffer) for buffer in model.buffers()] == buffers
    assert all(map(torch.equal, [p.grad for p in model.parameters()], gradients))
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert changed == {"1.running_mean", "1.running_var", "5.running_mean", "5.running_var"}


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("call", [1, 3])
def test_interrupted_measurement_leaves_everything_as_it_was(sequential, error, call):
    model = mlp().train()
    calls = []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == call:
            raise error

    hook = model[6].register_forward_hook(interrupt)
    before = snapshot(model)
    with pytest.raises(error):
        population_statistics(model, list(torch.randn(4, 6, 5).double()), sequential)
    hook.remove()
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not model[1]._forward_pre_hooks
    model(torch.randn(4, 5).double())
    assert not model[1].running_mean.equal(before["1.running_mean"])  # still the layer's own buffer


def test_interrupted_writing_is_undone(monkeypatch):
    model = mlp()
    before = snapshot(model)
    copy_, calls = torch.Tensor.copy_, []

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return copy_(self, *args)

    monkeypatch.setattr(torch.Tensor, "copy_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        population_statistics(model, torch.randn(8, 5))
    monkeypatch.undo()
    assert len(calls) > 3
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_model_without_batch_norm_is_left_alone():
    assert population_statistics(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), []) == {}


def test_instance_norms_that_keep_running_statistics_are_named():
    norms = (
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.BatchNorm2d(4),
        nn.InstanceNorm2d(4),
    )
    model = nn.Sequential(nn.Conv2d(1, 4, 3), *norms)
    before = snapshot(model[1])
    with pytest.warns(NormscopeWarning, match=r"keeps the present .* norm layers '1': only"):
        written = population_statistics(model, torch.randn(6, 1, 5, 5))
    assert list(written) == ["2"]
    assert all(torch.equal(before[name], each) for name, each in model[1].state_dict().items())


def test_layer_without_running_statistics_is_named():
    model = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3))
    with pytest.warns(NormscopeWarning, match=r"'0' .track_running_stats=False"):
        written = population_statistics(model, torch.randn(5, 3))
    assert list(written) == ["1"]


def test_layer_that_no_batch_reaches_is_named():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused, self.used = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

        def forward(self, x):
            return self.used(x)

    with pytest.warns(NormscopeWarning, match=r"'unused' .no batch reached"):
        assert list(population_statistics(Branch(), torch.randn(5, 3))) == ["used"]


def test_order_is_that_of_execution():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

        def forward(self, x):
            return self.last(torch.relu(self.first(x)))

    model, x = Backwards(), [torch.randn(5, 3), torch.randn(5, 3) + 1]
    assert list(population_statistics(model, x, sequential=True)) == ["first", "last"]
    with torch.no_grad():
        hidden = [torch.relu(model.eval().first(batch)) for batch in x]
    mean, _ = reference_statistics(hidden)
    torch.testing.assert_close(model.last.running_mean.double(), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], InputError, "no batch"),
        (torch.randn(1, 3), InputError, "more than one value per channel"),
        ([torch.randn(4, 3), torch.zeros(0, 3)], InputError, "more than one value per channel"),
        (
            {"x": torch.randn(4, 3)},
            ArgumentTypeError,
            r"the inputs x, but its forward takes \(input",
        ),
        ([{"x": torch.randn(4, 3)}], ArgumentTypeError, "the inputs x, but"),
        ({"input": [1.0, 2.0]}, ArgumentTypeError, "got a dict"),
        ([("a", 1)], ArgumentTypeError, "got a tuple of str, int"),
        (3, ArgumentTypeError, "got int"),
        ([torch.randn(4, 3), torch.zeros(4)], InputError, "as a tuple"),
        (torch.randn(4, 2), ShapeError, "3 channels"),
        (torch.full((4, 3), float("nan")), StateError, "not finite"),
    ],
)
def test_unusable_data_is_refused_and_nothing_written(data, error, message):
    model = nn.BatchNorm1d(3)
    before = snapshot(model)
    with pytest.raises(error, match=message):
        population_statistics(model, data)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_sequential_refuses_an_iterator():
    with pytest.raises(InputError, match="only once"):
        population_statistics(mlp(), iter([torch.randn(4, 5)]), sequential=True)


@pytest.mark.parametrize("sequential", [False, True])
def test_statistics_too_large_for_the_dtype_of_the_buffers_are_refused(sequential):
    norm = nn.BatchNorm1d(3).half()
    before = snapshot(norm)
    with pytest.raises(StateError, match=r"not finite in torch\.float16"):
        population_statistics(norm, (1000 * torch.randn(64, 3)).half(), sequential)
    assert all(value.equal(before[name]) for name, value in norm.state_dict().items())


@pytest.mark.parametrize("batched", [False, True])
def test_generators_of_samplers_and_of_python_stay(batched):
    class Jittered(TensorDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)[0] + random.random()

    data = Jittered(torch.randn(20, 3))
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(data, generator=generator)
    if batched:
        loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 4, drop_last=False))
    else:
        loader = DataLoader(data, 4, sampler=sampler)
    before, python = generator.get_state(), random.getstate()
    population_statistics(nn.BatchNorm1d(3), loader)
    assert generator.get_state().equal(before)
    assert random.getstate() == python


def test_other_than_a_module_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"population_statistics expects an nn\.Module"):
        population_statistics([1], torch.zeros(4, 3))


def test_data_is_not_overwritten():
    x = torch.randn(8, 3)
    before = x.clone()
    population_statistics(nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm1d(3)), [x])
    assert torch.equal(x, before)


class GraphNet(nn.Module):
    """A graph network called as ``model(x, edge_index, batch)``, as torch_geometric's are."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(2, 3), nn.BatchNorm1d(3)

    def forward(self, x, edge_index, batch):
        sums = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return torch.zeros(2, 3).index_add(0, batch, self.norm(self.linear(sums)))


def test_batches_without_a_target_are_the_arguments_of_the_model():
    torch.manual_seed(0)
    model = GraphNet()
    x, edges, batch = torch.randn(6, 2), torch.randint(6, (2, 20)), torch.arange(6) // 3
    sums = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
    expected = model.linear(sums).mean(0).double()
    with_target = (x, edges, batch, torch.zeros(2))
    named = {"x": x, "edge_index": edges, "batch": batch}
    for data in ((x, edges, batch), [(x, edges, batch)], with_target, named):
        written = population_statistics(copy.deepcopy(model), data)
        assert torch.allclose(written["norm"].mean, expected, atol=1e-6)


def test_refused_arguments_name_those_of_the_model():
    model, x = GraphNet(), torch.randn(6, 2)
    with pytest.raises(
        ArgumentTypeError, match=r"tuples \(x, edge_index, batch\), or as dict"
    ) as at:
        population_statistics(model, x)
    assert "whole_loss" not in str(at.value)
