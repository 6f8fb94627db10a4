"""Training at the edge of stability, as the stability gauge measures it."""
