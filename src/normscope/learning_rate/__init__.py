"""How large a learning rate: the bound from curvature, the predicted and the verified onset."""

from normscope.learning_rate.advice import Advice
from normscope.learning_rate.advisor import max_learning_rate
from normscope.learning_rate.comparison import Compared, Comparison, compare
from normscope.learning_rate.onset import growth_limit, is_unstable

__all__ = [
    "Advice",
    "Compared",
    "Comparison",
    "compare",
    "growth_limit",
    "is_unstable",
    "max_learning_rate",
]
