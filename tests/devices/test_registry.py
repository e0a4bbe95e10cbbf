"""Every algorithm on a pretended device: attacked, audited in each way, reported and checked.

Reads are refused but in the places that `small_runs` names; training, checkpoints and resuming are
in `test_runs.py`. A command that reads the folder alone has no device to compute on.
"""

from pathlib import Path

import pytest

from overhear.commands.cli import main
from overhear.runs.attack.attack import attack_run
from overhear.runs.audit.audit import audit_folder
from overhear.runs.audit.last_model import audit_last_model_of_folder
from overhear.runs.audit.membership import audit_membership
from overhear.runs.folder.run import train_run
from overhear.runs.requests import LastModelRequest, MembershipRequest
from overhear.training.algorithms import ALGORITHMS
from tests.devices.small_runs import PLACES, READ_BY_ATTACKS, SMALL, config_of, with_few_steps
from tests.devices.stand_in import StandIn

PRIVATE = [name for name, algorithm in ALGORITHMS.items() if algorithm.private]
# Of each kind one: no noise, a plain step, momentum over links, gossip, two blocks. The games of
# members and of last models read models alone, and every algorithm trains in `test_runs.py`.
KINDS = ("dsgd", "dp-dpsgd", "dpdl", "muffliato", "dpmixsgd")
# Of audits one of each operation: links, gossip, shared noise, functions of its own, two blocks.
AUDITED = ("dp-dpsgd", "dpdl", "muffliato", "decor", "dp-cga", "dp-sgda")
EVERYWHERE = PLACES | READ_BY_ATTACKS
POLICY = """
schema = 1
[[limits]]
adversary = "eavesdropper"
epsilon = 1000
delta = 1e-4
[evidence]
attack_presets = ["matched"]
membership = {membership}
"""


def trained(name: str, folder: Path, *, seeded: bool = True) -> Path:
    """A finished run, trained on the device."""
    with StandIn(PLACES) as device:
        train_run(
            config_of(name, folder, *SMALL, "training.device=cuda", seeded=seeded), folder / "run"
        )
    assert device.operations > 500
    return folder / "run"


@pytest.mark.some_quick(1)
@pytest.mark.some_cases(4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_is_attacked_and_its_members_inferred_on_a_device_and_told(
    name, tmp_path, monkeypatch, capsys
):
    with_few_steps(monkeypatch)
    folder = trained(name, tmp_path, seeded=False)
    with StandIn(EVERYWHERE) as device:
        attacked = attack_run(folder)
    assert device.operations > 1000
    assert (attacked.device, bool(attacked.scenarios)) == ("cuda", True)
    if name in KINDS:
        with StandIn(EVERYWHERE) as device:
            inferred = audit_membership(folder, MembershipRequest(references=2, games=1))
        assert device.operations > 1000
        assert inferred.references == 2
    wanted = POLICY.format(membership=str(name in KINDS).lower())
    (tmp_path / "policy.toml").write_text(wanted, encoding="utf-8")
    with StandIn() as device:  # no place may read, since nothing is there to be read
        assert main(["report", str(folder)]) == 0
        code = main(["check", str(folder), "--policy", str(tmp_path / "policy.toml")])
    assert code == (0 if name in PRIVATE else 3), capsys.readouterr().out
    assert device.operations == 0


@pytest.mark.slow  # a watched run and a game for each
@pytest.mark.some_cases(3)
@pytest.mark.parametrize("name", AUDITED)
def test_a_run_is_audited_on_a_device(name, tmp_path):
    folder = trained(name, tmp_path)
    with StandIn(PLACES) as device:
        found = audit_folder(folder)
    assert device.operations > 10_000
    assert not device.refused
    assert (found.device, found.run_device) == ("cuda", "cuda")
    assert all(one.passed for one in found.checks)


@pytest.mark.slow  # twenty trainings for each
@pytest.mark.some_cases(2)
@pytest.mark.parametrize("name", [name for name in KINDS if name in PRIVATE])
def test_last_models_are_audited_on_a_device(name, tmp_path):
    folder = trained(name, tmp_path, seeded=False)
    with StandIn(EVERYWHERE) as device:
        found = audit_last_model_of_folder(folder, LastModelRequest(runs=20))
    assert device.operations > 10_000
    assert not device.refused
    assert found.runs == 20
