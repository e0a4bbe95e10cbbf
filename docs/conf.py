"""How the pages of this folder become a site: `make docs`, which needs no network.

The side bar has the shelves of index.md: what a heading there leads to stands under it. The pages
of commands stand under the page that lists them.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.python import PythonLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OUTSIDE = re.compile(r"(?<!!)\[([^\]`]+)\]\((\.\./[\w/.-]+\.md)\)")
LINK = re.compile(r"\]\(([\w/-]+)\.(?:md|py)\)")

project = "Overhear"
author = PROJECT["authors"][0]["name"]
copyright = author  # noqa: A001 - the name is Sphinx's
release = version = PROJECT["version"]

extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["conf.py", "pictures/*.py"]

# Anchors are those of a forge, so that a link works in both places.
myst_heading_anchors = 6
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_excludepatterns = os.environ.get("OVERHEAR_NOT_RUN", "").split()
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

html_theme = "furo"
html_title = f"Overhear {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"

linkcheck_anchors = False
linkcheck_timeout = 20


def pages_of(text: str) -> list[str]:
    """The pages that a text leads to, each once, in the order of the text."""
    return list(dict.fromkeys(LINK.findall(text)))


def is_command(page: str) -> bool:
    """Whether a page shows the help of a command."""
    file = HERE / f"{page}.md"
    return file.is_file() and f"<!-- help: {page} -->" in file.read_text(encoding="utf-8")


def toctree(pages: list[str], *, caption: str = "") -> str:
    """A side bar's entries, which are not shown on the page itself."""
    head = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n\n```{toctree}\n" + "\n".join([*head, "", *pages]) + "\n```\n"


def add_shelves(_app: Sphinx, page: str, source: list[str]) -> None:
    """Put the entries of the side bar behind the two pages that lead to all others.

    Pages of the checkout that are not of the site are given as files, as other files of it are.
    """
    source[0] = OUTSIDE.sub(r"{download}`\1 <\2>`", source[0])
    if page == "index":
        shelved: set[str] = set()
        for section in re.split(r"^## ", source[0], flags=re.M)[1:]:
            caption, _, text = section.partition("\n")
            pages = [p for p in pages_of(text) if not is_command(p) and p not in shelved]
            shelved |= set(pages)
            source[0] += toctree(pages, caption=caption) if pages else ""
    elif page == "commands":
        source[0] += toctree([p for p in pages_of(source[0]) if is_command(p)])


def use_plain_ipython() -> None:
    """Run notebooks without the start-up files of who builds; kernels tell errors alone."""
    folder = Path(tempfile.mkdtemp(prefix="overhear-docs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    profile = folder / "profile_default"
    profile.mkdir()
    told = "c = get_config()\nc.IPKernelApp.log_level = 40\n"
    (profile / "ipython_kernel_config.py").write_text(told, encoding="utf-8")
    os.environ["IPYTHONDIR"] = str(folder)


def setup(app: Sphinx) -> None:
    """Listen to the pages as they are read."""
    use_plain_ipython()
    logging.getLogger("traitlets").setLevel(logging.ERROR)  # nothing of each kernel that starts
    app.connect("source-read", add_shelves)
    app.add_lexer("jsonl", PythonLexer)  # objects, and a first line that is a comment
