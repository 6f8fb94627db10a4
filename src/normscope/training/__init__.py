"""The only training loop: `train` shows it step by step, `fit` runs it to its outcome."""

from normscope.training.evaluate import Evaluation, evaluate
from normscope.training.fit import fit
from normscope.training.loop import Step, train
from normscope.training.optimizers import sgd
from normscope.training.outcome import Outcome, Run

__all__ = ["Evaluation", "Outcome", "Run", "Step", "evaluate", "fit", "sgd", "train"]
