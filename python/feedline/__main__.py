"""The command: `python -m feedline`, and the script `feedline`."""

from __future__ import annotations

import signal
import sys

from feedline import _native


def main() -> None:
    """Runs the command with the arguments of this process and ends it."""
    # Python's own handler only notes Ctrl-C for later; the command has no later.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.main(["feedline", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
