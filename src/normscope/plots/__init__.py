"""normscope.plots."""
