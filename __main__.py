"""The program `overhear`, where scripts are not on the path: `python -P -m overhear`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("overhear.commands", run_name="__main__")
