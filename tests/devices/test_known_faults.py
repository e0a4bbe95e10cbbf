"""Faults that were found on devices, put back one by one: the pretended device refuses each."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from overhear.attacks.audit import canaries
from overhear.attacks.problem.observation import Observation
from overhear.privacy.errors import InputError
from overhear.runs.attack.attack import attack_run
from overhear.runs.audit.audit import audit_config
from overhear.runs.folder.run import train_run
from overhear.training.algorithms import dp_cga
from tests.devices.small_runs import PLACES, READ_BY_ATTACKS, SMALL, config_of, with_few_steps
from tests.devices.stand_in import RefusedByDeviceError, StandIn

EVERYWHERE = PLACES | READ_BY_ATTACKS


@pytest.mark.slow  # watches a round before the game is scored
def test_scores_that_take_arrays_of_tensors_on_the_device(tmp_path, monkeypatch):
    released = canaries.Released

    def stays_on_the_device(**given: Any) -> canaries.Released:
        return released(**given | {"holders": given["holders"].to("cuda")})

    monkeypatch.setattr(canaries, "Released", stays_on_the_device)
    with StandIn(EVERYWHERE, collects=True) as device:  # what reads them before goes on
        audit_config(config_of("dp-dpsgd", tmp_path, *SMALL))
    assert [
        said for said in device.refused if "Tensor.numpy" in said and "attacks/audit/scores" in said
    ]


def test_points_that_stay_on_the_host_when_messages_are_moved(tmp_path, monkeypatch):
    with_few_steps(monkeypatch)
    moved = Observation.to

    def moves_messages_alone(seen: Observation, **where: Any) -> Observation:
        return replace(moved(seen, **where), points=seen.points)

    folder = tmp_path / "run"
    with StandIn(PLACES):
        train_run(config_of("dpdl", tmp_path, *SMALL, "training.device=cpu"), folder)
    monkeypatch.setattr(Observation, "to", moves_messages_alone)
    with (
        StandIn(EVERYWHERE),
        pytest.raises(RefusedByDeviceError, match="takes tensors of cuda:0 and of the CPU"),
    ):
        attack_run(folder, device="cuda")


def test_a_projection_that_reads_every_agent_back_in_every_round(tmp_path, monkeypatch):
    solve = dp_cga.non_negative

    def solves_on_the_host(triangle: Tensor) -> Tensor:
        found: Tensor = solve(triangle.cpu())
        return found.to(triangle.device)

    monkeypatch.setattr(dp_cga, "non_negative", solves_on_the_host)
    with StandIn(PLACES), pytest.raises(InputError, match="reads back from cuda:0"):
        train_run(config_of("dp-cga", tmp_path, *SMALL), tmp_path / "run")
