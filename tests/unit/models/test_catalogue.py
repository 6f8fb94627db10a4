"""What every model keeps, whatever its name: the contract of ``build``."""

import copy
import hashlib
import inspect
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from normscope.errors import ArgumentTypeError, DuplicateNameError, InputError, UnknownNameError
from normscope.layers import NORMS
from normscope.models import MODELS, architecture, build

NORM_KINDS = ["none", "batch", "noisy", "l1", "l2", "linf", "layer", "group", "rms", "dyt"]
# Small members of each family: (input shape, options).
SMALL = {
    "conv_net": ((3, 15, 15), {"channels": (4, 6, 8)}),
    "deep_linear": ((10,), {"depth": 5}),
    "fully_connected": ((1, 8, 8), {"width": 20}),
    "preact_resnet18": ((3, 8, 8), {"width": 1 / 16}),
    "vgg": ((3, 32, 32), {"width": 1 / 16}),
    "vgg16": ((3, 32, 32), {"width": 1 / 16}),
}


def small(name, norm="batch", seed=0, **options):
    input_shape, own = SMALL[name]
    return build(name, norm, seed, input_shape=input_shape, **{**own, **options})


def weights(network):
    return {
        f"{name}.{key}": value
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear | _ConvNd)
        for key, value in module.named_parameters()
    }


def norm_parameters(network):
    drawn = weights(network)
    return {name: p for name, p in network.named_parameters() if name not in drawn}


def digest(network):
    state = sorted(network.state_dict().items())
    return hashlib.sha256(b"".join(value.numpy().tobytes() for _, value in state)).hexdigest()


def assert_all_equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_models_are_those_tested_here():
    assert list(MODELS) == sorted(SMALL)
    assert set(NORMS) >= set(NORM_KINDS)


@pytest.mark.parametrize("norm", NORM_KINDS)
@pytest.mark.parametrize("name", SMALL)
def test_model_gives_finite_outputs_and_gradients(name, norm):
    input_shape, _ = SMALL[name]
    network = small(name, norm, outputs=7)
    generator = torch.Generator().manual_seed(1)
    output = network(torch.randn(6, *input_shape, generator=generator))
    assert output.shape == (6, 7)
    assert output.isfinite().all()
    output.square().sum().backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    assert network.training


@pytest.mark.parametrize("norm", NORM_KINDS)
@pytest.mark.parametrize("name", SMALL)
def test_model_has_the_same_weights_whatever_the_norm(name, norm):
    assert_all_equal(weights(small(name, norm, seed=3)), weights(small(name, "none", seed=3)))


@pytest.mark.parametrize("initialization", ["glorot", "meanfield"])
@pytest.mark.parametrize("name", SMALL)
def test_model_weights_depend_on_the_seed_alone(name, initialization):
    once = weights(small(name, seed=5, initialization=initialization))
    torch.rand(3)  # the global generator moves on; the weights must not
    assert_all_equal(once, weights(small(name, seed=5, initialization=initialization)))
    other = weights(small(name, seed=6, initialization=initialization))
    differing = [key for key in once if not torch.equal(once[key], other[key])]
    assert set(differing) >= {key for key in once if key.endswith("weight")}


@pytest.mark.parametrize("norm", [kind for kind in NORM_KINDS if kind != "none"])
@pytest.mark.parametrize("name", SMALL)
def test_model_gamma_is_the_initial_scale_and_the_shift_is_zero(name, norm):
    parameters = norm_parameters(small(name, norm, gamma=0.3))
    scales = [value for key, value in parameters.items() if key.endswith("weight")]
    shifts = [value for key, value in parameters.items() if key.endswith("bias")]
    slopes = [value for key, value in parameters.items() if key.endswith("alpha")]
    assert len(scales) > 0
    assert len(shifts) == (0 if norm == "rms" else len(scales))
    assert len(slopes) == (len(scales) if norm == "dyt" else 0)
    assert len(scales) + len(shifts) + len(slopes) == len(parameters)
    assert all((scale == torch.tensor(0.3)).all() for scale in scales)
    assert all((shift == 0).all() for shift in shifts)


@pytest.mark.parametrize("name", SMALL)
def test_model_without_norm_has_weights_only(name):
    network = small(name, "none", gamma=3.0)
    assert norm_parameters(network) == {}
    assert list(network.buffers()) == []


@pytest.mark.parametrize("norm", NORM_KINDS)
@pytest.mark.parametrize("name", SMALL)
def test_build_leaves_the_global_random_state_alone(name, norm):
    before = torch.get_rng_state()
    small(name, norm)
    assert torch.equal(torch.get_rng_state(), before)


def test_build_is_on_the_cpu_whatever_the_default_device_is():
    with torch.device("meta"):
        network = small("fully_connected")
    tensors = [*network.parameters(), *network.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert digest(network) == digest(small("fully_connected"))


def test_build_is_the_same_in_another_process(pytestconfig):
    script = (
        "import torch; torch.manual_seed(9); torch.set_num_threads(1)\n"
        "from tests.unit.models.test_catalogue import SMALL, digest, small\n"
        "print([digest(small(name, seed=2)) for name in SMALL])"
    )
    command = [sys.executable, "-c", script]  # with -c, the working directory is on the path
    ran = subprocess.run(
        command, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == str([digest(small(name, seed=2)) for name in SMALL])


@pytest.mark.parametrize("name", SMALL)
def test_model_survives_deepcopy_and_pickle(name):
    network = small(name)
    for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert_all_equal(twin.state_dict(), network.state_dict())


@pytest.mark.parametrize("name", SMALL)
def test_model_is_a_chain_that_fx_traces(name):
    network = small(name, "none").eval()
    assert isinstance(network, nn.Sequential)
    batch = torch.randn(2, *SMALL[name][0], generator=torch.Generator().manual_seed(0))
    traced = torch.fx.symbolic_trace(network)
    assert torch.equal(traced(batch), network(batch))


def test_build_passes_norm_options_to_every_norm_layer():
    network = small("conv_net", norm_options={"eps": 0.125, "momentum": 0.5})
    layers = [m for m in network.modules() if isinstance(getattr(m, "eps", None), float)]
    assert [(layer.eps, layer.momentum) for layer in layers] == 3 * [(0.125, 0.5)]


@pytest.mark.parametrize("name", ["gamma", "num_features", "dimensions"])
def test_build_refuses_norm_options_that_are_not_free(name):
    with pytest.raises(InputError, match=f"norm_options cannot hold '{name}'"):
        small("fully_connected", norm_options={name: 1})


def test_build_suggests_the_closest_model():
    with pytest.raises(UnknownNameError, match=r"unknown model 'vgg17'; did you mean 'vgg16'\?"):
        build("vgg17")


def test_build_lists_the_options_of_the_model():
    with pytest.raises(UnknownNameError, match=r"option 'widht' of model 'vgg'.*'width'.*outputs"):
        build("vgg", widht=0.5)
    with pytest.raises(UnknownNameError, match=r"option 'activation' of model 'deep_linear'"):
        build("deep_linear", activation="relu")


def test_build_refuses_variances_without_the_meanfield_initialization():
    with pytest.raises(UnknownNameError, match=r"'sigma_w2' of .* initialization 'glorot'"):
        build("fully_connected", initialization="glorot", sigma_w2=1.0)


@pytest.mark.parametrize("depth", [1, 2])
def test_build_refuses_unknown_norm_even_without_hidden_layers(depth):
    with pytest.raises(UnknownNameError, match="unknown normalization 'bach'"):
        build("fully_connected", norm="bach", depth=depth)


def test_build_refuses_unknown_initialization():
    with pytest.raises(UnknownNameError, match="Choices: glorot, meanfield"):
        build("vgg", initialization="he")


def test_build_refuses_seeds_that_are_no_64_bit_integers():
    with pytest.raises(ArgumentTypeError, match="seed must be an integer"):
        build("deep_linear", seed=0.5)
    with pytest.raises(InputError, match="seed must be from"):
        build("deep_linear", seed=2**70)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"outputs": 0}, "outputs must be at least 1"),
        ({"outputs": 2.5}, "outputs must be an integer"),
        ({"input_shape": ()}, "input_shape needs at least one size"),
        ({"input_shape": (3, 0, 32)}, "input_shape needs at least one size"),
        ({"input_shape": 32}, "input_shape must be a tuple"),
    ],
)
@pytest.mark.parametrize("name", SMALL)
def test_build_refuses_sizes_that_cannot_be(name, options, match):
    with pytest.raises((InputError, ArgumentTypeError), match=match):
        build(name, **options)


@pytest.mark.parametrize("name", ["conv_net", "vgg", "vgg16", "preact_resnet18"])
def test_build_refuses_vectors_for_image_models(name):
    with pytest.raises(InputError, match=f"{name} takes images.*use fully_connected"):
        build(name, input_shape=(784,))


@pytest.mark.parametrize("name", ["vgg", "vgg16", "preact_resnet18"])
@pytest.mark.parametrize("width", [0, -1.0, float("nan"), float("inf")])
def test_build_refuses_width_multipliers_that_cannot_be(name, width):
    with pytest.raises(InputError, match="width is a multiplier"):
        build(name, width=width)


def test_model_signature_names_every_option():
    options = inspect.signature(MODELS["conv_net"]).parameters
    expected = "norm seed gamma norm_options initialization input_shape outputs channels kernel"
    expected += " stride padding activation sigma_w2 sigma_b2"
    assert list(options) == expected.split()
    assert options["initialization"].default == "meanfield"
    assert options["channels"].default == (30, 60, 90)
    assert inspect.signature(MODELS["vgg"]).parameters["initialization"].default == "glorot"
    assert MODELS.summary("vgg16").startswith("VGG16 for CIFAR-10")


def test_architecture_refuses_a_name_twice():
    with pytest.raises(DuplicateNameError, match="model 'vgg' is registered already"):

        @architecture(initialization="glorot")
        def vgg(norm):
            return nn.Identity()
