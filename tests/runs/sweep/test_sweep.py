"""A sweep: every run once, none lost, whatever ends it; and what it says of failures."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overhear.commands import cli
from overhear.privacy.errors import InputError
from overhear.privacy.releases.ledger import read_ledger
from overhear.runs.errors import ContradictedProof
from overhear.runs.folder.folder import check_sums, is_finished
from overhear.runs.folder.records import read_metrics
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import load_run_file, read_tables
from overhear.runs.stop import Interrupted, Stop
from overhear.runs.sweep import engine as one_run
from overhear.runs.sweep.engine import Engine, Task, run_point, started
from overhear.runs.sweep.results import read_results, read_tuned
from overhear.runs.sweep.sweep import run_sweep
from overhear.runs.sweep.sweep_file import checked, points_of

RUN: dict[str, Any] = {
    "data": {"name": "digits", "agents": 2},
    "model": {"name": "linear"},
    "algorithm": {"name": "dp-dpsgd"},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-5, "adversaries": ["eavesdropper"]},
    "training": {"rounds": 2, "sampling_rate": 0.05, "device": "cpu"},
}


def swept(**values: Any) -> Any:
    return checked({"base": RUN, "grid": {"graph.name": ["ring"]}, **values}, where="s.toml")


def run(sweep: Any, out: Path, **options: Any) -> Any:
    return run_sweep(sweep, RUN, out, engine=Engine(jobs=1), **options)


def test_each_run_is_a_run_folder_with_its_seed_and_the_plan_s_figure(tmp_path):
    found = run(swept(grid={"algorithm.name": ["dp-dpsgd", "muffliato"]}, seeds=2), tmp_path / "d")
    assert (found.ran, found.left, found.failed) == (4, 0, [])
    for one in found.results:
        folder = tmp_path / "d" / "points" / one.name
        check_sums(folder)
        config = load_run_file(folder / "run.toml")
        assert config.training.seed == one.seed
        assert config.algorithm.name == one.settings["algorithm.name"]
        plan = make_plan(config)
        assert one.adversaries[0].epsilon == plan.guarantee("eavesdropper").epsilon
        assert one.metrics == read_metrics(folder / "metrics.jsonl")[-1]
    lines = (tmp_path / "d" / "sweep.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["done"] * 4


def test_a_part_of_a_sweep_is_run_into_the_folder_of_all_of_it(tmp_path):
    sweep = swept(grid={"graph.name": ["ring", "full"]}, seeds=3, tune={RATE: [0.5, 1.0]})
    part: Any = [{"graph.name": ["full"], "seed": [1, 2]}]
    stop = Stop()

    def look(done: int, total: int, what: str) -> None:
        assert total == 4
        if done == 3:
            stop.ask(signal.SIGINT)

    with pytest.raises(Interrupted):
        run(sweep, tmp_path / "d", only=part, progress=look, stop=stop)
    found = run(sweep, tmp_path / "d", only=part)
    assert (found.ran, found.left, len(found.results)) == (1, 0, 4)
    assert {row["graph.name"] for row, _ in read_tuned(tmp_path / "d")} == {"full"}
    kept = {path: path.read_bytes() for path in (tmp_path / "d" / "results").iterdir()}
    found = run(sweep, tmp_path / "d")
    assert (found.ran, found.left, len(found.results)) == (6, 0, 10)
    assert {path: path.read_bytes() for path in kept} == kept
    with pytest.raises(FileExistsError, match="of another sweep"):
        run(swept(grid={"graph.name": ["ring"]}, seeds=3), tmp_path / "d", only=part[:0])


def test_a_run_that_ended_is_never_run_again_and_a_sweep_may_grow(tmp_path):
    run(swept(), tmp_path / "d")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "d" / "points").rglob("*")}
    found = run(swept(grid={"graph.name": ["ring", "full"]}, seeds=2), tmp_path / "d")
    assert found.ran == 3
    assert all(p.stat().st_mtime_ns == at for p, at in before.items() if p.is_file())


def test_another_sweep_in_the_folder_is_refused_and_changes_nothing(tmp_path):
    out = tmp_path / "d"
    run(swept(grid={"graph.name": ["ring", "full"]}), out)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for other in (swept(), swept(grid={"training.rounds": [3]})):
        with pytest.raises(FileExistsError, match="is of another sweep"):
            run(other, out)
    changed = {**RUN, "training": {**RUN["training"], "rounds": 3}}
    with pytest.raises(FileExistsError, match="other keys of its run file"):
        run_sweep(swept(grid={"graph.name": ["ring", "full"]}), changed, out, engine=Engine(jobs=1))
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(FileExistsError, match=r"holds letter\.txt and no sweep"):
        run(swept(), tmp_path)
    with pytest.raises(FileExistsError, match="is a file"):
        run(swept(), tmp_path / "letter.txt")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["letter.txt"]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"graph.nmae": ["ring"]}, r"can have graph\.nmae=ring: .*did you mean name"),
        ({"graph.name": ["ring", "circle"]}, r"can have graph\.name=circle"),
        ({"training.rounds": [1, -1]}, r"can have training\.rounds=-1"),
    ],
)
def test_a_key_or_value_that_no_run_can_have_is_refused_before_anything_is_written(
    tmp_path, grid, words
):
    with pytest.raises(InputError, match=words):
        run(swept(grid=grid), tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_combination_that_cannot_be_is_kept_with_its_reason_and_stops_no_other(tmp_path):
    skewed = {"data.agents": 3, "data.concentration": 0.5, "label": "3, skewed"}
    grid = {"data.partition": ["iid", "dirichlet"], "data.agents": [2, skewed]}
    found = run(swept(grid=grid), tmp_path / "d")
    assert {one.state for one in found.results} == {"done", "failed"}
    [failed] = found.failed
    assert failed.settings == {"data.partition": "iid", "data.agents": "3, skewed"}
    assert "concentration" in (failed.error or "")
    assert run(swept(grid=grid), tmp_path / "d").ran == 0
    assert run(swept(grid=grid), tmp_path / "d", retry=True).ran == 1


def test_tuning_chooses_on_validation_records_and_the_choice_stays(tmp_path):
    sweep = swept(tune={"training.learning_rate": [1e-6, 0.5]}, seeds=2)
    found = run(sweep, tmp_path / "d")
    assert found.left == 0
    [(row, chosen)] = read_tuned(tmp_path / "d")
    assert (row, chosen) == ({"graph.name": "ring"}, {"training.learning_rate": "0.5"})
    for one in found.results:
        config = load_run_file(tmp_path / "d" / "points" / one.name / "run.toml")
        assert config.data.validation == (0.2 if one.tuning else None)
        if not one.tuning:
            assert config.training.learning_rate == 0.5
    more = swept(tune={"training.learning_rate": [1e-6, 0.5, 0.6]}, seeds=2)
    run(more, tmp_path / "d")
    assert [held for _, held in read_tuned(tmp_path / "d")] == [chosen]


def test_validation_records_are_no_training_records_and_no_test_records():
    built = build(read_tables({**RUN, "data": {**RUN["data"], "validation": 0.25}}))
    whole = build(read_tables(RUN))
    kept = built.data.measured
    assert len(kept.targets) + len(built.data.targets) == len(whole.data.targets)
    assert sum(shard.size for shard in built.setting.shards) == len(built.data.targets)
    rows = {tuple(x.flatten().tolist()) for x in kept.inputs}
    trained = {tuple(x.flatten().tolist()) for s in built.setting.shards for x in s.inputs}
    tested = {tuple(x.flatten().tolist()) for x in whole.data.test_inputs}
    assert not rows & tested
    assert len(rows & trained) <= 1  # digits hold a record twice at the most
    assert any("no epsilon counts" in note for note in built.data.notes)


def test_a_run_that_was_cut_off_goes_on_and_says_what_it_released(tmp_path, monkeypatch):
    """Without a target the rounds after the checkpoint are released twice, and cost more."""
    base = {**RUN, "training": {**RUN["training"], "rounds": 40, "checkpoint_every": 40}}
    sweep, out = swept(seeds=1), tmp_path / "d"
    for name in ("points", "results", "locks"):
        (out / name).mkdir(parents=True)
    [point] = points_of(sweep, {})
    task = Task(out=out, base=base, point=point)
    from overhear.training.engine.engine import Engine

    whole, rounds = Engine.advance, []

    def dies(self: Engine) -> None:
        rounds.append(1)
        if len(rounds) == 30:
            raise KeyboardInterrupt
        whole(self)

    monkeypatch.setattr(Engine, "advance", dies)
    with pytest.raises(KeyboardInterrupt):
        run_point(task)
    assert started(out, point.name)
    result = run_point(task)
    plan = make_plan(read_tables(base, point.overrides))
    assert not started(out, point.name)
    assert is_finished(out / "points" / point.name)
    assert len(read_ledger(out / "points" / point.name / "ledger.jsonl").numbers) > 41
    assert result.adversaries[0].epsilon > plan.guarantee("eavesdropper").epsilon


def test_a_crash_of_one_run_is_a_result_and_the_others_go_on(tmp_path, monkeypatch):
    from overhear.runs.sweep import engine as one_run

    whole = one_run.train_run

    def breaks(config: Any, folder: Path) -> Any:
        if config.graph.name == "full":
            raise ZeroDivisionError("by a bug")
        return whole(config, folder)

    monkeypatch.setattr(one_run, "train_run", breaks)
    found = run(swept(grid={"graph.name": ["full", "ring"]}), tmp_path / "d")
    assert [one.error for one in found.failed] == ["crash: ZeroDivisionError: by a bug"]
    assert len(found.results) == 2
    monkeypatch.undo()
    assert not run(swept(grid={"graph.name": ["full", "ring"]}), tmp_path / "d", retry=True).failed


def test_a_full_disk_in_the_middle_loses_nothing(tmp_path, monkeypatch):
    from overhear.runs.sweep import engine as one_run

    written = []

    def full(out: Path, result: Any) -> None:
        if len(written) == 1:
            raise OSError(28, "No space left on device", str(out / "results" / result.name))
        written.append(result)
        whole(out, result)

    whole = one_run.write_result
    monkeypatch.setattr(one_run, "write_result", full)
    with pytest.raises(OSError, match="No space left"):
        run(swept(seeds=3), tmp_path / "d")
    monkeypatch.undo()
    assert len(read_results(tmp_path / "d")) == 1
    found = run(swept(seeds=3), tmp_path / "d")
    assert (found.ran, len(found.results), found.failed) == (2, 3, [])


def test_two_commands_do_not_run_one_sweep_at_once(tmp_path):
    def again(*_: Any) -> None:
        with pytest.raises(InputError, match="another process runs the sweep"):
            run(swept(), tmp_path / "d")

    run(swept(), tmp_path / "d", progress=again)


def test_asked_to_stop_it_keeps_what_is_done(tmp_path):
    stop = Stop()

    def asks(done: int, total: int, _: str) -> None:
        if done == 1:
            stop.ask(signal.SIGINT)

    with pytest.raises(Interrupted, match="the same command goes on"):
        run(swept(seeds=3), tmp_path / "d", progress=asks, stop=stop)
    assert len(read_results(tmp_path / "d")) == 1
    assert run(swept(seeds=3), tmp_path / "d").ran == 2


def test_attack_is_made_of_the_chosen_runs_alone(tmp_path):
    base = {**RUN, "attack": {"presets": ["matched"], "images": 1, "restarts": 1}}
    sweep = swept(also={"attack": {"seed": [2]}}, seeds=2)
    found = run_sweep(sweep, base, tmp_path / "d", engine=Engine(jobs=1))
    assert {one.seed: one.attacked for one in found.results} == {1: False, 2: True}
    more = run_sweep(
        swept(also={"attack": True}, seeds=2), base, tmp_path / "d", engine=Engine(jobs=1)
    )
    assert more.ran == 1
    assert all(one.attacked for one in more.results)


def test_the_command_says_what_failed(tmp_path, capsys, run_file):
    (tmp_path / "s.toml").write_text(
        f'base = "{run_file}"\n[grid]\n"graph.nmae" = ["ring"]\n', encoding="utf-8"
    )
    assert cli.main(["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "d")]) == 2
    assert "did you mean name" in capsys.readouterr().err
    assert cli.main(["sweep", "s.toml", "--out", "d", "--devices", "cuda:0,,"]) == 2
    assert "empty device" in capsys.readouterr().err


def test_a_sweep_of_which_nothing_could_be_trained_ends_with_exit_code_2(
    tmp_path, capsys, run_file
):
    (tmp_path / "s.toml").write_text(
        f'base = "{run_file}"\n[grid]\n"graph.name" = ["ring"]\n[tune]\n'
        '"training.learning_rate" = [1e300]\n',
        encoding="utf-8",
    )
    assert cli.main(["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "d")]) == 2
    assert (
        "none of the 2 runs could be trained; the first of them says: " in capsys.readouterr().err
    )


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_a_share_that_keeps_no_record_or_all_is_refused_at_once(tmp_path, share):
    tuned = swept(tune={"training.learning_rate": [1.0], "validation": share})
    with pytest.raises(InputError, match=r"\[tune\] validation=.* such as 0\.2"):
        run(tuned, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_each_run_is_in_the_index_as_soon_as_it_ended(tmp_path):
    found = []

    def look(done, total, what):
        found.append(len((tmp_path / "d" / "sweep.jsonl").read_text("utf-8").splitlines()))

    grid = {"graph.name": ["ring", "full"]}
    run_sweep(swept(grid=grid), RUN, tmp_path / "d", engine=Engine(jobs=1), progress=look)
    assert found == [1, 2]


def test_devices_are_shared_one_process_on_each(tmp_path):
    """With as many runs as devices held, another one waits; the first free one is taken."""
    from overhear.runs.sweep.engine import _device

    (tmp_path / "locks").mkdir()
    [point] = points_of(swept(), {})
    task = Task(out=tmp_path, base=RUN, point=point, devices=("cpu", "cuda:0"))
    with _device(task) as first, _device(task) as second:
        assert (first, second) == ("cpu", "cuda:0")
    with _device(task) as again:
        assert again == "cpu"


def _start(out: Path, sweep: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "overhear", "sweep", str(sweep), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--jobs", "2", *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def _written(path: Path, run_file: Path, *, seeds: int) -> Path:
    text = run_file.read_text(encoding="utf-8").replace("rounds = 200", "rounds = 12")
    run_file.write_text(text.replace("[model]", "agents = 4\n[model]"), encoding="utf-8")
    path.write_text(
        f'base = "{run_file}"\nseeds = {seeds}\n[grid]\n"graph.name" = ["ring", "full"]\n',
        encoding="utf-8",
    )
    return path


def _wait_for(count: int, out: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 300
    while len(list((out / "results").glob("*.json"))) < count:
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < until
        time.sleep(0.05)


def _check_whole(out: Path, runs: int) -> None:
    results = read_results(out)
    assert len(results) == runs
    assert {one.state for one in results} == {"done"}
    for one in results:
        check_sums(out / "points" / one.name)
        assert is_finished(out / "points" / one.name)


@pytest.mark.slow
def test_a_sweep_that_is_killed_twice_has_every_run_once(tmp_path, run_file):
    sweep, out = _written(tmp_path / "s.toml", run_file, seeds=3), tmp_path / "d"
    for done in (1, 3):
        process = _start(out, sweep)
        _wait_for(done, out, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert cli.main(["sweep", str(sweep), "--out", str(out), "--jobs", "1"]) == 0
    _check_whole(out, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "worker"),
    [("loky", "LokyProcess"), ("dask", "spawn_main"), ("ray", "ray::PoolActor")],
)
def test_with_a_worker_killed_every_run_is_there_once(tmp_path, run_file, backend, worker):
    if backend == "ray":
        pytest.importorskip("ray.util", reason="ray is not installed: pip install 'ray>=2.52'")
    import psutil

    sweep, out = _written(tmp_path / "s.toml", run_file, seeds=2), tmp_path / "d"
    process = _start(out, sweep, "--backend", backend)
    _wait_for(1, out, process)
    children = psutil.Process(process.pid).children(recursive=True)
    next(child for child in children if worker in " ".join(child.cmdline())).kill()
    said = process.communicate()[0].decode()
    assert process.returncode == 0, said
    _check_whole(out, 4)


@pytest.mark.slow
def test_a_cluster_of_ray_that_was_started_runs_a_sweep_without_a_word_of_its_own(
    tmp_path, run_file, monkeypatch
):
    pytest.importorskip("ray.util", reason="ray is not installed: make test-ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    start = ["start", "--head", "--port", "6399", "--num-cpus", "2", "--node-ip-address"]
    sweep, out = _written(tmp_path / "s.toml", run_file, seeds=1), tmp_path / "d"
    subprocess.run([*ray, *start, "127.0.0.1", "--include-dashboard=false"], check=True)
    try:
        process = _start(out, sweep, "--backend", "ray", "--address", "127.0.0.1:6399")
        said = process.communicate(timeout=300)[0].decode()
    finally:
        subprocess.run([*ray, "stop"], check=True)
    assert process.returncode == 0, said
    assert "ray" not in said.lower().replace(str(tmp_path).lower(), ""), said
    _check_whole(out, 2)


LISTENING = """
import stat
import sys
from pathlib import Path
import psutil
from overhear.runs.sweep.engine import Engine
if __name__ == "__main__":
    for again in range(2):
        with Engine(jobs=1, backend=sys.argv[1])._ready():
            process = psutil.Process()
            for one in (process, *process.children(recursive=True)):
                for held in one.net_connections():
                    if held.status == "LISTEN":
                        print(held.laddr.ip)
                for held in one.net_connections("unix"):
                    at = Path(held.laddr)
                    closed = [not stat.S_IMODE(up.stat().st_mode) & 0o077 for up in at.parents]
                    if at.is_absolute() and at.exists() and not any(closed):
                        print(at)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_cluster_of_this_machine_listens_on_loopback_alone(tmp_path, backend):
    pytest.importorskip({"dask": "distributed", "ray": "ray.util"}[backend])
    (tmp_path / "listening.py").write_text(LISTENING, encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "listening.py", backend], check=False, cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert {one.removeprefix("::ffff:") for one in told.stdout.split()} == {"127.0.0.1"}
    assert not (tmp_path / ".ray").exists()  # the token is kept nowhere that others can read


def test_ray_asks_for_a_token_on_loopback_or_is_refused(monkeypatch, tmp_path):
    from overhear.runs.sweep import engine

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    engine._shut_off_ray()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    begun = []
    ray = SimpleNamespace(__version__="2.51.2", init=lambda **asked: begun.append(asked))
    local = engine.Engine(jobs=2, backend="ray")
    with pytest.raises(InputError, match=r"ray is 2.51.2, .*; install ray>=2.52"):
        local._begin_ray(ray, str(tmp_path))
    ray.__version__ = "2.52.0"
    local._begin_ray(ray, str(tmp_path))
    assert begun[0]["_node_ip_address"] == "127.0.0.1"
    assert begun[0]["address"] == "local"
    assert begun[0]["_temp_dir"] == str(tmp_path)
    with pytest.raises(InputError, match=r"ray listens at 192.0.2.1 and not on 127.0.0.1 alone"):
        engine._check_shut_off("192.0.2.1")


def test_a_scheduler_that_does_not_answer_is_a_sentence(tmp_path, monkeypatch):
    from overhear.runs.sweep import engine

    monkeypatch.setattr(engine, "_PATIENCE", 0.2)
    cluster = Engine(jobs=1, backend="dask", address="127.0.0.1:9")
    with pytest.raises(InputError, match=r"no dask scheduler answers at address='127.0.0.1:9'"):
        run_sweep(swept(), RUN, tmp_path / "d", engine=cluster)
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:port"):
        with pytest.raises(InputError, match=r"no ray cluster answers at address='.*127.0.0.1"):
            engine._check_answers(address)
    with pytest.raises(InputError, match="has no effect with backend='loky'"):
        Engine(address="127.0.0.1:9")


RATE = "training.learning_rate"


def test_a_choice_is_read_off_its_runs_where_its_file_was_removed(tmp_path):
    asked = {"tune": {RATE: [0.001, 0.5]}, "seeds": 2}
    run(swept(**asked), tmp_path / "d")
    tuned = tmp_path / "d" / "tuned.jsonl"
    before = tuned.read_bytes()
    tuned.unlink()
    assert run(swept(**asked), tmp_path / "d").ran == 0
    assert tuned.read_bytes() == before


@pytest.mark.parametrize(
    "text", ["[]", '{"row": {"graph.name": ["ring"]}, "chosen": {}}', "\xff", "[" * 100_000]
)
def test_a_broken_file_of_choices_is_a_sentence(tmp_path, text):
    run(swept(tune={RATE: [0.5]}), tmp_path / "d")
    (tmp_path / "d" / "tuned.jsonl").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"tuned.jsonl cannot be read in line 1; remove it"):
        run(swept(tune={RATE: [0.5]}), tmp_path / "d")


def test_no_reported_run_is_measured_on_records_that_were_tuned_on(tmp_path):
    base = {**RUN, "data": {**RUN["data"], "validation": 0.2}}
    with pytest.raises(InputError, match="measure the reported runs on records that"):
        run_sweep(swept(tune={RATE: [0.5]}), base, tmp_path / "d", engine=Engine(jobs=1))
    assert not (tmp_path / "d").exists()


def test_what_an_audit_found_against_a_proof_stays_when_the_sweep_grows(tmp_path, monkeypatch):
    def contradicted(folder: Path) -> None:
        (folder / "audited").touch()
        raise ContradictedProof("more was measured")

    def again(_: object) -> None:
        raise ContradictedProof("more was measured")

    def kept(folder: Path) -> object:
        return True if (folder / "audited").exists() else None

    monkeypatch.setattr(one_run, "audit_folder", contradicted)
    monkeypatch.setattr(one_run, "raise_contradiction", again)
    monkeypatch.setattr(one_run, "read_audit", kept)
    monkeypatch.setattr(one_run, "attack_run", lambda folder: None)
    first = run(swept(also={"audit": True}), tmp_path / "d")
    more = run(swept(also={"audit": True, "attack": True}), tmp_path / "d")
    for found in (first, more):
        assert [one.contradictions for one in found.results] == [["more was measured"]]
