"""Every algorithm on a pretended device: trained, cut off, resumed, attacked, audited, told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from overhear.reports.document.collect import collect
from overhear.runs.attack import points
from overhear.runs.attack.attack import attack_run
from overhear.runs.audit.audit import audit_config
from overhear.runs.folder.folder import ENVIRONMENT, is_finished
from overhear.runs.folder.records import read_environment
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.algorithms import ALGORITHMS
from tests.devices.stand_in import RefusedByDeviceError, StandIn
from tests.runs.folder.interrupted import CutOffError, cut_off_at

RUN = """
[data]
name = "digits"
agents = 3
[model]
name = "linear"
{task}
[algorithm]
name = "{name}"
{privacy}
[training]
rounds = 4
sampling_rate = 0.1
learning_rate = 0.05
checkpoint_every = 2
evaluate_every = 4
evaluation_noise_seed = 1
[intercept]
rounds = [3]
[attack]
rounds = [3]
images = 1
presets = ["matched"]
restarts = 1
[audit]
canaries = 4
rounds = 1
checked_rounds = 1
"""

# Where a run, its attack and its audit read a device, between rounds.
PLACES = {
    ("training/engine/engine.py", "Engine.snapshot"): "the state is written, or watched",
    ("training/device/numbers.py", "check_numbers"): "a round's models may be no numbers",
    ("training/engine/transcript.py", "Transcript.__call__"): "an intercepted message is kept",
    ("training/functions/batched.py", "_agree"): "a function is tried once",
    ("training/functions/projection.py", "same_bits"): "a function's results are compared",
    ("training/gradients/choice.py", "disagreement"): "a layout is tried once",
    ("training/gradients/gradients.py", "PairGradients.check"): "a round's sums may overflow",
    ("training/models/evaluation.py", "_scores"): "metrics are told",
    ("training/models/evaluation.py", "evaluate"): "metrics are told",
    ("training/noise_tests/noise_tests.py", "_read"): "a round's noise was tested",
    # What attacks and audits do between rounds, or in rounds of their own.
    ("attacks/audit/canaries.py", "PlantedGradients.clipped_sums"): "canaries are found in batches",
    ("attacks/audit/canaries.py", "PlantedGradients._weight"): "coefficients size the canaries",
    ("attacks/audit/layout_clipping.py", "layout_check"): "gradients are held against the oracle",
    ("attacks/checks/knowledge.py", "knowledge_check"): "noise is drawn again, and compared",
    ("attacks/checks/noise/streams.py", "_by_hand"): "noise is drawn again, and compared",
    ("attacks/checks/values.py", "_initial"): "the initial model is held against the public one",
    ("attacks/watching/reference_sums.py", "_loss_of"): "the oracle is on the host",
    ("attacks/watching/reference_sums.py", "Oracle.sums"): "the oracle is on the host",
    ("attacks/watching/reference_sums.py", "_plain"): "the oracle is on the host",
    ("attacks/watching/on_host.py", "placed"): "what a round recorded is read once, whole",
    ("training/engine/links.py", "Links.on_host"): "a replay is given another round's positions",
    ("training/engine/recording.py", "makers"): "a recorded round says who makes its noise",
}


def config_of(name: str, folder: Path, *overrides: str) -> RunFile:
    algorithm = ALGORITHMS[name]
    text = RUN.format(
        name=name,
        task='task = "class-weights"' if algorithm.blocks == 2 else "",
        privacy="[privacy]\nnoise_multiplier = 1.0\ndelta = 1e-4" if algorithm.private else "",
    )
    (folder / "run.toml").write_text(text, encoding="utf-8")
    return load_run_file(folder / "run.toml", overrides)


SMALL = (
    "training.sampling_rate=0.02",
    "training.rounds=1",
    "intercept.rounds=[1]",
    "attack.rounds=[1]",
)


@pytest.fixture
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {
        key: dataclasses.replace(
            of, adam_steps=min(of.adam_steps, 2), newton_steps=min(of.newton_steps, 1)
        )
        for key, of in points.PRESETS.items()
    }
    monkeypatch.setattr(points, "PRESETS", few)


def interrupted(config: RunFile, out: Path) -> None:
    with pytest.raises(CutOffError):
        train_run(config, out, progress=cut_off_at(3))


@pytest.mark.some_quick(2)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_is_trained_and_resumed_on_a_device_and_told_without_it(
    name: str, tmp_path: Path
) -> None:
    config, out = config_of(name, tmp_path, "training.device=cuda"), tmp_path / "out"
    with StandIn(PLACES) as device:
        interrupted(config, out)
        resume_run(config, out)
    assert is_finished(out)
    assert device.operations > 500
    assert not device.refused  # nor was a refusal taken for something else
    assert collect(out).run.device == "cuda"


@pytest.mark.slow
@pytest.mark.usefixtures("_few_steps")
def test_a_run_is_attacked_where_it_was_trained(tmp_path: Path) -> None:
    with StandIn(PLACES):
        train_run(config_of("sgda", tmp_path), tmp_path / "out")
    with StandIn(collects=True) as device:  # a search reads its objective between its steps
        attack_run(tmp_path / "out")
    assert device.operations > 100
    assert [said for said in device.refused if " reads back " not in said] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpmixsgd", "dp-cga"])  # and DPDL in test_attacks.py
def test_a_run_is_audited_on_a_device(name: str, tmp_path: Path) -> None:
    with StandIn(PLACES) as device:
        found = audit_config(config_of(name, tmp_path, *SMALL))
    assert all(one.passed for one in found.checks)
    assert not device.refused


@pytest.mark.parametrize(("first", "then"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_run_goes_on_on_another_device(first: str, then: str, tmp_path: Path) -> None:
    config = config_of("dpdl", tmp_path, f"training.device={first}")
    other = config_of("dpdl", tmp_path, f"training.device={then}")
    out, said = tmp_path / "out", list[str]()
    with StandIn(PLACES):
        interrupted(config, out)
        resume_run(other, out, notice=said.append)
    assert is_finished(out)
    assert read_environment(out / ENVIRONMENT).device == f"{first}, after round 2 {then}"
    assert said[1] == (
        f"It was trained on {first} and goes on on {then}, which rounds otherwise and draws other "
        "noise from the seed, so its models are not those of one device."
    )
    assert collect(out).run.device == f"{first}, after round 2 {then}"


def test_a_place_that_is_not_named_is_refused(tmp_path: Path) -> None:
    named = {place: why for place, why in PLACES.items() if "evaluation" not in place[0]}
    with StandIn(named), pytest.raises(RefusedByDeviceError, match="training/models/evaluation"):
        train_run(config_of("dpdl", tmp_path), tmp_path / "out")
