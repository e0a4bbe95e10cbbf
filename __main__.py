"""The program `overhear`, where scripts are not on the path: `python -m overhear`."""

import sys

from overhear.commands.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
