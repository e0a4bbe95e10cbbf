"""A denoiser by its name: who may name it, what is kept of it, and what is refused."""

import json
import sys
from hashlib import sha256
from pathlib import Path

import pytest

import overhear
from overhear.commands import cli
from overhear.privacy.errors import InputError
from overhear.runs.attack.prior_records import KEY, own_denoiser
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import load_run_file
from overhear.runs.run_file.tables import Call
from overhear.runs.run_file.trust import trusting
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=4, privacy={"noise_multiplier": 0.05, "delta": 0.0001},
    training={"rounds": 1, "sampling_rate": 0.1}, intercept={"rounds": [1]},
    attack={"presets": ["posterior"], "images": 1},
)  # fmt: skip
CODE = """
calls = []
NUMBER = 3

def clean(pixels, noise_std):
    calls.append((tuple(pixels.shape), noise_std))
    return (pixels + 0.35 * noise_std**2) / (1 + noise_std**2)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text(RUN)
    train_run(load_run_file("file.toml"), Path("out"))
    return Path("out")


@pytest.fixture
def named(request):
    """A module of the working directory, of a name that no other test has given."""
    name = f"clean_{sha256(request.node.name.encode()).hexdigest()[:8]}"
    Path(f"{name}.py").write_text(CODE)
    yield name
    sys.modules.pop(name, None)


def test_the_code_that_was_asked_for_is_named_in_what_it_made(run, named, capsys):
    assert cli.main(["attack", str(run), "--denoiser", f"{named}:clean", "--name", "own"]) == 0
    assert f"runs code of yours: {named}.py" in capsys.readouterr().err
    found = json.loads((run / "attacks/own/attack.json").read_text())
    assert found["sources"] == {f"{named}.py": sha256(CODE.encode()).hexdigest()}
    assert sys.modules[named].calls[0][0][1:] == (1, 8, 8)
    assert not (run / "sources.json").exists()  # the run is not made of it
    assert cli.main(["report", str(run)]) == 0
    assert f"--denoiser {named}:clean" in (run / "report.html").read_text()
    with pytest.raises(FileExistsError, match="exists; attack another run"):
        overhear.attack(run, denoiser=sys.modules[named].clean, name="own")


def test_a_folder_runs_no_code_that_nobody_vouches_for(run, named):
    for given in ({}, {"folder": run}):
        with pytest.raises(InputError, match="has no 'clear'; did you mean 'clean'"):
            own_denoiser(f"{named}:clear", **{"folder": None, **given})
    other = f"{named}_too"
    Path(f"{other}.py").write_text(CODE)
    with pytest.raises(InputError, match=f"names code that would be run, {other}.py, and some"):
        own_denoiser(f"{other}:clean", folder=run)
    assert other not in sys.modules
    with trusting(pins={f"{other}.py": "0" * 64}), pytest.raises(InputError, match="--trust-code"):
        own_denoiser(f"{other}:clean", folder=run)
    pins, call = (
        {f"{other}.py": sha256(CODE.encode()).hexdigest()},
        Call(key=KEY, name=f"{other}:clean"),
    )
    with trusting(pins=pins), pytest.raises(InputError, match="--trust-code"):
        own_denoiser(f"{other}:clean", folder=run)
    with trusting(pins=pins, calls=[call]):
        assert own_denoiser(f"{other}:clean", folder=run).denoiser is not None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--denoiser", "wiener"], 'must read "module:NAME"; none comes with overhear'),
        (["--denoiser", "/etc/mine.py:clean"], "relative to it"),
        (["--denoiser", "nowhere_at_all:clean"], "no module 'nowhere_at_all'"),
        (["--denoiser", "{}:NUMBER"], "is int, must be a function f(pixels, noise_std)"),
        (["--denoiser", "{}:clean", "--preset", "idlg"], "has no effect on idlg"),
        (["--denoiser", "{}:clean", "--set", "attack.batch=2"], "has no effect with batch=2"),
    ],
)
def test_what_is_no_denoiser_is_refused(run, named, given, words, capsys):
    assert cli.main(["attack", str(run), *(text.format(named) for text in given)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (run / "attacks").exists()
