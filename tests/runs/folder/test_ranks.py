"""A run over ranks is the run of one process, and leaves the files of one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overhear.commands import cli
from overhear.privacy import read_ledger
from overhear.privacy.errors import InputError
from overhear.runs.folder.folder import is_finished
from overhear.runs.folder.place import Place, check_same_facts
from overhear.runs.folder.ranks import Group, Start, facts_of, take_device
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import Session, plan_session, train_run
from overhear.runs.plan.plan import Plan
from overhear.runs.run_file.build import Built
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.engine.engine import Engine
from overhear.training.engine.tensor_file import Checkpoint, load_checkpoint, save_checkpoint
from overhear.training.engine.transcript import Transcript
from tests.runs.folder.rank_processes import started_by_hand
from tests.small_run import run_text

# A layout that takes one example at a time rounds alike however many agents a rank has; the others
# stack what a rank holds, and agree to about 1e-6 in float32.
RUN = run_text(
    "dpdl",
    agents=5,
    privacy={"noise_multiplier": 1.5, "delta": 0.0001, "adversaries": []},
    training={
        "rounds": 8,
        "sampling_rate": 0.01,
        "checkpoint_every": 3,
        "evaluate_every": 2,
        "evaluation_noise_seed": 3,
        "layout": "loop",
    },
    intercept={"rounds": [3, 6]},
    attack={"rounds": [3]},
)
LIMIT = 100  # seconds; a hang shall fail, not hold up the suite
FAST = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
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
def alone(run_file):
    out = run_file.parent / "alone"
    train_run(load_run_file(run_file), out)
    return out


@pytest.fixture(scope="module")
def spread(run_file):
    out = run_file.parent / "spread-4"
    given = command(run_file, out, "--ranks=4")
    done = subprocess.run(
        [sys.executable, "-m", "overhear.commands.cli", *given], check=False, capture_output=True,
        text=True, timeout=LIMIT, env=FAST,
    )  # fmt: skip
    return out, done


@pytest.mark.distributed
def test_ranks_started_by_hand_leave_the_files_of_the_run_in_one_process(alone, run_file, tmp_path):
    out = tmp_path / "spread-2"
    ended = started_by_hand([command(run_file, out)] * 2, tmp_path)
    assert ended.codes == [0, 0], ended.said
    assert "".join(ended.said).count("The run is in") == 1
    check_same_files(alone, out)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_run_over_ranks_leaves_the_files_of_the_run_in_one_process(alone, spread):
    out, done = spread
    assert done.returncode == 0, done.stderr
    check_same_files(alone, out)


def check_same_files(alone: Path, out: Path) -> None:
    names = [sorted(p.relative_to(f) for p in f.rglob("*")) for f in (alone, out)]
    assert names[0] == names[1]
    for name in ("run.toml", "metrics.jsonl"):
        assert (out / name).read_bytes() == (alone / name).read_bytes(), name
    ledgers = [read_ledger(f / "ledger.jsonl") for f in (alone, out)]
    assert ledgers[0].entries == ledgers[1].entries
    own = {"run": "", "records": ""}  # a token, and the digest of a file with a salt of its own
    assert {**ledgers[0].header, **own} == {**ledgers[1].header, **own}
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
    ranks = [json.loads((f / "environment.json").read_text())["ranks"] for f in (alone, out)]
    assert ranks == [1, int(out.name.removeprefix("spread-"))]


@pytest.mark.slow
@pytest.mark.distributed
def test_one_rank_alone_speaks(spread):
    _, done = spread
    assert done.stdout.count("The run is in") == 1
    assert done.stdout.startswith("Who could learn what")
    told = [line for line in done.stderr.splitlines() if line]
    assert [line.split(":")[0] for line in told] == [f"training {n}/8" for n in (0, 2, 4, 6, 8)]


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


class Watched(Group):
    """Rank 0 without the others: what the ledger has at each barrier."""

    def __init__(self, out: Path) -> None:
        self.place = Place(rank=0, size=2, local_rank=0, local_size=2)
        self.ranks, self.out, self.met, self.closed = None, out, list[int](), False
        self.asked = 0

    def agree(self, config: RunFile, built: Built, plan: Plan) -> None:
        pass

    def share_start(self, start: Start | None) -> Start | None:
        return start

    def close(self) -> None:
        assert is_finished(self.out)
        self.closed = True

    def barrier(self, signal: int = 0) -> int:
        self.met.append(len(read_ledger(self.out / "ledger.jsonl").numbers))
        return signal


def test_ranks_meet_once_a_round_is_in_the_ledger_and_before_it_begins(
    run_file, tmp_path, monkeypatch
):
    watched, done = Watched(tmp_path / "out"), list[int]()
    for name in ("start", "advance"):
        step = getattr(Engine, name)
        monkeypatch.setattr(
            Engine, name, lambda engine, step=step: (done.append(len(watched.met)), step(engine))
        )
    none = ["intercept.rounds=[]", "attack.rounds=[]"]
    train_run(load_run_file(run_file, none), tmp_path / "out", group=watched)
    assert watched.met == [
        *range(1, 10),
        9,
    ]  # each round, and once more before the folder is closed
    assert done == list(range(1, 10))
    assert watched.closed


@pytest.fixture(scope="module")
def session(run_file):
    return plan_session(load_run_file(run_file), run_file.parent / "planned")


@pytest.mark.parametrize(
    "name", ["run file", "noise multiplier", "packages", "records", "graph", "kind of device"]
)
def test_ranks_that_would_compute_something_else_are_refused_by_what_differs(session, name):
    mine = facts(session)
    check_same_facts(mine, mine, name="rank 1")
    with pytest.raises(ValueError, match=rf"rank 1 has another {name} than rank 0 \(other, not"):
        check_same_facts({**mine, name: "other"}, mine, name="rank 1")


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


def facts(session: Session) -> dict[str, str]:
    return facts_of(session.config, session.built, session.plan)


def differing(one: Session, other: Session) -> set[str]:
    ours, theirs = facts(one), facts(other)
    return {name for name in ours if ours[name] != theirs[name]}


def test_ranks_that_are_started_already_are_as_many_as_asked_for(run_file, monkeypatch, capsys):
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert cli.main(command(run_file, Path("none"), "--ranks", "3")) == 2
    assert "--ranks 3 differs from the 2 ranks that are started" in capsys.readouterr().err


@pytest.mark.parametrize(("found", "taken"), [(1, [0, 0, 0]), (2, [0, 1, 0]), (3, [0, 1, 2])])
def test_ranks_take_turns_at_the_devices_of_a_machine(found, taken, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    seen = []
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    places = [Place(rank=3 + r, size=9, local_rank=r, local_size=3) for r in range(3)]
    for place in places:
        take_device("cpu", place)
    assert seen == []
    for place in places:
        take_device("auto", place)
    assert seen == taken
    with pytest.raises(InputError, match="'cuda:1' is one GPU, and ranks take turns"):
        take_device("cuda:1", places[0])
    assert seen == taken


@pytest.mark.parametrize(
    ("held_layout", "layout"),
    [("vmap", "vmap"), ("auto", "grouped")],  # with "auto" nothing was settled
)
def test_a_resumed_run_keeps_the_layout_of_its_rounds(held_layout, layout, run_file, tmp_path):
    def cut_off(at: int, *_: object) -> None:
        if at == 4:
            raise KeyboardInterrupt

    out, config = tmp_path / "out", load_run_file(run_file, ["training.layout=auto"])
    with pytest.raises(KeyboardInterrupt):
        train_run(config, out, progress=cut_off)
    path = out / "checkpoints/round-000004.safetensors"
    held = load_checkpoint(path)
    assert held.facts["layout"] == "grouped"
    older = {"layout": held_layout, "measured": '{"vmap": 0.1, "book-keeping": 0.2}'}
    save_checkpoint(path, replace(held, facts={**held.facts, **older}))
    resume_run(config, out)
    assert is_finished(out)
    assert json.loads((out / "environment.json").read_text())["layout"] == layout
    assert load_checkpoint(out / "checkpoints/round-000008.safetensors").facts["layout"] == layout


def test_hardened_noise_is_other_noise_of_the_same_plan(run_file, alone, tmp_path):
    config = load_run_file(run_file, ["training.noise=hardened"])
    found = train_run(config, tmp_path / "out")
    assert found.noise_multiplier == 1.5
    ours, theirs = final(alone)["x"], final(tmp_path / "out")["x"]
    assert not torch.allclose(ours, theirs)
    assert 0.8 < float(ours.std() / theirs.std()) < 1.25  # 3,250 values: 10 standard errors


@pytest.mark.parametrize("at", [None, 3])
def test_a_start_is_the_same_on_every_rank(at):
    state = {"x": torch.rand(3, 2), "y": torch.ones(0, 4), "z": torch.arange(3)}
    held = None if at is None else Checkpoint(round=at, state=state, facts={"run": "a\nb"})
    sent = Start(8, held)
    got = Start.unpacked(sent.packed())
    assert got.last == 8
    if held is None:
        assert got.checkpoint is None
    else:
        assert (got.checkpoint.round, got.checkpoint.facts) == (held.round, held.facts)
        assert same(dict(got.checkpoint.state), state)
