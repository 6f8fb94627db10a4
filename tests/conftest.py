"""What all tests share."""

import signal

# A suite started in the background inherits a Ctrl-C that is ignored, and so would every command
# that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
