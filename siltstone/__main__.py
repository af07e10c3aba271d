"""The `siltstone` command, as a module and as the script that is installed.

Loading it takes a moment, and so do the interpreter's last steps: ^C ends the process then, without a word,
as it ends any program. In between the command hears of it, see `siltstone.interrupts.heard`.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Load the command, and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where ^C is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from siltstone.cli import main as run  # noqa: PLC0415 - this is what takes a moment

    run()


if __name__ == "__main__":
    main()
