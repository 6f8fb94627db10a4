import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from normscope.curvature import operator, top_eigenvalue
from normscope.layers import BatchNorm1d

NORMS = {
    "none": lambda width: nn.Identity(),
    "batch": nn.BatchNorm1d,
    "ours": BatchNorm1d,
    "layer": nn.LayerNorm,
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The networks here are tiny: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


networks = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(sorted(NORMS)),
        "mode": st.sampled_from(["train", "frozen", "eval"]),
        "widths": st.lists(st.integers(2, 4), min_size=2, max_size=4),
        "samples": st.integers(3, 8),
        "seed": st.integers(0, 1000),
    }
)


def built(case):
    torch.manual_seed(case["seed"])
    layers = []
    for fan_in, fan_out in zip(case["widths"], case["widths"][1:], strict=False):
        layers += [nn.Linear(fan_in, fan_out), NORMS[case["norm"]](fan_out), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(case["widths"][-1], 3)).double()
    inputs = torch.randn(case["samples"], case["widths"][0], dtype=torch.float64)
    return model, (inputs, torch.randint(3, (case["samples"],)))


@settings(max_examples=25, deadline=None)
@given(networks, st.sampled_from(["fisher", "ggn", "hessian"]))
def test_curvature_is_symmetric_and_linear(case, kind):
    model, data = built(case)
    made = operator(model, functional.cross_entropy, data, kind=kind, mode=case["mode"])
    left, right = torch.randn(2, made.shape[0], dtype=torch.float64)
    scale = float((made @ left).norm() * right.norm()) + 1e-12
    assert abs(float(left @ (made @ right) - right @ (made @ left))) < 1e-10 * scale + 1e-12
    both = made @ (2 * left - right)
    assert torch.allclose(both, 2 * (made @ left) - made @ right, rtol=1e-8, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(networks, st.sampled_from(["fisher", "ggn"]))
def test_fisher_and_gauss_newton_are_positive_semidefinite(case, kind):
    model, data = built(case)
    made = operator(model, functional.cross_entropy, data, kind=kind, mode=case["mode"])
    block = torch.randn(made.shape[0], 4, dtype=torch.float64)
    forms = (block * (made @ block)).sum(0)
    assert bool((forms >= -1e-12 * (block * block).sum(0)).all())


@settings(max_examples=15, deadline=None)
@given(networks)
def test_no_rayleigh_quotient_exceeds_the_top_eigenvalue(case):
    model, data = built(case)
    options = {"kind": "hessian", "mode": case["mode"]}
    made = operator(model, functional.cross_entropy, data, **options)
    top = top_eigenvalue(model, functional.cross_entropy, data, tol=1e-5, **options)
    block = torch.randn(made.shape[0], 8, dtype=torch.float64)
    quotients = (block * (made @ block)).sum(0) / (block * block).sum(0)
    assert float(quotients.max()) <= top.value + 1e-4 * abs(top.value)


@settings(max_examples=15, deadline=None)
@given(networks, st.floats(0.1, 10.0))
def test_weights_before_batch_norm_scale_the_fisher_inversely(case, factor):
    # f(a w) = f(w), so J(a w) = J(w) / a for the weight and bias that feed the norm layer
    case = case | {"norm": "batch", "mode": "train"}
    model, data = built(case)
    model[1].eps = 1e-30  # exact invariance needs none, which torch refuses
    names = ["0.weight", "0.bias"]
    before = operator(model, functional.cross_entropy, data, params=names)
    vector = torch.randn(before.shape[0], dtype=torch.float64)
    expected = (before @ vector) / factor**2
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.mul_(factor)
    after = operator(model, functional.cross_entropy, data, params=names)
    assert torch.allclose(after @ vector, expected, rtol=1e-6, atol=1e-9 * float(expected.norm()))
