"""Models of any size: the sizes they compute are the sizes torch finds."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.errors import ShapeError
from normscope.models import build

small = st.integers(1, 6)


@settings(max_examples=40, deadline=None)
@given(
    depth=small,
    width=small,
    outputs=small,
    input_shape=st.lists(small, min_size=1, max_size=3),
    seed=st.integers(-(2**63), 2**64 - 1),
)
def test_fully_connected_of_any_size_has_the_parameters_of_its_matrices(
    depth, width, outputs, input_shape, seed
):
    options = {"depth": depth, "width": width, "outputs": outputs, "input_shape": input_shape}
    network = build("fully_connected", "none", seed, **options)
    sizes = [torch.Size(input_shape).numel(), *(depth - 1) * [width], outputs]
    expected = sum((sizes[i] + 1) * sizes[i + 1] for i in range(depth))
    assert sum(p.numel() for p in network.parameters()) == expected
    assert network(torch.zeros(2, *input_shape)).shape == (2, outputs)


@settings(max_examples=60, deadline=None)
@given(
    image=st.tuples(st.integers(1, 2), st.integers(1, 20), st.integers(1, 20)),
    channels=st.lists(st.integers(1, 3), max_size=3),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
)
def test_conv_net_is_built_exactly_when_torch_can_run_it(image, channels, kernel, stride, padding):
    x = torch.zeros(2, *image)
    for maps in channels:
        room = min(x.shape[2:]) + 2 * padding >= kernel
        if not room:
            break
        x = torch.nn.functional.conv2d(
            x, torch.zeros(maps, x.shape[1], kernel, kernel), None, stride, padding
        )
    else:
        room = True
    options = {"channels": channels, "kernel": kernel, "stride": stride, "padding": padding}
    try:
        network = build("conv_net", "none", input_shape=image, **options)
    except ShapeError:
        assert not room
    else:
        assert room
        assert network.head.in_features == x[0].numel()
        assert network(torch.zeros(2, *image)).shape == (2, 10)


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(["vgg", "vgg16", "preact_resnet18"]),
    image=st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 40)),
    width=st.floats(1e-3, 0.05),
)
def test_image_models_take_images_of_any_size(name, image, width):
    network = build(name, "none", input_shape=image, width=width, outputs=3)
    assert network(torch.zeros(1, *image)).shape == (1, 3)
