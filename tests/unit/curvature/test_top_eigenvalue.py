import gc
import importlib
import math
import re
import warnings
import weakref

import pytest
import torch
from tests.unit.curvature.networks import batch, network
from torch import nn
from torch.nn import functional

from normscope.curvature import dense, operator, top_eigenvalue
from normscope.curvature.spaces import OutputSpace, ParameterSpace, search_space
from normscope.errors import ArgumentTypeError, InputError, NormscopeWarning, UnknownNameError
from normscope.problem import whole_loss

KINDS = ("fisher", "ggn", "hessian")


def spectrum(model, data, **options):
    return torch.linalg.eigvalsh(dense(model, functional.cross_entropy, data, **options))


def residuals_of(top, matrix):
    images = matrix @ top.vectors
    return (images - top.vectors * top.values).norm(dim=0) / top.values.abs()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("name", ["torch_batch", "conv2d", "residual", "l1"])
def test_top_eigenvalue_is_that_of_the_dense_matrix(name, mode, kind):
    model, data = network(name), batch(name, 9)
    expected = spectrum(model, data, kind=kind, mode=mode)[-1]
    top = top_eigenvalue(model, functional.cross_entropy, data, kind=kind, mode=mode, tol=1e-6)
    assert top.converged
    assert top.value == pytest.approx(float(expected), rel=1e-6)
    assert (top.kind, top.mode, top.batch_size) == (kind, mode, 9)
    matrix = dense(model, functional.cross_entropy, data, kind=kind, mode=mode)
    assert float(residuals_of(top, matrix)) <= 1e-6
    assert float(top.vectors.norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("which", ["largest", "smallest", "both", "magnitude"])
@pytest.mark.parametrize("kind", KINDS)
def test_several_eigenvalues_of_either_end(kind, which):
    model, data = network("residual"), [batch("residual", 9), batch("residual", 6, 3)]
    values = spectrum(model, data, kind=kind)
    top = top_eigenvalue(
        model, functional.cross_entropy, data, kind=kind, k=3, which=which, tol=1e-5
    )
    largest, smallest = values.flip(0)[:3], values[:3]
    expected = {
        "largest": largest,
        "smallest": smallest,
        "both": torch.cat([largest, smallest]),
        "magnitude": values[values.abs().argsort(descending=True)][:3],
    }[which]
    assert top.converged
    assert torch.allclose(top.values, expected, rtol=1e-5, atol=1e-9 * float(values.abs().max()))
    assert top.vectors.shape == (len(values), len(expected))


def test_multiple_eigenvalues_are_all_found():
    # the head alone: J J^T is a Kronecker product with the identity over the outputs
    model, data = network("torch_batch"), batch("torch_batch", 9)
    values = spectrum(model, data, kind="fisher", params="3")
    assert float(values[-1] - values[-2]) < 1e-10
    top = top_eigenvalue(model, functional.cross_entropy, data, "fisher", k=4, params="3", tol=1e-6)
    assert torch.allclose(top.values, values.flip(0)[:4], rtol=1e-6)


def test_more_eigenvalues_than_the_rank_include_zeros():
    model, data = network("torch_batch"), batch("torch_batch", 3)
    values = spectrum(model, data)
    top = top_eigenvalue(model, functional.cross_entropy, data, k=6, tol=1e-6)
    assert torch.allclose(top.values, values.flip(0)[:6], atol=1e-8)
    gram = top.vectors.T @ top.vectors
    assert torch.allclose(gram, torch.eye(6, dtype=torch.float64), atol=1e-6)


def test_squared_error_gauss_newton_is_the_fisher():
    model, (inputs, labels) = network("conv2d"), batch("conv2d")
    target = functional.one_hot(labels, 2).double()
    ggn, fisher = (
        top_eigenvalue(model, "squared_error", (inputs, target), kind=kind, tol=1e-8)
        for kind in ("ggn", "fisher")
    )
    assert ggn.value == pytest.approx(fisher.value, rel=1e-8)


def test_output_space_is_used_only_where_it_is_right():
    def space(kind, which="largest", data=None, loss=functional.cross_entropy):
        data = batch("torch_batch", 5) if data is None else data
        made = operator(network("torch_batch"), loss, data, kind=kind)
        return type(search_space(made, which, 1))

    assert space("fisher") is space("ggn", "magnitude") is OutputSpace
    assert space("hessian") is space("fisher", "smallest") is space("ggn", "both") is ParameterSpace
    assert space("fisher", data=[batch("torch_batch", 5)] * 2) is ParameterSpace
    assert space("fisher", data=batch("torch_batch", 50)) is ParameterSpace  # more outputs
    assert space("ggn", loss=lambda f, y: f.sin().square().mean()) is ParameterSpace


def wide_net(width=16, inputs=8, classes=3):
    torch.manual_seed(0)
    layers = [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, classes)]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, inputs, generator=generator)
    return nn.Sequential(*layers), (x, torch.randint(classes, (256,), generator=generator))


@pytest.mark.parametrize("kind", KINDS)
def test_warm_start_gives_the_eigenvalue_of_all_data(kind):
    model, data = wide_net()
    expected = spectrum(model.double(), (data[0].double(), data[1]), kind=kind)[-1]
    seen = []
    top = top_eigenvalue(
        model.float(), functional.cross_entropy, data, kind=kind, progress=seen.append
    )
    assert top.converged
    assert top.residual <= 1e-3
    assert top.value == pytest.approx(float(expected), rel=1e-3)
    # at most 14 products and a lift on an eighth of the data, and one J v to bring them over
    assert 0 < top.matvecs - len(seen) <= 14.5 / 8 + 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_stopping_at_the_value_is_right_and_sooner(kind, seed):
    model, data = wide_net()
    torch.manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    expected = spectrum(model.double(), (data[0].double(), data[1]), kind=kind)[-1]
    sooner, later = (
        top_eigenvalue(model, functional.cross_entropy, data, kind=kind, stop=stop)
        for stop in ("value", "residual")
    )
    assert sooner.converged
    assert sooner.matvecs <= later.matvecs
    assert sooner.value == pytest.approx(float(expected), rel=1e-3)
    assert sooner.residual <= 40e-3  # the square of it, over the gap, is the value's error
    assert later.residual <= 1e-3


@pytest.mark.parametrize("width", [8, 600])  # searched among parameters, and among outputs
@pytest.mark.parametrize("mean", [0.0, 1.0])  # samples of a part that agree on nothing, or on much
def test_warm_start_does_not_hide_what_the_part_lacks(width, mean):
    # the samples that a part of the data leaves out excite inputs that its own never touch
    torch.manual_seed(0)
    inputs, labels = torch.zeros(256, width, dtype=torch.float64), torch.randint(3, (256,))
    part, others = torch.randperm(256, generator=torch.Generator().manual_seed(0)).split([32, 224])
    half = width // 2
    inputs[part, :half] = mean + torch.randn(32, half, dtype=torch.float64)
    inputs[others[:32], half:] = 3 * (mean + torch.randn(32, half, dtype=torch.float64))
    model = nn.Linear(width, 3, bias=False).double()
    for kind in KINDS:
        expected = spectrum(model, (inputs, labels), kind=kind)[-1]
        top = top_eigenvalue(model, functional.cross_entropy, (inputs, labels), kind=kind)
        assert top.value == pytest.approx(float(expected), rel=1e-3)


def test_wrong_start_is_left():
    # an eigenvector, but of the smallest eigenvalue
    model, data = network("residual"), batch("residual", 9)
    matrix = dense(model, functional.cross_entropy, data, kind="hessian")
    values, vectors = torch.linalg.eigh(matrix)
    for start in (vectors[:, 0], vectors[:, :2]):
        top = top_eigenvalue(
            model, functional.cross_entropy, data, kind="hessian", start=start, tol=1e-5
        )
        assert top.value == pytest.approx(float(values[-1]), rel=1e-5)


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_warm_start_saves_products(kind):
    model, data = wide_net()
    cold = top_eigenvalue(model, functional.cross_entropy, data, kind=kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3 * torch.randn_like(parameter))
    warm = top_eigenvalue(model, functional.cross_entropy, data, kind=kind, start=cold)
    again = top_eigenvalue(model, functional.cross_entropy, data, kind=kind)
    assert warm.matvecs < again.matvecs
    assert warm.value == pytest.approx(again.value, rel=1e-3)


def test_too_few_products_are_said():
    model, data = wide_net()
    with pytest.warns(NormscopeWarning, match="max_products"):
        top = top_eigenvalue(model, functional.cross_entropy, data, kind="hessian", max_products=2)
    assert not top.converged
    assert top.residual > 1e-3
    assert top.matvecs <= 2 + 14 / 8
    assert "NOT CONVERGED" in str(top)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("stop", ["residual", "value"])
@pytest.mark.parametrize("which", ["largest", "smallest", "both", "magnitude"])
@pytest.mark.parametrize("tol", [1e-6, 0.02])
def test_warning_is_true_for_all_numbers_of_products(which, stop, k, tol):
    model, data = wide_net()
    for products in (4 * k, 4 * k + 3):
        options = {"which": which, "stop": stop, "k": k, "tol": tol, "max_products": products}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            top = top_eigenvalue(model, functional.cross_entropy, data, kind="hessian", **options)
        assert top.converged == (not caught)
        if caught:
            said = re.fullmatch(
                r"the (?:worst of the \d )?(largest|smallest|outermost|dominant) eigenvalues? "
                r"of the hessian has (a relative residual|an estimated relative error) of (\S+) "
                r"after \d+ products, above (10 times )?the tolerance (\S+)"
                r"( and cannot be distinguished from zero)?; raise max_products or tol\.",
                str(caught[0].message),
            )
            measured = top.residual if "residual" in said[2] else float(top.errors.max())
            assert float(said[3]) == pytest.approx(measured, rel=0.06)
            assert float(said[5]) == tol
            assert measured > (10 * tol if said[4] else tol)
            assert bool(said[6]) == (top.residual >= 1)


def test_warning_says_where_an_eigenvalue_cannot_be_distinguished_from_zero():
    model, data = wide_net()
    with pytest.warns(
        NormscopeWarning, match="above the tolerance 0.001 and cannot be distinguished from zero;"
    ):
        top = top_eigenvalue(
            model.double(), "cross_entropy", data, kind="ggn", which="smallest", max_products=20
        )
    assert top.residual >= 1


def test_warning_counts_the_eigenvalues_that_are_missing():
    model, data = network("torch_batch"), batch("torch_batch")
    with pytest.warns(NormscopeWarning, match="only 2 of the 4 largest eigenvalues of the hessian"):
        top = top_eigenvalue(
            model, functional.cross_entropy, data, kind="hessian", k=4, max_products=2
        )
    assert len(top.values) == 2
    assert not top.converged


def test_same_seed_gives_the_same_result():
    model, data = wide_net()
    one, again = (top_eigenvalue(model, functional.cross_entropy, data) for _ in range(2))
    assert one.value == again.value
    assert torch.equal(one.vectors, again.vectors)


def test_whole_loss_has_a_top_eigenvalue():
    model, (inputs, labels) = network("torch_batch"), batch("torch_batch")
    loss = whole_loss(lambda net, b: functional.cross_entropy(net(b[0]), b[1]))
    top = top_eigenvalue(model, loss, (inputs, labels), kind="hessian", tol=1e-6)
    expected = spectrum(model, (inputs, labels), kind="hessian")[-1]
    assert top.value == pytest.approx(float(expected), rel=1e-6)


def test_zero_curvature_is_zero():
    model = nn.Linear(3, 2).double()
    data = (torch.randn(4, 3).double(), torch.tensor([0, 1, 0, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        top = top_eigenvalue(model, lambda f, y: f.mean(), data, kind="hessian")
    assert top.value == 0.0


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_train_mode_fisher_is_that_of_mean_field_theory(gamma):
    # lambda_max ~ N gamma^2 / (2 pi): only the head's mean direction survives batch statistics
    width = 300
    torch.manual_seed(0)
    layers = []
    for fan_in, fan_out in ((200, width), (width, width)):
        layers += [nn.Linear(fan_in, fan_out), nn.BatchNorm1d(fan_out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.constant_(module.weight, gamma)
    data = (torch.randn(300, 200), torch.zeros(300, dtype=torch.long))
    # the theory is of the weights; biases and gammas add about 2 to lambda_max at any width
    weights = [f"{place}.weight" for place in (0, 3, 6)]
    top = top_eigenvalue(model, functional.cross_entropy, data, "fisher", params=weights)
    assert top.value == pytest.approx(width * gamma**2 / (2 * math.pi), rel=0.04)
    frozen = top_eigenvalue(
        model, functional.cross_entropy, data, "fisher", "frozen", params=weights
    )
    assert frozen.value > 1.5 * top.value


def test_one_graph_is_alive_at_a_time():
    model = network("torch_batch")
    alive = []
    outputs = []

    def before(module, inputs):
        alive.append(sum(ref() is not None for ref in outputs))

    def after(module, inputs, output):
        outputs.append(weakref.ref(output))

    model.register_forward_pre_hook(before)
    model[0].register_forward_hook(after)
    data = [batch("torch_batch", 5, seed) for seed in range(6)]
    gc.disable()  # graphs must go by themselves, not when the collector happens to run
    try:
        for kind in KINDS:
            top_eigenvalue(model, functional.cross_entropy, data, kind=kind, tol=0.1)
    finally:
        gc.enable()
    assert len(alive) > 30
    assert max(alive) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_products_leave_nothing_behind(kind):
    made = operator(network("conv2d"), functional.cross_entropy, batch("conv2d"), kind=kind)
    vector = torch.ones(made.shape[0], dtype=torch.float64)

    def tensors_alive():
        gc.collect()
        return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())

    made @ vector
    before = tensors_alive()
    for _ in range(10):
        made @ vector
    assert tensors_alive() <= before  # fewer if garbage of an earlier test was freed meanwhile


def test_progress_sees_the_estimate_grow():
    model, data = wide_net()
    seen = []
    top = top_eigenvalue(
        model, functional.cross_entropy, data, kind="hessian", progress=seen.append
    )
    assert [step.done for step in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].value == top.value
    assert seen[-1].residual == top.residual
    assert seen[0].residual > seen[-1].residual


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": 0}, InputError, "k must be"),
        ({"k": 10**6}, InputError, "k must be"),
        ({"tol": 0.0}, InputError, "tol must be"),
        ({"max_products": 0}, InputError, "max_products"),
        ({"stop": "values"}, UnknownNameError, "did you mean 'value'"),
        ({"which": "largst"}, UnknownNameError, "did you mean 'largest'"),
        ({"start": [1.0]}, ArgumentTypeError, "start must be"),
        ({"start": torch.ones(3)}, InputError, "one row per parameter"),
        ({"kind": "fischer"}, UnknownNameError, "did you mean 'fisher'"),
        ({"mode": "test"}, UnknownNameError, "Choices: as_is, eval, frozen, train"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        top_eigenvalue(
            network("torch_batch"), functional.cross_entropy, batch("torch_batch"), **options
        )


def test_start_is_not_kept_beside_its_copy_in_the_basis(monkeypatch):
    module = importlib.import_module("normscope.curvature.top_eigenvalue")
    starts, alive = [], []
    own_start, own_times = module.start_block, ParameterSpace.times

    def watched_start(*given):
        block = own_start(*given)
        starts.append(weakref.ref(block))
        return block

    def watched_times(self, vector):
        alive.append(starts[-1]() is not None)
        return own_times(self, vector)

    monkeypatch.setattr(module, "start_block", watched_start)
    monkeypatch.setattr(ParameterSpace, "times", watched_times)
    model, data = network("residual"), batch("residual", 9)
    assert top_eigenvalue(model, functional.cross_entropy, data, kind="hessian").converged
    assert len(alive) > 2
    assert not any(alive)


@pytest.mark.parametrize("kind", KINDS)
def test_without_vectors_the_values_are_the_same_and_nothing_is_lifted(kind, monkeypatch):
    problem = network("torch_batch"), functional.cross_entropy, batch("torch_batch", 9)
    both = top_eigenvalue(*problem, kind=kind, k=2)
    for space in (OutputSpace, ParameterSpace):
        monkeypatch.setattr(space, "lift", lambda *_: pytest.fail("lifted"))
    alone = top_eigenvalue(*problem, kind=kind, k=2, vectors=False)
    assert torch.equal(alone.values, both.values)
    assert torch.equal(alone.residuals, both.residuals)
    assert both.vectors.shape == (len(both.vectors), 2)
    assert alone.vectors.shape == (len(both.vectors), 0)
    with pytest.raises(InputError, match="start has no vectors"):
        top_eigenvalue(*problem, kind=kind, start=alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_gives_the_value_that_it_can_and_says_so(kind, dtype):
    torch.manual_seed(0)
    layers = nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
    model = nn.Sequential(*layers)
    data = torch.randn(128, 20), torch.arange(128) % 10
    expected = top_eigenvalue(model, "cross_entropy", data, kind).value
    with pytest.warns(NormscopeWarning, match="half precision"):
        top = top_eigenvalue(model.to(dtype), "cross_entropy", data, kind, tol=1e-4)
    assert not top.converged
    assert top.matvecs < 30  # it does not go on where rounding hides all
    assert top.value == pytest.approx(expected, rel=0.02)
    assert top.vectors.dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["torch_batch", "residual"])
def test_inference_mode_around_a_measurement_changes_nothing(name, kind):
    problem = network(name), functional.cross_entropy, batch(name, 9)
    expected = top_eigenvalue(*problem, kind=kind)
    with torch.inference_mode():
        found = top_eigenvalue(*problem, kind=kind)
    assert found.value == expected.value > 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"vectors": "no"}, "vectors must be True or False, got 'no'"),
        ({"k": 1.5}, "k must be an integer, got 1.5"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"max_products": 5.5}, "max_products must be an integer, got 5.5"),
        ({"tol": "0.1"}, "tol must be a number, got '0.1'"),
        ({"k": True}, "k must be an integer, got True"),
        ({"progress": "yes"}, "progress must be a function, True, False or None, got 'yes'"),
        ({"params": 3}, "params takes names of parameters or modules, and parameters, got int"),
    ],
)
def test_arguments_of_another_type_are_refused(wrong, sentence):
    problem = network("torch_batch"), functional.cross_entropy, batch("torch_batch", 9)
    with pytest.raises(ArgumentTypeError, match=re.escape(sentence)):
        top_eigenvalue(*problem, **wrong)


@pytest.mark.parametrize("tol", [1e-7, 1e-12])
@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_tolerance_below_rounding_is_not_said_to_be_met(kind, tol):
    model, data = wide_net()
    with pytest.warns(NormscopeWarning, match="single precision rounding hides the rest"):
        found = top_eigenvalue(model, functional.cross_entropy, data, kind=kind, tol=tol)
    assert not found.converged
    exact = operator(model.double(), functional.cross_entropy, (data[0].double(), data[1]), kind)
    vector = found.vectors[:, 0].double()
    vector /= vector.norm()
    true = float((exact @ vector - found.value * vector).norm()) / found.value
    assert true <= 1e-5  # as far as single precision goes
    assert found.residual >= 0.03 * true


def test_curvature_beyond_the_range_of_numbers_is_refused():
    model = nn.Sequential(nn.Linear(6, 60, bias=False), nn.ReLU(), nn.Linear(60, 3, bias=False))
    data = 1e12 * torch.rand(160, 6), torch.zeros(160, 3)
    with pytest.raises(InputError, match=r"scale the loss or the data, or measure model\.double"):
        top_eigenvalue(model, "squared_error", data)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (nn.Linear, "got the class Linear; create an instance: Linear"),
        ("vgg", "got the string 'vgg'; build a registered model with normscope.models.build"),
        (None, "must be an nn.Module, got NoneType"),
    ],
)
def test_what_is_no_model_is_refused_in_a_sentence(model, sentence):
    data = batch("torch_batch")
    with pytest.raises(ArgumentTypeError, match=re.escape(sentence)):
        top_eigenvalue(model, functional.cross_entropy, data)
    with pytest.raises(ArgumentTypeError, match="the class CrossEntropyLoss; create an instance"):
        top_eigenvalue(network("torch_batch"), nn.CrossEntropyLoss, data)


def test_a_start_that_is_not_finite_is_blamed():
    model = network("torch_batch")
    size = sum(p.numel() for p in model.parameters())
    start = torch.full((size,), math.nan, dtype=torch.float64)
    with pytest.raises(InputError, match="start must be finite"):
        top_eigenvalue(model, functional.cross_entropy, batch("torch_batch", 9), start=start)


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
def test_a_parameter_without_entries_changes_nothing(kind):
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(4, 3)), (torch.randn(6, 4), torch.arange(6) % 3)
    expected = top_eigenvalue(model, "cross_entropy", data, kind=kind).value
    model.register_parameter("empty", nn.Parameter(torch.empty(0)))
    assert top_eigenvalue(model, "cross_entropy", data, kind=kind).value == pytest.approx(expected)
