"""Fast path for sequential networks: derivatives applied layer by layer, without autograd graphs.

`chain_jacobian` is the only entry point. It returns None for a model that is not a chain of known
layers; the general path through autograd then applies.
"""

from normscope.curvature.chains.jacobian import ChainJacobian
from normscope.curvature.chains.reader import chain_jacobian

__all__ = ["ChainJacobian", "chain_jacobian"]
