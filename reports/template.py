"""Templates of pages: what is put into one is escaped, for HTML and for whoever looks at it."""

from __future__ import annotations

import functools
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from ..privacy.plain_text import plain_lines


@functools.cache
def template(package: str, name: str) -> Template:
    """A template that lies in a package, beside those that it includes."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
        loader=FunctionLoader(
            lambda of: resources.files(package).joinpath(of).read_text(encoding="utf-8")
        ),
    )
    return environment.get_template(name)


def _shown(value: object) -> object:
    """What stands in the place of a value: no text that moves others, or that is not seen."""
    if isinstance(value, Markup):  # a drawing of ours, with names in it that are not
        return Markup(plain_lines(str(value)))  # noqa: S704 # it was markup before
    return plain_lines(value) if isinstance(value, str) else value
