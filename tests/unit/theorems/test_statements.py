"""Each statement on tensors, against derivatives taken in another way."""

from functools import partial

import pytest
import torch

from normscope.errors import InputError, ShapeError, UnknownNameError
from normscope.theorems import THEOREMS, check, check_cases, random_case
from normscope.theorems.layer_case import Units

NAMES = [
    "fact_c1",
    "fact_c2",
    "lemma_4_5",
    "theorem_4_1",
    "theorem_4_2",
    "theorem_4_4",
    "theorem_c1",
]
PARTS = [(name, *part) for name in NAMES for part in THEOREMS[name].parts]


def case(seed=0, **choices):
    return random_case(torch.Generator().manual_seed(seed), **choices)


def normalized(y, gamma, beta, eps):
    """Batch normalization by its definition, in plain operations."""
    centred = y - y.mean()
    return gamma * centred / ((centred**2).mean() + eps).sqrt() + beta


def quadratic_loss(tensors):
    """The loss with gradient g and Hessian H by the layer's output, as a function of y."""
    y, eps = tensors["y"], tensors["eps"]
    gamma, beta = tensors["gamma"], tensors["beta"]
    at = normalized(y, gamma, beta, eps).detach()

    def loss(x):
        moved = normalized(x, gamma, beta, eps) - at
        return tensors["g"] @ moved + moved @ tensors["H"] @ moved / 2

    return loss


def test_registry_has_the_seven_statements():
    assert list(THEOREMS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_statement_says_formula_printed_form_and_source(name):
    text = THEOREMS[name].__doc__
    assert ".. math::" in text
    assert "Printed" in text or "print" in text
    assert "Reference: santurkar2018" in text


@pytest.mark.parametrize("eps", [0.0, 1e-5, 10.0])
def test_left_sides_are_the_derivatives_of_the_plain_formula(eps):
    tensors = case(1, batch_size=7, eps=eps)
    loss = quadratic_loss(tensors)
    d = torch.autograd.functional.jacobian(loss, tensors["y"])
    hessian = torch.autograd.functional.hessian(loss, tensors["y"])
    torch.testing.assert_close(check("fact_c1", **tensors).lhs, d, rtol=1e-9, atol=1e-12)
    assert check("theorem_4_1", **tensors).lhs == pytest.approx(float(d @ d), rel=1e-9)
    assert check("theorem_4_2", **tensors).lhs == pytest.approx(float(d @ hessian @ d), rel=1e-8)
    assert check("theorem_4_4", **tensors).lhs == pytest.approx(
        tensors["bound"] ** 2 * float(d @ d), rel=1e-9
    )


def test_jacobian_is_that_of_the_normalized_output():
    tensors = case(2, batch_size=6, eps=0.3)
    expected = torch.autograd.functional.jacobian(
        lambda y: normalized(y, 1.0, 0.0, 0.3), tensors["y"]
    )
    found = check("fact_c2", y=tensors["y"], gamma=5.0, eps=0.3)
    torch.testing.assert_close(found.lhs, expected)
    torch.testing.assert_close(found.rhs, expected)


@pytest.mark.parametrize(("name", "form", "variant"), PARTS)
def test_exact_forms_hold_in_random_cases(name, form, variant):
    found = check(name, form, variant=variant, cases=60, seed=3)
    assert found.cases == 60
    if form == "exact":
        assert found.holds
        assert found.failures == 0
        assert found.unmet < 60
    if found.kind == "identity":
        assert abs(found.slack) < 1e-8


def test_identities_can_fail():
    tensors = case(4, batch_size=9)
    right = check("theorem_4_1", **tensors)
    wrong = check("theorem_4_1", form="printed", **{**tensors, "eps": 0.0})
    assert right.holds
    assert not wrong.holds
    assert wrong.slack < -1e-3


def test_slack_is_relative_to_the_terms():
    tensors = case(5, batch_size=9, eps=0.0)
    small = check("theorem_4_1", form="printed", **tensors)
    large = check("theorem_4_1", form="printed", **{**tensors, "g": 1e6 * tensors["g"]})
    assert large.slack == pytest.approx(small.slack, rel=1e-9)
    assert large.lhs == pytest.approx(1e12 * small.lhs)


def test_hessian_may_be_a_product():
    tensors = case(6, batch_size=11)
    matrix = tensors["H"]
    for name in ("theorem_4_2", "theorem_c1"):
        dense = check(name, **tensors)
        known = check(name, **{**tensors, "H": lambda vector: matrix @ vector})
        assert known.lhs == pytest.approx(dense.lhs, rel=1e-12)
        assert known.rhs == pytest.approx(dense.rhs, rel=1e-9)


def test_arrays_and_lists_are_tensors_too():
    found = check("theorem_4_1", y=[0.0, 1.0, 4.0], g=torch.tensor([1.0, 2.0, 2.0]).numpy())
    assert found.holds


def test_tensors_that_are_not_needed_are_left_aside():
    assert check("lemma_4_5", **case(7)).holds


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"g": None}, InputError, "g is missing"),
        ({"g": [1.0, 2.0]}, ShapeError, "same length"),
        ({"y": [[1.0, 2.0, 3.0]]}, ShapeError, "must be a vector"),
        ({"y": [2.0, 2.0, 2.0]}, InputError, "does not vary"),
        ({"y": [1.0, float("nan"), 2.0]}, InputError, "not a number"),
        ({"eps": -1.0}, InputError, "not negative"),
        ({"H": torch.ones(2, 2)}, ShapeError, "H must be"),
        ({"H": torch.arange(9.0).reshape(3, 3)}, InputError, "symmetric"),
        ({"gama": 1.0}, UnknownNameError, "did you mean 'gamma'"),
        ({"gamma": "much"}, InputError, "gamma must be a number"),
        ({"y": "abc"}, InputError, "y must be a vector of numbers"),
        ({"y": [1e-170, 2e-170, 5e-170]}, InputError, "beyond what float64 holds"),
        ({"y": [1e160, 2e160, 5e160]}, InputError, "beyond what float64 holds"),
        ({"g": [1e160, 0.0, 2e160]}, InputError, "beyond what float64 holds"),
    ],
)
def test_unusable_tensors_are_refused(changes, error, said):
    tensors = {"y": [0.0, 1.0, 4.0], "g": [1.0, 2.0, 2.0], "H": torch.eye(3)}
    with pytest.raises(error, match=said):
        check("theorem_4_2", **{**tensors, **changes})


def test_single_number_is_no_batch():
    with pytest.raises(ShapeError, match="y must be a vector"):
        check("fact_c2", y=5.0)


def test_sides_that_lost_their_digits_are_not_judged():
    """Squares of 1e-160 are rounded to a few digits: no failure of the theorem."""
    with pytest.raises(InputError, match="beyond what float64 holds"):
        check("theorem_4_1", y=[0.0, 1.0, 4.0], g=[1e-160, 0.0, 2.5e-160])


@pytest.mark.parametrize("form", ["printed", "article"])
def test_constant_batch_is_refused_by_forms_without_eps(form):
    tensors = {"y": [2.0, 2.0, 2.0], "g": [1.0, 0.0, 2.0], "eps": 1e-5}
    assert check("theorem_4_1", **tensors).holds
    with pytest.raises(InputError, match="y does not vary"):
        check("theorem_4_1", form=form, **tensors)


def test_theorem_4_4_is_attained():
    """An identity, whose factor 2 - r counts: with r = 1 it would be off by eps."""
    tensors = case(10, batch_size=6, eps=0.5)
    found = check("theorem_4_4", **tensors)
    assert found.kind == "identity"
    y, g, gamma = (tensors[name] for name in ("y", "g", "gamma"))
    loss = quadratic_loss(tensors)
    d = torch.autograd.functional.jacobian(loss, y)
    inputs = tensors["bound"] * torch.outer(d, d) / (d @ d)
    assert torch.linalg.matrix_norm(inputs, 2) == pytest.approx(tensors["bound"])
    attained = float((inputs.T @ d).square().sum())
    assert found.lhs == pytest.approx(attained, rel=1e-10)
    assert found.rhs == pytest.approx(attained, rel=1e-8)
    assert check("theorem_4_4", form="printed", **tensors).kind == "bound"
    small = {
        **tensors,
        "y": 1e-3 * y / float(y.std()),
        "g": g + 5 * (y - y.mean()) / float(y.std()),
    }
    small |= {"eps": 1e-6, "gamma": gamma / abs(gamma)}
    assert abs(check("theorem_4_4", **small).slack) < 1e-8


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'theorem_4_1'"):
        check("theorem_41")
    with pytest.raises(UnknownNameError, match="did you mean 'exact'"):
        check("theorem_4_1", form="exakt")
    with pytest.raises(UnknownNameError, match="norm_preserving"):
        check("theorem_4_2", variant="norm preserving")


def test_article_has_only_its_own_statements():
    with pytest.raises(InputError, match="no form 'article'"):
        check("fact_c1", form="article")
    with pytest.raises(InputError, match="does not have"):
        check("theorem_4_2", form="article", variant="norm_preserving")


def test_large_hessian_by_products_is_refused_where_a_matrix_is_needed():
    y, g = torch.randn(600).double(), torch.randn(600).double()
    assert check("theorem_4_2", y=y, g=g, H=lambda v: 2 * v).holds
    with pytest.raises(InputError, match="up to a batch of 512"):
        check("theorem_c1", y=y, g=g, H=lambda v: 2 * v)


def test_cases_are_the_same_for_the_same_seed():
    first, second, other = (check_cases("theorem_4_1", cases=3, seed=s) for s in (1, 1, 2))
    assert [v.lhs for v in first] == [v.lhs for v in second]
    assert [v.lhs for v in first] != [v.lhs for v in other]
    with pytest.raises(InputError, match="at least 1"):
        check_cases("theorem_4_1", cases=0)


def test_norm_preserving_premise_is_tested_and_reported():
    y, g = torch.tensor([-1.0, 0.0, 2.0, 5.0]), torch.tensor([1.0, -1.0, 2.0, 0.0])
    options = {"y": y, "g": g, "H": torch.eye(4), "variant": "norm_preserving"}
    short = check("theorem_4_2", gamma=0.5, **options)
    assert short.premise_met
    assert short.holds
    long = check("theorem_4_2", gamma=50.0, **options)
    assert long.premise_met is False
    assert not long.refuted
    printed = check("theorem_4_2", form="printed", gamma=50.0, **options)
    assert printed.premise_met
    assert printed.refuted


def test_curvature_in_the_weights_is_largest_where_theorem_c1_says():
    """Explicit input matrices: none beats the maximum, and the one it is attained by reaches it."""
    generator = torch.Generator().manual_seed(8)
    tensors = case(8, batch_size=6)
    found = check("theorem_c1", **tensors)
    loss = quadratic_loss(tensors)
    bound = tensors["bound"]

    def curvature(inputs):
        weights = torch.zeros(inputs.shape[1], dtype=torch.float64)

        def at(w):
            return loss(tensors["y"] + inputs @ w)

        d = torch.autograd.functional.jacobian(at, weights)
        return float(d @ torch.autograd.functional.hessian(at, weights) @ d)

    largest = -float("inf")
    for _ in range(300):
        inputs = torch.randn(6, 4, generator=generator, dtype=torch.float64)
        inputs *= bound / torch.linalg.matrix_norm(inputs, 2)
        largest = max(largest, curvature(inputs))
    assert largest <= found.rhs * (1 + 1e-9)
    identity = curvature(bound * torch.eye(6, dtype=torch.float64))
    assert identity < found.rhs
    assert found.lhs == pytest.approx(found.rhs, rel=1e-8)


def test_lemma_with_the_start_behind_the_origin():
    start, optimum = torch.tensor([-1.0, 1.0]), torch.tensor([2.0, 0.0])
    exact = check("lemma_4_5", start=start, optimum=optimum)
    assert exact.lhs == pytest.approx(2.0)
    assert exact.holds
    assert check("lemma_4_5", form="printed", start=start, optimum=optimum).premise_met is False
    assert check("lemma_4_5", form="article", start=start, optimum=optimum).refuted
    with pytest.raises(InputError, match="optimum must not be zero"):
        check("lemma_4_5", start=start, optimum=torch.zeros(2))
    with pytest.raises(ShapeError, match="one shape"):
        check("lemma_4_5", start=start, optimum=torch.zeros(3))


def test_lemma_takes_weight_matrices():
    start, optimum = torch.randn(3, 4), torch.randn(3, 4)
    assert check("lemma_4_5", start=start, optimum=optimum).holds


@pytest.mark.parametrize("seed", [406, 3246, 16522])
def test_curvature_identity_where_nearly_all_of_a_direction_cancels(seed):
    """Two samples and an eps of 1e-9: J leaves a billionth of d, and rounding is of d's size."""
    generator = torch.Generator().manual_seed(seed)
    y, g = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    root = 1e6 * torch.randn(2, 2, generator=generator, dtype=torch.float64)
    y = y + seed % 11 - 5
    spread = float(y.std(correction=0))
    others = {"gamma": 2.7 * spread, "eps": 1e-9 * spread**2}
    found = check("theorem_4_2", y=y, g=1e-4 * g, H=root @ root.T, beta=0.0, bound=1.0, **others)
    assert found.holds


def test_slack_is_measured_by_terms_of_the_size_of_the_sides():
    """A size far above the sides would let anything hold."""
    ratios = []
    for seed in range(21):
        tensors = case(seed, batch_size=8)
        units = Units(tensors["y"][None], tensors["g"][None], torch.ones(1).double(), 0.0)
        vector = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed)).double()
        first, second, size = units.curvature_terms(vector, partial(torch.mm, mat2=tensors["H"]))
        ratios.append(float(size / (first.abs() + second.abs())))
    assert min(ratios) > 0.5
    assert sorted(ratios)[10] < 10
