"""Kinds of curvature by name, one function each; a new file in this folder adds one.

A kind is a function registered by ``@KINDS.register``. It takes a `BatchPoint`, the model and loss
on one batch at fixed parameters, and returns the matrix as a `BatchCurvature`. Averaging over
batches, eigenvalues, spectra and traces follow from its products with vectors. The first line of
its docstring is shown by ``normscope list kinds``; see `matrix_name`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from normscope.curvature.chains import ChainJacobian, chain_jacobian
from normscope.curvature.jacobian import GraphJacobian, Jacobian
from normscope.curvature.products import BatchCurvature
from normscope.errors import StateError
from normscope.problem.batch import Batch
from normscope.problem.evaluate import Evaluation, Evaluator
from normscope.problem.loss import Loss
from normscope.problem.outputs import PackedOutput
from normscope.registry import Registry

__all__ = ["KINDS", "BatchPoint", "Kind", "matrix_name", "no_dependence_error"]


@dataclass
class BatchPoint:
    """A model and a loss on one batch, at fixed parameters.

    Args:
        evaluator: evaluates the model without changing it.
        batch: on the model's device.
        number: the batch's number, which fixes its random draws.

    Attributes:
        packed: after `jacobian`, how a structured output became its ``output``; None for a tensor.
    """

    evaluator: Evaluator
    batch: Batch
    number: int = 0
    packed: PackedOutput | None = field(default=None, init=False)

    @property
    def loss(self) -> Loss:
        """The loss, called as ``loss(output, target)``; of a structured output, as one tensor.

        Raises:
            StateError: if a `whole_loss` hides the output, or the model computes the loss itself.
        """
        self._require_outputs()
        loss, packed = self.evaluator.problem.output_loss, self.packed
        if packed is None:
            return loss
        if packed.inner_loss is not None:
            raise StateError(
                "the model computes its loss itself, which is not known at other outputs; give "
                "whole_loss(outputs=..., loss=...)."
            )
        return lambda output, target: loss(packed.unpack(output), target)

    @property
    def target(self) -> Any:
        """The batch's targets; with a `whole_loss` the batch itself."""
        return self.evaluator.problem.target_of(self.batch)

    def context(self) -> AbstractContextManager[None]:
        """Isolate the model and fix its random draws; open it while the model or the loss runs."""
        return self.evaluator.isolated(self.evaluator.leaves(), self.number)

    def evaluate(self) -> Evaluation:
        """Return the output and loss with their autograd graph."""
        return self.evaluator(self.batch, self.number)

    def jacobian(self) -> Jacobian:
        """Return the Jacobian of the outputs in the parameters.

        Raises:
            StateError: if a `whole_loss` hides the output, if the output does not depend on the
                parameters, or if a structured one has no tensors that the loss depends on alone.
        """
        self._require_outputs()
        chain = self.chain()
        if chain is not None:
            return chain
        evaluation = self.evaluator(self.batch, self.number, differentiates_loss=False)
        if evaluation.refusal is not None:
            raise evaluation.refusal
        if evaluation.output is None or not evaluation.output.requires_grad:
            raise no_dependence_error()
        self.packed = evaluation.packed
        return GraphJacobian(self.evaluator, evaluation, self.batch, self.number)

    def chain(self, curved: bool = False) -> ChainJacobian | None:
        """Return the Jacobian without an autograd graph; None unless the model is a known chain.

        Args:
            curved: whether second derivatives are needed.
        """
        evaluator = self.evaluator
        inputs = evaluator.problem.single_input(self.batch)
        if inputs is None:
            return None
        chain = chain_jacobian(
            evaluator.problem.model,
            inputs,
            mode=evaluator.mode,
            flags=evaluator.flags,
            layout=evaluator.layout,
            point=evaluator.point,
            curved=curved,
        )
        if chain is not None:
            evaluator.check(chain.output, self.batch, self.number)
        return chain

    def _require_outputs(self) -> None:
        if not self.evaluator.problem.has_outputs:
            raise StateError(
                "this kind of curvature needs the model's output, which a whole_loss of one "
                "function does not show; give a loss(output, target), or whole_loss(outputs=..., "
                "loss=...), or use kind='hessian'."
            )


Kind: TypeAlias = Callable[[BatchPoint], BatchCurvature]

KINDS: Registry[Kind] = Registry("kind of curvature", package=__name__)
"""The kinds of curvature by name."""


def matrix_name(kind: str) -> str:
    """Return what the matrix of a kind is called in tables and figures.

    That is the part of the docstring's first line before a colon. Without a colon, and for a kind
    that is not registered in this process, it is the registered name and "matrix".

    >>> matrix_name("ggn"), matrix_name("my_kind")
    ('Gauss-Newton matrix', 'my kind matrix')
    """
    noun, colon, _ = KINDS.summary(kind).partition(":") if kind in KINDS else ("", "", "")
    return noun if colon else f"{kind.replace('_', ' ')} matrix"


def no_dependence_error() -> StateError:
    """Return the error for a model whose parameters have no effect."""
    return StateError(
        "neither the loss nor the output depends on the parameters asked for; check that the "
        "forward pass uses them and detaches nothing."
    )
