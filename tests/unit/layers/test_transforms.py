"""What the layers ask PyTorch about running transforms."""

from __future__ import annotations

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from normscope.layers.transforms import (
    belongs_to_innermost_transform,
    forward_mode_active,
    tracing_active,
    transform_active,
)

# The first use of forward mode makes PyTorch script its own decompositions.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

X = torch.ones(2, 3)


def _seen_inside(transform, question):
    answers = []

    def function(x):
        answers.append(question(x))
        return x.sum()

    transform(function)
    return answers


TRANSFORMS = {
    "grad": lambda f: func.grad(f)(X),
    "vjp": lambda f: func.vjp(f, X),
    "jvp": lambda f: func.jvp(f, (X,), (X,)),
    "vmap": lambda f: func.vmap(f)(X),
    "jacrev": lambda f: func.jacrev(f)(X),
    "jacfwd": lambda f: func.jacfwd(f)(X),
    "functionalize": lambda f: func.functionalize(f)(X),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_active_is_true_only_inside(name):
    assert not transform_active()
    assert _seen_inside(TRANSFORMS[name], lambda _: transform_active()) == [True]
    assert not transform_active()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_argument_belongs_to_its_transform_and_captured_tensor_does_not(name):
    captured = torch.zeros(2)

    def question(x):
        return belongs_to_innermost_transform(x), belongs_to_innermost_transform(captured)

    assert _seen_inside(TRANSFORMS[name], question) == [(True, False)]


def test_tensor_of_outer_transform_does_not_belong_to_inner_one():
    answers = []

    def outer(x):
        def inner(y):
            answers.append((belongs_to_innermost_transform(x), belongs_to_innermost_transform(y)))
            return y.sum()

        return func.grad(inner)(x * 2)

    func.vmap(outer)(X)
    assert answers == [(False, True)]


def test_no_tensor_belongs_to_a_transform_outside_of_any():
    assert not belongs_to_innermost_transform(X)


def test_forward_mode_is_active_only_inside_a_dual_level():
    assert not forward_mode_active()
    with forward_ad.dual_level():
        assert forward_mode_active()
    assert not forward_mode_active()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_forward_mode_is_active_inside_jvp_and_jacfwd_only(name):
    expected = name in ("jvp", "jacfwd")
    assert _seen_inside(TRANSFORMS[name], lambda _: forward_mode_active()) == [expected]


def test_forward_mode_is_active_in_a_gradient_inside_jvp():
    def outer(x):
        return func.grad(lambda y: y.sum() * forward_mode_active())(x)

    assert torch.equal(func.jvp(outer, (X,), (X,))[0], torch.ones_like(X))


def test_tracing_is_active_under_make_fx():
    answers = []

    def function(x):
        answers.append(tracing_active())
        return x + 1

    make_fx(function)(X)
    assert answers == [True]
    assert not tracing_active()


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace_method` is deprecated:DeprecationWarning")
def test_tracing_is_active_under_jit_trace():
    answers = []

    def function(x):
        answers.append(tracing_active())
        return x + 1

    torch.jit.trace(function, X, check_trace=False)
    assert answers == [True]


@pytest.mark.usefixtures("fresh_compiler")
def test_transform_active_is_a_constant_of_the_compiled_graph():
    def inside(x):
        return x.sum() * (2.0 if transform_active() else 1.0)

    def both(x):
        return func.grad(inside)(x), inside(x)

    compiled = torch.compile(both, backend="eager", fullgraph=True)
    gradient, value = compiled(X)
    assert torch.equal(gradient, torch.full_like(X, 2.0))
    assert value.item() == X.sum().item()
