"""A package that is not installed: what needs it, and the command that installs it.

The command names that package alone. No index has Overhear, and its name is another project's on
the public one, so that a command with that name would bring a stranger's code.
"""

from __future__ import annotations

import re

DISTRIBUTION = "overhear"


def needs(what: str, package: str) -> str:
    """The sentence on a package that is missing, with the versions that this program takes.

    Args:
        what: is asked for.
        package: as an index calls it.

    >>> print(needs("plot", "matplotlib"))
    plot needs matplotlib, which is not installed: pip install "matplotlib>=3.8"
    """
    from importlib.metadata import requires

    for line in requires(DISTRIBUTION) or ():
        requirement = line.partition(";")[0].strip()
        if re.split(r"[^\w.-]", requirement)[0] == package:
            return f'{what} needs {package}, which is not installed: pip install "{requirement}"'
    raise LookupError(package)
