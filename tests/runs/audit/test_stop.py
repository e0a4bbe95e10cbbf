"""An audit that a signal stops keeps nothing; one that is done keeps all."""

import json
import signal

import pytest

from overhear.commands.cli import main
from overhear.runs.audit import audit as module
from overhear.runs.stop import NOTHING_KEPT
from tests.runs.audit.test_audit import RUN  # noqa: F401 - see `run_file`


def test_an_audit_of_a_run_file_leaves_nothing_behind(run_file, monkeypatch, capsys):
    monkeypatch.setattr(module, "build", lambda *_, **__: signal.raise_signal(signal.SIGHUP))
    assert main(["audit", str(run_file), "--out", str(run_file.parent / "audit.json")]) == 129
    assert capsys.readouterr().err == f"stopped; {NOTHING_KEPT}\n"
    assert list(run_file.parent.iterdir()) == [run_file]


@pytest.mark.slow
def test_an_audit_that_is_done_is_kept_and_told(run_file, monkeypatch, capsys):
    from overhear.runs.audit import evidence as audit_log

    real = audit_log.leave_trace

    def signalled(*given):
        signal.raise_signal(signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(audit_log, "leave_trace", signalled)
    assert main(["audit", str(run_file), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["trail"]["audits"] == 1
    assert told.err.endswith("the signal came when the work was done, so nothing was stopped\n")
