"""Entry point of the `siltstone` command, for `python -m siltstone` and for the installed script.

While modules are loaded and while the interpreter shuts down, ^C ends the process silently, as it ends any
program. In between the command handles it; see `siltstone.interrupts.interrupt_on_signals`.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Load the command and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # unless the caller ignores ^C
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from siltstone.cli import main as run  # noqa: PLC0415 - loading it takes the time in which ^C must end the process

    run()


if __name__ == "__main__":
    main()
