"""How large a learning rate: the curvature bound, the predicted and the verified limit."""

from normscope.learning_rate.advice import Advice
from normscope.learning_rate.advisor import max_learning_rate
from normscope.learning_rate.compare_norms import compare
from normscope.learning_rate.comparison import Compared, Comparison
from normscope.learning_rate.stability import growth_limit, is_unstable

__all__ = [
    "Advice",
    "Compared",
    "Comparison",
    "compare",
    "growth_limit",
    "is_unstable",
    "max_learning_rate",
]
