"""A statement by name, on the tensors given or on random cases."""

from __future__ import annotations

from typing import Any

import torch

from normscope.errors import InputError
from normscope.registry import unknown_name
from normscope.theorems.cases import random_case
from normscope.theorems.situation import Situation, as_vector
from normscope.theorems.statement import THEOREMS, Statement, verdict
from normscope.theorems.verdict import Verdict, Verdicts, worst

__all__ = ["check", "check_cases"]

# every name that some statement takes, so that one set of tensors serves them all
TENSORS = ("y", "g", "H", "gamma", "beta", "eps", "bound", "start", "optimum")


def check(
    name: str,
    form: str = "exact",
    *,
    variant: str = "",
    cases: int = 200,
    seed: int = 0,
    **tensors: Any,
) -> Verdict:
    """Whether a statement holds: on these tensors, or without any on random cases.

    Args:
        name: fact_c1, fact_c2, theorem_4_1, theorem_4_2, theorem_4_4, theorem_c1 or lemma_4_5.
        form: "exact": what is true, for any eps; "printed": as the paper has it; "article": as
            the encyclopaedia article has it.
        variant: of theorem_4_2 "norm_preserving": its second form.
        cases: how many random cases, where no tensors are given.
        seed: of the random cases.
        **tensors: y (the batch of one unit before normalization), g (the gradient by the layer's
            output), H (the Hessian by it: a matrix or a function vector -> product), gamma, beta,
            eps, bound (of the input matrix's spectral norm); of lemma_4_5 start and optimum. Those
            a statement does not need are left aside.

    Returns:
        The verdict; of random cases that of the worst, with the counts, holding if all do.

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
    return _verdict(theorem, form, variant, tensors)


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
    """A statement on random cases, one verdict each.

    Args:
        name: of the statement.
        form: "exact", "printed" or "article".
        variant: of theorem_4_2 "norm_preserving".
        cases: how many.
        seed: of the cases; equal seeds give equal cases to every statement.
        eps: of every case; None: various ones for the exact form, and 0, the sources' own setting,
            for the others, so that what fails does not fail by eps.
        **choices: further arguments of `normscope.theorems.cases.random_case`.

    Returns:
        The verdicts, in order.

    Raises:
        InputError: if there is no case to try.
    """
    theorem = THEOREMS[name]
    if cases < 1:
        raise InputError(f"cases must be at least 1, got {cases}.")
    generator = torch.Generator().manual_seed(seed)
    eps = 0.0 if eps is None and form != "exact" else eps
    every = (random_case(generator, eps=eps, **choices) for _ in range(cases))
    return Verdicts(_verdict(theorem, form, variant, tensors) for tensors in every)


def _verdict(theorem: Statement, form: str, variant: str, tensors: dict[str, Any]) -> Verdict:
    missing = [name for name in theorem.needs if tensors.get(name) is None]
    if missing:
        raise InputError(
            f"{theorem.__name__} needs {', '.join(theorem.needs)}; {', '.join(missing)} is missing."
        )
    own = {name: value for name, value in tensors.items() if name in theorem.tensors}
    if "g" in theorem.tensors and own.get("g") is None:
        own["g"] = torch.zeros_like(as_vector(own["y"], "y"))  # the Jacobian needs none
    subject = theorem.subject(**own)
    if form != "exact" and isinstance(subject, Situation) and not subject.units.varies.all():
        raise InputError(
            f"y does not vary, and {theorem.__name__} in its {form} form divides by its deviation."
        )
    return verdict(theorem, form, variant, theorem(subject, form, variant))
