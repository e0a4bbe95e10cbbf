"""The report on a screen, a tablet and a phone: nothing is cut, and outside checkers find no fault.

`make page-checkers` installs axe-core and the Nu validator under build/; without npm the tests that
need them say so and are skipped.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from overhear.reports.document import html
from overhear.reports.document.declared import account_of_logs, report_of_logs
from tests.conftest import sample_images, sample_report, typed, with_audit
from tests.privacy.releases.logs import one, write
from tests.site.browser import BROWSER, faults_of

ROOT = Path(__file__).resolve().parents[2]
CHECKERS = ROOT / "build/page-checkers/node_modules"
AXE = CHECKERS / "axe-core/axe.min.js"
VNU = CHECKERS / "vnu-jar/build/dist/vnu.jar"
WIDTHS = (1280, 768, 400)
# The validator's list of CSS is older than the property, which all browsers know.
KNOWN = ".*paint-order.*"

pytestmark = pytest.mark.slow
needs_browser = pytest.mark.skipif(not BROWSER, reason="no chromium here: install one to look")
needs_axe = pytest.mark.skipif(
    not AXE.is_file(), reason="no axe-core here: `make page-checkers` installs it where npm is"
)
needs_validator = pytest.mark.skipif(
    not (VNU.is_file() and shutil.which("java")),
    reason="no validator here: `make page-checkers` installs it where npm and Java are",
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A report with all evidence, one that is contradicted, a bare one, and that of logs."""
    folder = tmp_path_factory.mktemp("reports")
    full = with_audit(sample_report())
    full["about"] = {"responsible": "A. Person", "contact": "a@b.example", "records_per_person": 3}
    for row in full["plan"]["adversaries"]:
        row["group"] = [{"records": n, "epsilon": 2.1 * n, "delta": 1e-5} for n in (2, 3)]
    [scenario] = full["attack"]["scenarios"]
    full["attack"]["scenarios"] = [scenario, scenario | {"scenario": "view", "attack": "again"}]
    bare = sample_report() | {"attack": None}
    bare["plan"]["target"] = {"epsilon": None, "delta": 1e-5, "adversary": None}
    reports = {
        "full": full,
        "contradicted": with_audit(sample_report(), "contradicted"),
        "bare": bare,
    }
    logs = tmp_path_factory.mktemp("logs")
    write(logs / "a.jsonl", {t: [one(), one(2, to=["server"])] for t in range(1, 31)})
    declared = report_of_logs(account_of_logs([logs]))
    for name, report in (reports | {"declared": declared}).items():
        text = html.render(typed(report) if isinstance(report, dict) else report,
                           images=sample_images())  # fmt: skip
        # The pages are shown in a frame of the looker's, whose script the policy would forbid.
        text = re.sub(r"<meta http-equiv=[^>]*>", "", text)
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.html"))


@needs_browser
def test_nothing_of_a_report_is_cut_or_broken_on_any_screen(pages, tmp_path):
    assert faults_of(pages, names(pages), widths=WIDTHS, own=tmp_path) == []


@needs_browser
def test_a_report_with_all_evidence_prints_on_five_pages_at_most(pages, tmp_path):
    """As the browser prints it on A4; the tree of pages in a PDF says how many there are."""
    printed = tmp_path / "full.pdf"
    subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer",
         f"--user-data-dir={tmp_path / 'own'}", f"--print-to-pdf={printed}",
         (pages / "full.html").as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    count = max(int(n) for n in re.findall(rb"/Type /Pages\s*/Count (\d+)", printed.read_bytes()))
    assert 2 <= count <= 5


@needs_browser
@needs_axe
@pytest.mark.parametrize("dark", [False, True])
def test_a_report_breaks_no_rule_of_axe(pages, tmp_path, dark):
    axe = AXE.read_text(encoding="utf-8")
    found = faults_of(pages, names(pages), widths=(1280, 400), own=tmp_path, axe=axe, dark=dark)
    assert found == []


@needs_browser
@needs_axe
def test_a_picture_without_words_and_pale_letters_break_a_rule(tmp_path):
    (tmp_path / "pages").mkdir()
    pale = '<html lang="en"><title>x</title><main><h1 style="color:#ccc">pale</h1><img src="x">'
    (tmp_path / "pages/pale.html").write_text(pale)
    found = faults_of(
        tmp_path / "pages", ["pale.html"], widths=(400,), own=tmp_path / "own", axe=AXE.read_text()
    )
    assert {rule for rule in ("color-contrast", "image-alt") if rule in " ".join(found)} == {
        "color-contrast",
        "image-alt",
    }


@needs_validator
def test_the_reference_validator_finds_no_error_in_a_report(pages):
    command = ["java", "-jar", VNU, "--errors-only", "--stdout", "--filterpattern", KNOWN]
    done = subprocess.run(
        [*command, *pages.glob("*.html")], capture_output=True, check=False, text=True, timeout=200
    )
    assert (done.returncode, done.stdout) == (0, "")


@needs_validator
def test_the_reference_validator_finds_an_element_where_none_may_be(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<!doctype html><html lang="en"><title>x</title><ul><p>no item</p></ul></html>')
    done = subprocess.run(
        ["java", "-jar", VNU, "--stdout", page], capture_output=True, check=False, timeout=200
    )
    assert done.returncode == 1
