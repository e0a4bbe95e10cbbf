"""A run in turns goes on with the records that it began with: turns follow from them."""

import dataclasses
from typing import Any

import pytest

from overhear.privacy import read_ledger
from overhear.privacy.errors import InputError
from overhear.runs.folder import resume
from overhear.runs.folder.resume import resume_run
from overhear.training.data.store import Examples
from tests.runs.folder.interrupted import NO_TARGET, cut_off, everything, plan_once, write_run_file

IN_TURNS = "privacy.participation={cycle=3}"


@pytest.mark.slow
def test_a_run_in_turns_goes_on_with_its_own_records_alone(tmp_path, monkeypatch):
    plan_once(monkeypatch)
    config, out = cut_off(write_run_file(tmp_path), NO_TARGET, IN_TURNS, at=4)
    before, planned = everything(out), resume.plan_session

    def otherwise(*given: Any, **named: Any) -> Any:
        session = planned(*given, **named)
        setting = session.built.setting
        first = setting.shards[0]
        other = Examples(first.inputs + 1.0, first.targets)
        setting = dataclasses.replace(setting, shards=[other, *setting.shards[1:]])
        return dataclasses.replace(
            session, built=dataclasses.replace(session.built, setting=setting)
        )

    with monkeypatch.context() as patched:
        patched.setattr(resume, "plan_session", otherwise)
        with pytest.raises(InputError, match="not those that the run was trained on"):
            resume_run(config, out)
    assert everything(out) == before
    resume_run(config, out)
    assert read_ledger(out / "ledger.jsonl").numbers == list(range(13))
