"""A run that Python makes from objects, and what other processes need to read it."""

from tests import warm

TRAIN = """\
from pathlib import Path
import own_mine
from overhear.reports.document.collect import collect
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import read_tables
config = read_tables({
    "data": {"name": "digits", "agents": 3}, "model": {"name": own_mine.net},
    "algorithm": {"name": own_mine.MOMENTUM, "decay": 0.5},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-5, "adversaries": ["eavesdropper"]},
    "training": {"rounds": 2, "sampling_rate": 0.05},
})
train_run(config, Path("made"))
print(collect(Path("made")).run.algorithm)
"""
READ = """\
from pathlib import Path
import own_mine
from overhear.reports.document.collect import collect
from overhear.training.own.objects import give
give(own_mine.net, key="[model] name")
give(own_mine.MOMENTUM, key="[algorithm] name")
print(collect(Path("made")).run.algorithm)
"""


def python(code: str, place) -> tuple[int, str]:
    done = warm.run(cwd=place, code=code)
    return done.returncode, done.stdout + done.stderr


def test_a_run_of_objects_is_read_where_the_same_objects_are_given(place, overhear):
    code, said = python(TRAIN, place)
    assert (code, said.startswith("object:own_mine.MOMENTUM@")) == (0, True), said
    kept = (place / "made" / "run.toml").read_text()
    assert 'name = "object:own_mine.net@' in kept
    assert (place / "made" / "sources" / "own_parts.py").is_file()
    code, said = overhear("report", "made", "--trust-code")
    assert (code, "give it again from Python" in said) == (2, True), said
    code, said = python(READ, place)
    assert code == 0, said
    (place / "own_mine.py").write_text((place / "own_mine.py").read_text() + "\n")
    code, said = python(READ, place)
    assert code != 0
    assert "own_mine.py is not the file that trained this run" in said
