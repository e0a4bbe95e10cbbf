"""The program `overhear`: a Ctrl-C while the command line loads ends it without a traceback."""

import signal
import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
