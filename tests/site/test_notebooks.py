"""The notebooks of the site run from top to bottom, and show what their words say."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs/notebooks"
SAYS = {
    "accounting-beside-opacus": lambda of: (
        np.allclose(of["curves"]["Opacus, PRV"], of["curves"]["Overhear"], rtol=0, atol=0.02)
        and np.all(np.subtract(of["curves"]["Opacus, RDP"], of["curves"]["Overhear"]) > 0)
        and of["sent"]["eavesdropper"].epsilon > 4 * of["counted"]
    ),
    "a-gradient-that-leaks": lambda of: (
        min(of["psnr"]["no defence"], of["psnr"]["clipped"]) > 100
        and of["psnr"]["noise .01"] > 20
        and of["psnr"]["noise 1"] < 10
    ),
    "your-own-algorithm": lambda of: (
        of["found"]["eavesdropper"].status == "proven" and of["accuracy"] > 0.7
    ),
    "audit-your-own-training": lambda of: (
        of["audit"].verdict == "contradicted"
        and of["private"].verdict == "consistent"
        and 1 < of["private"].epsilon < of["private"].claimed.epsilon
    ),
}

pytestmark = pytest.mark.slow


def test_every_notebook_is_run():
    assert {path.stem for path in NOTEBOOKS.glob("*.py")} == SAYS.keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SAYS)
def test_a_notebook_shows_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    shown = runpy.run_path(str(NOTEBOOKS / f"{name}.py"))
    sys.modules.pop("mine", None)  # which a notebook wrote
    assert SAYS[name](shown)
