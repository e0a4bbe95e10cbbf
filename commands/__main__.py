"""The program `overhear`: it listens to signals first, and loads the command line then.

Neither it nor a process that it starts takes a module for a library's because it lies in the
working directory, where `python -m` looks first.
"""

import gc
import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

import signal


def main() -> int:
    """Run the command line and return its exit code; a signal while it loads stops it, too."""
    os.environ["PYTHONSAFEPATH"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback before it listens, nor after
    _open_closed()
    from .terminal.signals import until_stopped

    code = until_stopped(_load_and_run)
    gc.freeze()  # all that is left ends with the process: its end looks for no garbage among it
    return code


def _open_closed() -> None:
    """Let no file have the number of a stream that was closed, such as a ledger what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123


def _load_and_run() -> int:
    try:
        from .cli import main as run

        return run()
    except ModuleNotFoundError as error:  # without it not even an error is told
        from .. import package_of, requirement

        name = error.name or ""
        if (found := requirement(name)) is None:
            raise
        needed = f'{package_of(name)}, which is not installed: pip install "{found}"'
        sys.stderr.write(f"error: overhear needs {needed}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
