"""The site of docs/ builds without a warning, and its pages can be read on a screen and a phone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.site.browser import BROWSER, faults_of

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (1280, 400)
NOT_RUN = sorted(f"notebooks/{path.name}" for path in (ROOT / "docs/notebooks").glob("*.py"))[1:]

needs_browser = pytest.mark.skipif(not BROWSER, reason="no chromium here: install one to look")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning, such as a dead link or a missing picture, is an error."""
    pytest.importorskip("furo")
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"),
            *("-d", built / "doctrees", ROOT / "docs", built / "html"),
        ],
        capture_output=True,
        check=False,
        text=True,
        timeout=500,
        env={**os.environ, "OVERHEAR_NOT_RUN": " ".join(NOT_RUN)},
    )
    assert done.returncode == 0, done.stderr
    return built / "html"


def pages(site: Path) -> list[str]:
    return sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))


def test_every_page_of_docs_is_a_page_of_the_site(site):
    written = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert written <= {Path(page).stem for page in pages(site)}


def test_no_page_loads_anything_from_elsewhere(site):
    loads = re.compile(
        r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"|<link[^>]+href="(https?:[^"]+)"'
    )
    assert {
        page: found for page in pages(site) if (found := loads.findall((site / page).read_text()))
    } == {}


def test_the_search_index_knows_the_words_of_pages(site):
    assert "closur" in (site / "searchindex.js").read_text(encoding="utf-8")


@needs_browser
def test_no_page_has_a_broken_picture_or_is_wider_than_its_screen(site, tmp_path):
    assert faults_of(site, pages(site), widths=WIDTHS, own=tmp_path) == []


@needs_browser
def test_a_broken_picture_and_what_is_cut_off_are_found(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    wide = '<div style="width: 900px">much</div>'
    (site / "picture.html").write_text('<main><img src="none.png"></main>')
    (site / "wide.html").write_text(f"<main>{wide}</main>")
    (site / "cut.html").write_text(f'<body style="overflow-x: hidden"><main>{wide}</main>')
    (site / "scrolls.html").write_text(f'<main><div style="overflow-x: auto">{wide}</div></main>')
    found = faults_of(site, pages(site), widths=WIDTHS, own=tmp_path / "browser")
    assert found == [
        "/cut.html at 400 px: 908 px wide",
        "/cut.html at 400 px: <div> is cut: much",
        "/picture.html at 1280 px: broken picture none.png",
        "/picture.html at 400 px: broken picture none.png",
        "/wide.html at 400 px: 908 px wide",
        "/wide.html at 400 px: <div> is cut: much",
    ]
