"""A run over ranks is the run of one process, and none goes on without one of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from overhear.commands import cli
from overhear.privacy import read_ledger
from overhear.runs.folder.folder import is_finished
from overhear.runs.folder.launch import Place
from overhear.runs.folder.lead import Lead, LedEngine
from overhear.runs.folder.ranks import facts_of, take_device
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import Session, make_engine, plan_session, train_run
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.engine.checkpoint import load_checkpoint, save_checkpoint
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.ranks import MissingRank, Ranks
from overhear.training.engine.transcript import Transcript

# A layout that takes one example at a time rounds alike however many agents a rank has; the others
# stack what a rank holds, and agree to about 1e-6 in float32.
RUN = """
[data]
name = "digits"
agents = 5
[model]
name = "linear"
[algorithm]
name = "dpdl"
[privacy]
noise_multiplier = 1.5
delta = 1e-4
adversaries = []
[training]
rounds = 8
sampling_rate = 0.01
checkpoint_every = 3
evaluate_every = 2
evaluation_noise_seed = 3
layout = "loop"
[intercept]
rounds = [3, 6]
[attack]
rounds = [3]
"""
LONG = ["training.rounds=100", "training.checkpoint_every=8", "training.evaluate_every=50"]
LIMIT = 100  # seconds; a hang shall fail, not hold up the suite
FAST = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "run.toml"
    path.write_text(RUN, encoding="utf-8")
    return path


def command(run_file: Path, out: Path, *more: str) -> list[str]:
    return ["train", str(run_file), "--out", str(out), *more]


def final(out: Path, round: int = 8) -> dict[str, torch.Tensor]:
    return dict(load_checkpoint(out / f"checkpoints/round-{round:06d}.safetensors").state)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(v, other[k]) for k, v in one.items())


@pytest.fixture(scope="module")
def alone(run_file: Path) -> Path:
    out = run_file.parent / "alone"
    train_run(load_run_file(run_file), out)
    return out


@pytest.fixture(scope="module")
def whole(run_file: Path) -> Path:
    out = run_file.parent / "whole"
    train_run(load_run_file(run_file, LONG), out)
    return out


@pytest.fixture(scope="module")
def spread(run_file: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = run_file.parent / "spread"
    done = subprocess.run(
        [sys.executable, "-m", "overhear.commands.cli", *command(run_file, out, "--ranks", "2")],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=FAST,
    )
    return out, done


@pytest.mark.distributed
def test_a_run_over_ranks_leaves_the_files_of_the_run_in_one_process(alone, spread):
    out, done = spread
    assert done.returncode == 0, done.stderr
    names = [sorted(p.relative_to(f) for p in f.rglob("*")) for f in (alone, out)]
    assert names[0] == names[1]
    for name in ("run.toml", "metrics.jsonl"):
        assert (out / name).read_bytes() == (alone / name).read_bytes(), name
    ledgers = [read_ledger(f / "ledger.jsonl") for f in (alone, out)]
    assert ledgers[0].entries == ledgers[1].entries
    assert {**ledgers[0].header, "run": ""} == {**ledgers[1].header, "run": ""}
    for path in (alone / "checkpoints").iterdir():
        ours, theirs = load_checkpoint(path), load_checkpoint(out / "checkpoints" / path.name)
        assert same(dict(ours.state), dict(theirs.state)), path.name
        assert {**ours.facts, "run": ""} == {**theirs.facts, "run": ""}
    ours, theirs = (list(Transcript.load(f / "transcript")) for f in (alone, out))
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert (one.round, one.call, one.kind) == (other.round, other.call, other.kind)
        for field in ("senders", "links", "rows"):
            assert torch.equal(getattr(one, field), getattr(other, field))
    assert [json.loads((f / "environment.json").read_text())["ranks"] for f in (alone, out)] == [
        1,
        2,
    ]


@pytest.mark.distributed
def test_one_rank_alone_speaks(spread):
    _, done = spread
    assert done.stdout.count("The run is in") == 1
    assert done.stdout.startswith("Who could learn what")
    told = [line for line in done.stderr.splitlines() if line]
    assert [line.split(":")[0] for line in told] == [f"training {n}/8" for n in (0, 2, 4, 6, 8)]


@pytest.mark.distributed
def test_what_rank_0_refuses_ends_all_ranks_with_one_sentence(run_file, spread, capfd):
    started = time.monotonic()
    assert cli.main(command(run_file, spread[0], "--ranks", "2", "--rank-timeout", "50")) == 2
    said = capfd.readouterr().err
    assert said.count("error:") == 1, said
    assert "a run is never overwritten" in said
    assert time.monotonic() - started < 40  # not by the time limit


def children(pid: int) -> dict[int, int]:
    """The process of each rank."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            found |= {int(v[5:]): int(child) for v in variables if v.startswith(b"RANK=")}
    return found


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.contextmanager
def started(run_file: Path, out: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Ranks that have released some rounds; whatever is left of them is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "overhear.commands.cli", *command(run_file, out, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=FAST,
    )
    ledger, until = out / "ledger.jsonl", time.monotonic() + LIMIT
    try:
        while not (ledger.exists() and ledger.read_bytes().count(b"\n") > 12):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
FAILURES = [
    pytest.param(1, signal.SIGKILL, r"rank 1 of 2 (agents 2..4)", id="killed"),
    pytest.param(
        0, signal.SIGKILL, r"rank 0 of 2 (agents 0..1)", id="0-killed", marks=pytest.mark.slow
    ),
    pytest.param(
        0, signal.SIGSTOP, r"rank 0 of 2 (agents 0..1)", id="0-hangs", marks=pytest.mark.slow
    ),
]


@pytest.mark.distributed
@needs_proc
@pytest.mark.parametrize(("rank", "sent", "named"), FAILURES)
def test_a_run_that_lost_a_rank_says_which_and_goes_on_to_the_same_models(
    run_file, whole, tmp_path, rank, sent, named
):
    out = tmp_path / "out"
    sets = [f"--set={change}" for change in LONG]
    with started(run_file, out, "--ranks", "2", "--rank-timeout", "3", *sets) as process:
        ranks = children(process.pid)
        os.kill(ranks[rank], sent)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2, said
        errors = [line for line in said.splitlines() if line.startswith("error:")]
        assert len(errors) == 1
        assert named in errors[0]
        assert "--resume continues the run" in errors[0]
        assert not [pid for pid in ranks.values() if is_running(pid)]
    config = load_run_file(run_file, LONG)
    assert 12 <= len(read_ledger(out / "ledger.jsonl").numbers) < 101
    resume_run(config, out)
    assert same(final(out, 100), final(whole, 100))
    assert (out / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


@pytest.mark.distributed
@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_its_parent(run_file, tmp_path, sent):
    sets = [f"--set={change}" for change in LONG]
    with started(run_file, tmp_path / "out", "--ranks", "2", *sets) as process:
        ranks = children(process.pid)
        process.send_signal(sent)
        process.communicate(timeout=30)
        until = time.monotonic() + 10
        while any(map(is_running, ranks.values())) and time.monotonic() < until:
            time.sleep(0.05)
        assert not [pid for pid in ranks.values() if is_running(pid)]


@pytest.mark.distributed
@pytest.mark.slow
def test_torchrun_continues_a_run_with_another_number_of_ranks(run_file, alone, tmp_path):
    out = tmp_path / "out"

    def cut_off(at: int, *_: object) -> None:
        if at == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(load_run_file(run_file), out, progress=cut_off)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
            *("3", "-m", "overhear.commands.cli", *command(run_file, out, "--resume")),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=FAST,
    )
    assert done.returncode == 0, done.stderr
    assert "goes on after round 4 of 8" in done.stdout
    assert same(final(out), final(alone))


class Alone(Lead):
    """Rank 0 without the others: what they would be told, and what the ledger has by then."""

    def __init__(self, out: Path) -> None:
        self.place = Place(rank=0, size=2, local_rank=0, local_size=2)
        self.ranks = Ranks(agents=5, rank=0, size=2)
        self.out, self.told = out, list[tuple[str, int]]()

    def agree(self, session: Session) -> None:
        pass

    def forget(self) -> None:
        pass

    def make_engine(self, session: Session, *, layout: str, transcript: Transcript) -> LedEngine:
        engine = make_engine(session, randomness=SecretRandomness(3))
        return LedEngine(engine, self)

    @contextlib.contextmanager
    def together(self, step: str, **details: Any) -> Iterator[None]:
        self.told.append((step, len(read_ledger(self.out / "ledger.jsonl").numbers)))
        yield


def test_a_round_is_in_the_ledger_before_another_rank_may_begin_it(run_file, tmp_path):
    alone = Alone(tmp_path / "out")
    train_run(
        load_run_file(run_file, ["intercept.rounds=[]", "attack.rounds=[]"]),
        tmp_path / "out",
        lead=alone,
    )
    assert [entries for step, entries in alone.told if step == "start"] == [1]
    assert [entries for step, entries in alone.told if step == "advance"] == list(range(2, 10))


@pytest.fixture(scope="module")
def session(run_file: Path) -> Session:
    return plan_session(load_run_file(run_file), run_file.parent / "planned")


def lead_of(store: dist.Store) -> Lead:
    place = Place(rank=0, size=2, local_rank=0, local_size=2)
    return Lead(store, place, timeout=5.0)


@pytest.mark.parametrize("name", ["run file", "noise multiplier", "packages", "records"])
def test_ranks_that_would_compute_something_else_are_refused_by_what_differs(session, name):
    store = dist.HashStore()
    store.set("ready/1", json.dumps({**facts_of(session), name: "another"}))
    with pytest.raises(ValueError, match=rf"rank 1 of 2 \(agents 2\.\.4\) has another {name} than"):
        lead_of(store).agree(session)


def test_the_facts_of_a_run_tell_its_numbers_its_records_and_its_model_apart(session):
    config = session.config
    training = config.training.model_copy(update={"noise": "hardened"})
    other = replace(session, config=config.model_copy(update={"training": training}))
    assert differing(session, other) == {"run file"}
    plan = replace(session.plan, noise_multiplier=session.plan.noise_multiplier + 1e-12)
    assert differing(session, replace(session, plan=plan)) == {"noise multiplier"}
    seeded = plan_session(changed(config, seed=7), session.out)
    assert differing(session, seeded) == {"run file", "initial model", "records"}


def changed(config: RunFile, **training: Any) -> RunFile:
    return config.model_copy(update={"training": config.training.model_copy(update=training)})


def differing(one: Session, other: Session) -> set[str]:
    ours, theirs = facts_of(one), facts_of(other)
    return {name for name in ours if ours[name] != theirs[name]}


def test_rank_0_says_what_another_rank_failed_with(session):
    store = dist.HashStore()
    store.set("failed/1", json.dumps([2, "no data on this machine"]))
    lead = lead_of(store)
    with pytest.raises(ConnectionError, match="no data on this machine"):
        lead.agree(session)
    lead.ranks = Ranks(agents=5, rank=0, size=2)
    with pytest.raises(ConnectionError, match="no data"), lead.together("advance"):
        raise MissingRank("rank 1 did not answer")


def test_ranks_that_are_started_already_are_as_many_as_asked_for(run_file, monkeypatch, capsys):
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert cli.main(command(run_file, Path("none"), "--ranks", "3")) == 2
    assert "--ranks 3 differs from the 2 ranks that are started" in capsys.readouterr().err


def test_every_rank_on_cuda_needs_a_device_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    place = Place(rank=1, size=2, local_rank=1, local_size=2)
    take_device("cpu", place)
    with pytest.raises(ValueError, match=r"2 ranks on a machine with 1 GPUs.*start 1 ranks"):
        take_device("auto", place)


def test_a_resumed_run_keeps_the_layout_of_its_rounds(run_file, tmp_path):
    def cut_off(at: int, *_: object) -> None:
        if at == 4:
            raise KeyboardInterrupt

    out, config = tmp_path / "out", load_run_file(run_file, ["training.layout=auto"])
    with pytest.raises(KeyboardInterrupt):
        train_run(config, out, progress=cut_off)
    path = out / "checkpoints/round-000004.safetensors"
    held = load_checkpoint(path)
    assert held.facts["layout"] == "book-keeping"
    save_checkpoint(path, replace(held, facts={**held.facts, "layout": "vmap"}))
    resume_run(config, out)
    assert is_finished(out)
    assert json.loads((out / "environment.json").read_text())["layout"] == "vmap"
    assert load_checkpoint(out / "checkpoints/round-000008.safetensors").facts["layout"] == "vmap"


def test_hardened_noise_is_other_noise_of_the_same_plan(run_file, alone, tmp_path):
    config = load_run_file(run_file, ["training.noise=hardened"])
    found = train_run(config, tmp_path / "out")
    assert found.noise_multiplier == 1.5
    ours, theirs = final(alone)["x"], final(tmp_path / "out")["x"]
    assert not torch.allclose(ours, theirs)
    assert 0.8 < float(ours.std() / theirs.std()) < 1.25  # 3,250 values: 10 standard errors
