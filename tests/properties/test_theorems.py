"""The exact statements on cases that Hypothesis makes: any batch, scale, sign and shape of loss."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.theorems import check

SEEDS = st.integers(0, 2**32 - 1)
DECADES = st.floats(-6, 6)
BATCHES = st.one_of(st.sampled_from([2, 3, 4, 511, 512]), st.integers(2, 512))
GAMMAS = st.one_of(st.floats(0.01, 100), st.floats(-100, -0.01))
HESSIANS = st.sampled_from(["convex", "concave", "indefinite", "identity", "rank one", "zero"])


def hessian(kind, size, generator):
    if kind == "zero":
        return torch.zeros(size, size, dtype=torch.float64)
    if kind == "identity":
        return torch.eye(size, dtype=torch.float64)
    rank = 1 if kind == "rank one" else min(size, 20)
    root = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    matrix = root @ root.T
    if kind == "indefinite":
        return matrix - 2 * matrix.roll((1, 1), (0, 1))
    return -matrix if kind == "concave" else matrix


@st.composite
def units(draw):
    """One unit's tensors: a batch of 2 to 512, its variance over 24 decades, eps from none up."""
    size, seed = draw(BATCHES), draw(SEEDS)
    generator = torch.Generator().manual_seed(seed)
    y, g = torch.randn(2, size, generator=generator, dtype=torch.float64)
    y = 10 ** draw(DECADES) * (y + draw(st.floats(-10, 10)))
    share = draw(st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e3]))
    variance = float(y.var(correction=0))
    along = draw(st.floats(-3, 3)) * (y - y.mean()) / variance**0.5
    return {
        "y": y,
        "g": 10 ** draw(DECADES) * (g + along),
        "H": 10 ** draw(DECADES) * hessian(draw(HESSIANS), size, generator),
        "gamma": draw(GAMMAS) * variance**0.5,
        "beta": draw(st.floats(-5, 5)),
        "eps": share * variance,
        "bound": 10 ** draw(st.floats(-3, 3)),
    }


def holds(name, tensors, **options):
    found = check(name, **options, **tensors)
    if found.kind == "identity":
        assert abs(found.slack) < 1e-8
    assert not found.refuted, found


@given(units())
@settings(max_examples=60, deadline=None)
def test_first_derivatives_hold(tensors):
    holds("fact_c1", tensors)
    holds("fact_c2", tensors)
    holds("theorem_4_1", tensors)
    holds("theorem_4_4", tensors)


@given(units())
@settings(max_examples=60, deadline=None)
def test_second_derivatives_hold(tensors):
    holds("theorem_4_2", tensors)
    holds("theorem_4_2", tensors, variant="norm_preserving")


@given(units())
@settings(max_examples=25, deadline=None)
def test_largest_curvature_holds(tensors):
    holds("theorem_c1", tensors)


@given(units())
@settings(max_examples=30, deadline=None)
def test_papers_bound_without_eps_holds_with_the_true_factor(tensors):
    """The article's form of Theorem 4.1 and the printed (50) are true where eps is zero."""
    tensors["eps"] = 0.0
    holds("theorem_4_1", tensors, form="article")
    holds("theorem_4_2", tensors, form="printed")


@given(SEEDS, st.integers(1, 200), DECADES, DECADES)
@settings(max_examples=60, deadline=None)
def test_lemma_holds(seed, size, start_decade, optimum_decade):
    generator = torch.Generator().manual_seed(seed)
    start, optimum = torch.randn(2, size, generator=generator, dtype=torch.float64)
    weights = {"start": 10**start_decade * start, "optimum": 10**optimum_decade * optimum}
    holds("lemma_4_5", weights)
    holds("lemma_4_5", weights, form="printed")
