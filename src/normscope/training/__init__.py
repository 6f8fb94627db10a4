"""The training loop: `train` yields its steps, `fit` runs it to the end."""

from normscope.training.evaluate import Evaluation, evaluate
from normscope.training.fit import Run, fit
from normscope.training.loop import Outcome, Step, train
from normscope.training.optimizers import sgd

__all__ = ["Evaluation", "Outcome", "Run", "Step", "evaluate", "fit", "sgd", "train"]
