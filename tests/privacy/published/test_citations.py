"""One source of citations: no other file spells the names of a paper's authors otherwise."""

import re
from pathlib import Path

import pytest

from overhear.privacy.published.claim import CITATIONS

ROOT = Path(__file__).resolve().parents[3]
PARTS = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
PAGES = [*ROOT.glob("*.md"), *(page for part in PARTS for page in part.rglob("*.*"))]
TEXTS = {
    path: " ".join(path.read_text(encoding="utf-8").split())
    for path in PAGES
    if path.suffix in (".py", ".toml", ".md", ".html")
}


@pytest.mark.parametrize("name", CITATIONS)
def test_authors_are_spelled_alike_wherever_a_paper_is_cited(name):
    authors = [author.split() for author in CITATIONS[name].authors]
    right = [
        ", ".join(" ".join([*(f"{name[0]}." for name in given), last]) for *given, last in authors),
        ", ".join(last for *_, last in authors),
    ]
    anyhow = re.compile(r",? (?:and |# )?".join(rf"(?:[A-Z]\. )*{last}" for *_, last in authors))
    for path, text in TEXTS.items():
        for told in anyhow.findall(text) if authors[0][-1] in text else ():
            assert told.replace("# ", "") in right, path


def test_a_paper_that_was_renamed_has_both_names():
    assert {"Whisper", "CorN-DSGD"} <= set(re.findall(r"[\w-]+", CITATIONS["whisper"].name))
