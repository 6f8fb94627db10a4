"""The top eigenvalue by other libraries, each called as its own documentation shows.

A contender is called with a model, inputs, targets and a kind, and answers with the eigenvalue and
the number of products it took. "fisher" is the Gauss-Newton matrix of half the squared distance,
"ggn" that of the cross-entropy; PyHessian knows only Hessians, and gets the first as the Hessian
where the residuals are zero, and not the second.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.problem.loss import cross_entropy, squared_error

SEED = 0
MOST_PRODUCTS = 300  # after which a peer that sets itself no end has missed


@dataclass(frozen=True)
class Question:
    """Which eigenvalue is asked for."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    kind: str

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Whose Gauss-Newton matrix or Hessian it is."""
        return squared_error if self.kind == "fisher" else cross_entropy


Answer = tuple[float, float]  # eigenvalue, products
Contender = Callable[[Question], Answer]


def pyhessian(question: Question, **options: Any) -> Answer:
    """Power iteration; without options at most 100 steps, to a change of 1e-3."""
    from pyhessian import hessian

    # the package's name "hessian" is the class: its module is found so
    source: Any = sys.modules["pyhessian.hessian"]
    targets = question.targets
    if question.kind == "fisher":
        with torch.no_grad():
            targets = question.model(question.inputs)
    count, original = [0], source.hessian_vector_product

    def counted(*arguments: Any) -> Any:
        count[0] += 1
        return original(*arguments)

    source.hessian_vector_product = counted
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about create_graph
            torch.manual_seed(SEED)
            data = (question.inputs, targets)
            matrix = hessian(question.model, question.loss, data=data, cuda=False)
            values, _ = matrix.eigenvalues(**options)
    finally:
        source.hessian_vector_product = original
        question.model.zero_grad(set_to_none=True)
    return float(values[0]), count[0]


def curvlinops_operator(question: Question) -> tuple[Any, float]:
    """Its operator for SciPy, and the factor from its eigenvalues to ours."""
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    fisher = question.kind == "fisher"
    loss = nn.MSELoss() if fisher else nn.CrossEntropyLoss()
    shape = question.model(question.inputs[:2]).shape[1:]
    targets = torch.zeros(len(question.inputs), *shape) if fisher else question.targets
    make = HessianLinearOperator if question.kind == "hessian" else GGNLinearOperator
    parameters = [p for p in question.model.parameters() if p.requires_grad]
    operator = make(question.model, loss, parameters, [(question.inputs, targets)]).to_scipy()
    # torch's mean is over outputs too, and without a half
    return operator, math.prod(shape) / 2 if fisher else 1.0


def start_vector(operator: Any) -> Any:
    import numpy as np

    return np.random.default_rng(SEED).standard_normal(operator.shape[0]).astype(operator.dtype)


def curvlinops(question: Question, **options: Any) -> Answer:
    """SciPy's eigsh on its operator."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator, scale = curvlinops_operator(question)
    count = [0]

    def counted(vector: Any) -> Any:
        count[0] += 1
        if count[0] > MOST_PRODUCTS:
            raise TimeoutError
        return operator @ vector

    wrapped = LinearOperator(operator.shape, matvec=counted, dtype=operator.dtype)
    start = start_vector(operator)
    try:
        (value,) = eigsh(wrapped, k=1, which="LA", v0=start, return_eigenvectors=False, **options)
    except TimeoutError:
        return float("nan"), count[0]
    return float(value) * scale, count[0]


def curvlinops_tuned(question: Question) -> Answer:
    """The same told to be brief: six vectors, a tolerance of 1e-2."""
    return curvlinops(question, ncv=6, tol=1e-2)


def curvlinops_best(question: Question, true_value: float, most: int) -> Contender:
    """The same with the fewest vectors that reach 1e-3 at once, which no user could know."""
    import numpy as np

    operator, scale = curvlinops_operator(question)
    vector = start_vector(operator)
    basis, images = [vector / np.linalg.norm(vector)], []
    while len(images) < most:
        images.append(operator @ basis[-1])
        square = np.array([[each @ image for image in images] for each in basis], dtype=float)
        top = scale * float(np.linalg.eigvalsh((square + square.T) / 2)[-1])
        if abs(top - true_value) <= 1e-3 * abs(true_value):
            break
        new = images[-1].copy()
        for _ in range(2):  # twice is enough
            for each in basis:
                new -= (each @ new) * each
        basis.append(new / np.linalg.norm(new))
    return lambda question: curvlinops(question, ncv=max(3, len(images)), tol=1.0)


def eigenthings_operator(question: Question) -> Any:
    """Its operator, with products detached: its Lanczos would keep the graph of each (20 GB)."""
    operator = attached_operator(question)
    matvec = operator.matvec
    operator.matvec = lambda vector: matvec(vector).detach()
    return operator


def attached_operator(question: Question) -> Any:
    import hessian_eigenthings as library

    data = [(question.inputs, question.targets)]
    if question.kind == "hessian":
        loss = library.supervised_loss(question.loss)
        return library.HessianOperator(question.model, data, loss)
    loss = library.supervised_loss_of_output(question.loss)
    return library.GGNOperator(question.model, data, library.supervised_forward, loss)


def eigenthings(question: Question, **options: Any) -> Answer:
    """Its Lanczos: without options ten eigenvalues in twenty steps."""
    from hessian_eigenthings import lanczos

    found = lanczos(eigenthings_operator(question), which="LA", seed=SEED, **options)
    return float(found.eigenvalues[0]), found.iterations


def eigenthings_tuned(question: Question, true_value: float, most: int) -> Contender:
    """Its Lanczos with the fewest steps that reach 1e-3, which no user could know beforehand."""
    from hessian_eigenthings import lanczos_tridiagonal

    operator = eigenthings_operator(question)
    generator = torch.Generator().manual_seed(SEED)
    start = torch.randn(operator.size, dtype=operator.dtype, generator=generator)
    found = lanczos_tridiagonal(operator, start, most)
    alphas, betas = (
        torch.as_tensor(part, dtype=torch.float64) for part in (found.alphas, found.betas)
    )
    steps = most
    for size in range(1, len(alphas) + 1):
        off = torch.diag(betas[: size - 1], 1)
        top = float(torch.linalg.eigvalsh(torch.diag(alphas[:size]) + off + off.T)[-1])
        if abs(top - true_value) <= 1e-3 * abs(true_value):
            steps = size
            break
    return lambda question: eigenthings(question, k=1, max_iter=steps)


NEEDS = {
    "PyHessian": "pyhessian",
    "PyHessian, tuned": "pyhessian",
    "curvlinops + eigsh": "curvlinops",
    "curvlinops + eigsh, tuned": "curvlinops",
    "curvlinops + eigsh, best vectors": "curvlinops",
    "hessian-eigenthings": "hessian_eigenthings",
    "hessian-eigenthings, best steps": "hessian_eigenthings",
}


def present_peers(question: Question, true_value: float, quick: bool) -> dict[str, Contender]:
    """Those that are installed; the quick run spares itself the long default settings."""
    most = 16 if quick else 40
    makers: dict[str, Callable[[], Contender]] = {
        "PyHessian": lambda: pyhessian,
        "PyHessian, tuned": lambda: functools.partial(pyhessian, maxIter=MOST_PRODUCTS, tol=1e-5),
        "curvlinops + eigsh": lambda: curvlinops,
        "curvlinops + eigsh, tuned": lambda: curvlinops_tuned,
        "curvlinops + eigsh, best vectors": lambda: curvlinops_best(question, true_value, most),
        "hessian-eigenthings": lambda: eigenthings,
        "hessian-eigenthings, best steps": lambda: eigenthings_tuned(question, true_value, most),
    }
    long = {"PyHessian, tuned", "curvlinops + eigsh", "hessian-eigenthings"}
    left_out = long if quick else set()
    if question.kind == "ggn":
        left_out = left_out | {"PyHessian", "PyHessian, tuned"}
    chosen = [name for name in makers if is_installed(NEEDS[name]) and name not in left_out]
    return {name: made for name in chosen if (made := _attempt(name, makers[name])) is not None}


def brief_peers(kind: str) -> dict[str, Contender]:
    """Those that are installed, each for a few products: enough to measure their memory."""
    peers: dict[str, Contender] = {
        "PyHessian": functools.partial(pyhessian, maxIter=3),
        "curvlinops + eigsh": functools.partial(curvlinops, ncv=6, tol=1.0),
        "hessian-eigenthings": functools.partial(eigenthings, k=1, max_iter=6),
    }
    if kind == "ggn":
        del peers["PyHessian"]
    return {name: peer for name, peer in peers.items() if is_installed(NEEDS[name])}


def _attempt(name: str, make: Callable[[], Contender]) -> Contender | None:
    """Make a contender; None, and a line, if the library cannot measure the model."""
    try:
        return make()
    except Exception as error:
        print(f"{name} fails: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return None


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def missing_peers() -> list[str]:
    return sorted({package for package in NEEDS.values() if not is_installed(package)})
