"""A logger that keeps what it is given, and what `log_results` sends to it."""

from normscope.integrations import log_results


class Kept:
    """A logger that refuses to be given anything twice.

    `values` has the numbers and `histograms` the parts of each histogram, by tag and step.
    """

    def __init__(self):
        self.values, self.histograms, self.flushes = {}, {}, 0

    def add_scalar(self, tag, value, step):
        assert (tag, step) not in self.values
        self.values[tag, step] = value

    def add_histogram_raw(self, tag, *, global_step, **parts):
        assert (tag, global_step) not in self.histograms
        self.histograms[tag, global_step] = parts

    def flush(self):
        self.flushes += 1


def sent(results, **options):
    """The logger after all results were sent to it."""
    logger = Kept()
    log_results(results, logger, **options)
    return logger
