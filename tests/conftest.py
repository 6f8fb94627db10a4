"""What all tests share."""

import os
import signal

from hypothesis import HealthCheck, settings

# A suite started in the background inherits a Ctrl-C that is ignored, and so would every command
# that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is piped has the usual width, whatever the shell that runs the suite exports.
os.environ.pop("COLUMNS", None)

# One commit has one answer: `make test` draws the same cases every time, `make test-properties`
# draws new ones.
# a machine busy with other work must not fail a property: neither deadline nor pace counts
_UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, **_UNTIMED)
settings.register_profile("new", derandomize=False, **_UNTIMED)
settings.load_profile("fixed")
