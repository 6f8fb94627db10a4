"""Check a statement by name, on given tensors or on random cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.registry import unknown_name
from normscope.theorems.layer_case import LayerCase, as_vector
from normscope.theorems.statement import THEOREMS, Statement, verdict
from normscope.theorems.verdict import Verdict, Verdicts, worst
from normscope.validation import as_seed

# all names that some statement takes, so that one set of tensors serves all statements
TENSORS = ("y", "g", "H", "gamma", "beta", "eps", "bound", "start", "optimum")
LARGEST_BATCH = 128  # of random cases


@interrupt_safe
def check(
    name: str,
    form: str = "exact",
    *,
    variant: str = "",
    cases: int = 200,
    seed: int = 0,
    **tensors: Any,
) -> Verdict:
    """Check whether a statement holds on given tensors, or without any on random cases.

    Args:
        name: fact_c1, fact_c2, theorem_4_1, theorem_4_2, theorem_4_4, theorem_c1 or lemma_4_5.
        form: "exact": the corrected statement, for any eps; "printed": as in the paper; "article":
            as in the encyclopaedia article.
        variant: for theorem_4_2 "norm_preserving", its second form.
        cases: number of random cases, if no tensors are given.
        seed: of the random cases.
        **tensors: y (the batch of one unit before normalization), g (the gradient by the layer's
            output), H (the Hessian by it: a matrix or a function vector -> product), gamma, beta,
            eps, bound (of the input matrix's spectral norm); for lemma_4_5 start and optimum.
            Tensors that the statement does not need are ignored.

    Returns:
        The verdict; for random cases that of the worst, which holds if all do, with the counts.

    Raises:
        UnknownNameError: if there is no such statement, form or tensor.
        InputError: if a tensor is missing or cannot be used.

    >>> found = check("theorem_4_1", y=[0.0, 1.0, 5.0], g=[1.0, 0.0, 2.0], gamma=2.0, eps=1e-5)
    >>> found.kind, found.holds
    ('identity', True)
    >>> check("theorem_4_1", form="printed", cases=20).failures
    20
    """
    theorem = THEOREMS[name]
    if not tensors:
        return worst(check_cases(name, form, variant=variant, cases=cases, seed=seed))
    for given in tensors:
        if given not in TENSORS:
            raise unknown_name("tensor", given, TENSORS)
    return _check(theorem, form, variant, tensors)


def check_cases(
    name: str,
    form: str = "exact",
    *,
    variant: str = "",
    cases: int = 200,
    seed: int = 0,
    eps: float | None = None,
    **choices: Any,
) -> Verdicts:
    """Check a statement on random cases, with one verdict for each.

    Args:
        name: of the statement.
        form: "exact", "printed" or "article".
        variant: for theorem_4_2 "norm_preserving".
        cases: number of cases.
        seed: of the cases; equal seeds give equal cases to every statement.
        eps: of every case; None for various ones in the exact form, and 0 in the others, so that
            no form fails because of eps.
        **choices: further arguments of `random_case`.

    Returns:
        The verdicts, in order.

    Raises:
        InputError: if there is no case to try.
    """
    theorem = THEOREMS[name]
    if cases < 1:
        raise InputError(f"cases must be at least 1, got {cases}.")
    generator = torch.Generator().manual_seed(as_seed(seed))
    eps = 0.0 if eps is None and form != "exact" else eps
    every = (random_case(generator, eps=eps, **choices) for _ in range(cases))
    return Verdicts(_check(theorem, form, variant, tensors) for tensors in every)


def _check(theorem: Statement, form: str, variant: str, tensors: dict[str, Any]) -> Verdict:
    missing = [name for name in theorem.needs if tensors.get(name) is None]
    if missing:
        raise InputError(
            f"{theorem.__name__} needs {', '.join(theorem.needs)}; {', '.join(missing)} is missing."
        )
    own = {name: value for name, value in tensors.items() if name in theorem.tensors}
    if "g" in theorem.tensors and own.get("g") is None:
        own["g"] = torch.zeros_like(as_vector(own["y"], "y"))  # Fact C.2 needs none
    case = theorem.case(**own)
    if form != "exact" and isinstance(case, LayerCase) and not case.units.varies.all():
        raise InputError(
            f"y does not vary, and {theorem.__name__} in its {form} form divides by its deviation."
        )
    return verdict(theorem, form, variant, theorem(case, form, variant))


def random_case(
    generator: torch.Generator,
    *,
    batch_size: int | None = None,
    eps: float | None = None,
    convex: bool | None = None,
) -> dict[str, Any]:
    """Return random tensors for every statement.

    Batches of 2 to 128 values, standard deviations and gradients over six decades, gamma of either
    sign from a tenth to ten times the deviation, gradients aligned with the batch or not, Hessians
    of any rank, convex or not, weights in few or many dimensions.

    Args:
        generator: of random numbers.
        batch_size: None for a random one.
        eps: None for 0, 1e-5, or a share of the variance.
        convex: whether the Hessian is positive semidefinite; None for either.

    Returns:
        The tensors by name.
    """
    m = _integer(generator, 2, LARGEST_BATCH) if batch_size is None else batch_size
    deviation = 10 ** _uniform(generator, -3, 3)
    y = deviation * (_normal(generator, m) + _uniform(generator, -3, 3))
    variance = float(y.var(correction=0))
    if eps is None:
        choices = (0.0, 1e-5, variance * 10 ** _uniform(generator, -4, 1))
        eps = choices[_integer(generator, 0, 2)]
    gamma = (variance + eps) ** 0.5 * 10 ** _uniform(generator, -1, 1)
    sign = 1 if _uniform(generator, 0, 1) < 0.5 else -1
    aligned = _uniform(generator, -2, 2) * (y - y.mean()) / variance**0.5
    size = _integer(generator, 1, 50)
    return {
        "y": y,
        "g": 10 ** _uniform(generator, -3, 3) * (_normal(generator, m) + aligned),
        "H": 10 ** _uniform(generator, -3, 3) * _hessian(generator, m, convex),
        "gamma": sign * gamma,
        "beta": _uniform(generator, -3, 3),
        "eps": eps,
        "bound": 10 ** _uniform(generator, -2, 2),
        "start": _normal(generator, size),
        "optimum": 10 ** _uniform(generator, -2, 2) * _normal(generator, size),
    }


def _hessian(generator: torch.Generator, m: int, convex: bool | None) -> Tensor:
    root = _normal(generator, m * _integer(generator, 1, m)).reshape(m, -1)
    matrix = root @ root.T / root.shape[1]
    if convex is None:
        convex = _uniform(generator, 0, 1) < 0.5
    if convex:
        return matrix
    other = _normal(generator, m * m).reshape(m, m)
    return matrix + (other + other.T) / 2


def _normal(generator: torch.Generator, size: int) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float64)


def _uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def _integer(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))
