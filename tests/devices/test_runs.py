"""Every algorithm on a pretended device: trained, cut off, resumed, told."""

from pathlib import Path

import pytest

from overhear.reports.document.collect import collect
from overhear.runs.folder.folder import ENVIRONMENT, is_finished
from overhear.runs.folder.records import Environment
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import RunFile
from overhear.training.algorithms import ALGORITHMS
from tests.devices.small_runs import PLACES, config_of
from tests.devices.stand_in import RefusedByDeviceError, StandIn
from tests.runs.folder.interrupted import CutOffError, cut_off_at


def interrupted(config: RunFile, out: Path) -> None:
    with pytest.raises(CutOffError):
        train_run(config, out, progress=cut_off_at(3))


@pytest.mark.some_quick(1)
@pytest.mark.some_cases(6)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_is_trained_and_resumed_on_a_device_and_told_without_it(name, tmp_path):
    # Where all rounds are one release, a run goes on from its last round alone.
    remembering = ("mafalda", "dp-ftrl", "joint-dsgd", "decor-over-time")
    every = ["training.checkpoint_every=1"] if name in remembering else []
    config, out = config_of(name, tmp_path, "training.device=cuda", *every), tmp_path / "out"
    with StandIn(PLACES) as device:
        interrupted(config, out)
        resume_run(config, out)
    assert is_finished(out)
    assert device.operations > 500
    assert not device.refused  # nor was a refusal taken for something else
    assert collect(out).run.device == "cuda"


@pytest.mark.some_quick(1)
@pytest.mark.parametrize(
    ("first", "then"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda:0"), ("cuda:0", "cuda")]
)
def test_a_run_goes_on_on_another_device_and_says_so_where_it_moved(first, then, tmp_path):
    config = config_of("dpdl", tmp_path, f"training.device={first}")
    other = config_of("dpdl", tmp_path, f"training.device={then}")
    out, said = tmp_path / "out", list[str]()
    with StandIn(PLACES):
        interrupted(config, out)
        resume_run(other, out, notice=said.append)
    assert is_finished(out)
    moved = first[:4] != then[:4]
    places = f"{first}, after round 2 {then}" if moved else first
    assert Environment.read(out / ENVIRONMENT).device == places
    words = (
        f"It was trained on {first} and goes on on {then}, which rounds otherwise and draws other "
        "noise from the seed, so its models are not those of one device."
    )
    assert (said[1:2] == [words]) is moved
    assert any("goes on on" in sentence for sentence in said) is moved
    assert not moved or collect(out).run.device == places


def test_a_place_that_is_not_named_is_refused(tmp_path):
    named = {place: why for place, why in PLACES.items() if "evaluation" not in place[0]}
    with StandIn(named), pytest.raises(RefusedByDeviceError, match="training/models/evaluation"):
        train_run(config_of("dpdl", tmp_path), tmp_path / "out")
