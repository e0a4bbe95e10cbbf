"""Folders of a stranger: commands run nothing of them, and neither read nor write elsewhere."""

import contextvars
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin

import numpy as np
import pytest
import typer.main

from overhear import Run
from overhear.commands import cli
from overhear.privacy.errors import InputError
from overhear.privacy.releases.ledger import Ledger, read_ledger
from overhear.runs.folder.folder import write_sums
from overhear.runs.folder.run import train_run
from overhear.runs.run_file import trust
from overhear.runs.run_file.run_file import ForeignFolder, RunFile, load_run_file, named_paths
from overhear.runs.run_file.tables import Call, Table
from overhear.training.own import names
from overhear.training.own.objects import give, pins

MINE = """\
import math
import os

import torch
from overhear.training import Dataset
from sklearn.datasets import load_digits
from torch import nn


def net(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def rows(path=None):
    if path is not None:
        os.system(f"touch {path}")
    held = load_digits()
    return held.data.astype("float32") / 16, held.target
"""
RUN = """\
[data]
name = "foreign_mine:rows"
agents = 2
[graph]
name = "ring"
[model]
name = "foreign_mine:net"
[algorithm]
name = "dp-dpsgd"
[privacy]
noise_multiplier = 2.0
delta = 1e-5
[training]
rounds = 1
sampling_rate = 0.1
"""
NAMES = [
    '{key = "data.name", name = "foreign_mine:rows"}',
    '{key = "model.name", name = "foreign_mine:net"}',
]
TABLE = 'root = "{}"\ncolumns = {{a = [0, 1], y = ["0", "1"]}}\ntarget = "y"'


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A working directory with a pinned file, a secret beside it, and the folder of a run."""
    top = tmp_path_factory.mktemp("foreign")
    here = top / "here"
    here.mkdir()
    (top / "elsewhere").mkdir()
    (top / "elsewhere" / "round-000001.safetensors").write_text("precious")
    np.savez(top / "elsewhere" / "secret.npz", X=np.zeros((9, 2)), y=np.zeros(9, dtype=int))
    (top / "elsewhere" / "secret.csv").write_text("a,y\n0.5,0\n0.5,1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        Path("foreign_mine.py").write_text(MINE)
        Path("run.toml").write_text(RUN)
        # One line is remembered, whatever was trained before in this process, or is after.
        patch.setenv("XDG_STATE_HOME", str(top / "state"))
        train_run(load_run_file("run.toml"), Path("kept"))
        shutil.copytree(top / "state", top / "trained")
        yield here
        sys.modules.pop("foreign_mine", None)


@pytest.fixture
def evil(stranger, monkeypatch):
    """A copy of the folder, and a process in which nobody named anything yet."""
    monkeypatch.chdir(stranger)
    monkeypatch.delenv("OVERHEAR_DATA", raising=False)
    for where, name in ((trust, "_ASKED"), (trust, "_FOREIGN"), (names, "_ASKED")):
        monkeypatch.setattr(where, name, set())
    shutil.copytree("kept", "evil")
    yield Path("evil")
    shutil.rmtree("evil")


def policy(names: list[str] = NAMES) -> str:
    digest = hashlib.sha256(Path("foreign_mine.py").read_bytes()).hexdigest()
    Path("policy.toml").write_text(
        'schema = 1\n[[limits]]\nadversary = "eavesdropper"\nepsilon = 100\ndelta = 1e-5\n'
        f'[code]\nallow = {{"foreign_mine.py" = "{digest}"}}\nnames = [{", ".join(names)}]\n'
    )
    return "policy.toml"


def forge(evil: Path, *changes: tuple[str, str]) -> None:
    """Change the run.toml of a folder as somebody does who writes its ledger and sums, too."""
    text = (evil / "run.toml").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    (evil / "run.toml").write_text(text)
    spent = read_ledger(evil / "ledger.jsonl")
    (evil / "ledger.jsonl").unlink()
    header = dict(spent.header) | {"run_file": hashlib.sha256(text.encode()).hexdigest()}
    ledger = Ledger(evil / "ledger.jsonl", header)
    for entry in spent.entries:
        ledger.append(entry["round"], entry["releases"])
    ledger.close()
    write_sums(evil)


def tree(top: Path, but: str) -> dict[str, str]:
    """What every file below a folder holds, and where every link leads."""
    found = {}
    for place, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name not in (but, "__pycache__")]
        for path in (Path(place) / name for name in (*folders, *files)):
            held = str(path.readlink()) if path.is_symlink() else ""
            held += hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = held
    return found


DATA, MODEL = 'name = "foreign_mine:rows"', 'name = "foreign_mine:net"'
GRAPH = 'name = "ring"'
OUT = "../elsewhere"


def data(name: str, more: str = "") -> tuple[str, str]:
    return DATA, f'name = "{name}"\n{more}'


HOSTILE: dict[str, Callable[[Path], None]] = {}
for number, change in enumerate(
    [
        # A dotted name through what the pinned file imports, and arguments of the stranger's.
        data("foreign_mine:nn.modules.module.torch.load", 'f = "evil/w.pt"\nweights_only = false'),
        data("foreign_mine:torch.load", 'f = "evil/w.pt"'),
        data("foreign_mine:os.system", 'command = "touch ran"'),
        data("foreign_mine:os.path.exists", 'path = "/"'),
        data("./foreign_mine.py:os.system", 'command = "touch ran"'),
        data("foreign_mine:load_digits"),
        data("foreign_mine:rows", 'path = "ran"'),
        data("foreign_mine:rows", 'options = {path = "ran"}'),
        data("foreign_mine:rows", 'path = "ran"\noptions = {path = "no"}'),
        data("foreign_mine:rows.__globals__"),
        data("foreign_mine:__builtins__.exec", 'source = "open(1)"'),
        data("foreign_mine:net"),
        data("./foreign_mine.py:rows"),
        data("evil/sources/foreign_mine.py:rows"),
        data("evil.sources.foreign_mine:rows"),
        data("../here/foreign_mine.py:rows"),
        data("os:system", 'command = "touch ran"'),
        data("object:foreign_mine.rows@" + "0" * 64, 'path = "ran"'),
        (MODEL, 'name = "foreign_mine:rows"'),
        (MODEL, 'name = "foreign_mine:nn.Identity"'),
        (MODEL, f'{MODEL}\nloss = "foreign_mine:net"'),
        (MODEL, f'{MODEL}\nloss = "foreign_mine:math.dist"'),
        # Paths that lead out.
        data("npz", f'root = "{OUT}/secret.npz"'),
        data("npz", 'root = "evil/../../elsewhere/secret.npz"'),
        data("npz", 'root = "/etc/passwd"'),
        data("npz", 'root = "~/secret.npz"'),
        data("npz", 'root = "~nobody-at-all/secret.npz"'),
        data("npz", 'root = "a\\u0000b"'),
        data("npy", f'root = "kept/x.npy"\ntarget = "{OUT}/secret.npz"'),
        data("csv", TABLE.format(f"{OUT}/secret.csv")),
        data("csv", f'root = "{OUT}/secret.csv"'),
        data("csv", TABLE.format("kept/x.csv") + f'\ntest = "{OUT}/secret.csv"'),
        data("libsvm", f'root = "{OUT}/secret.csv"\nfeatures = 1'),
        data("image-folder", 'root = "/"'),
        data("mnist", f'root = "{OUT}"'),
        (GRAPH, f'name = "file"\npath = "{OUT}/secret.csv"'),
        ("[training]", f'[participation]\npath = "{OUT}/secret.csv"\n[training]'),
        ('presets = [\n    "matched",\n]', f'prior = "{OUT}/secret.npz"\npresets = ["matched"]'),
    ]
):
    HOSTILE[f"run.toml {number}"] = lambda evil, change=change: forge(evil, change)


def link(name: str, to: str) -> Callable[[Path], None]:
    def made(evil: Path) -> None:
        path = evil / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(to)
        write_sums(evil)

    return made


for name, to in (
    ("checkpoints", f"../{OUT}"),
    ("transcript", f"../{OUT}"),
    ("attacks", f"../{OUT}"),
    ("sources", "/"),
    ("ledger.jsonl", "../kept/ledger.jsonl"),
    ("run.toml", "../run.toml"),
    ("metrics.jsonl", f"../{OUT}/round-000001.safetensors"),
    ("report.html", f"../{OUT}/written.html"),  # where nothing is yet
    ("privacy.json", "/dev/zero"),
    ("checkpoints/round-000001.safetensors", f"../../{OUT}/round-000001.safetensors"),
    ("more", "more"),
):
    HOSTILE[f"link {name}"] = link(name, to)


@pytest.mark.some_quick(16)
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_folder_runs_nothing_and_writes_nothing_elsewhere(evil, case, capsys):
    HOSTILE[case](evil)
    policy()
    top = Path.cwd().parent
    whole, outside = tree(top, ""), tree(top, "evil")
    assert cli.main(["check", "evil", "--policy", "policy.toml"]) == 2
    assert tree(top, "") == whole
    assert cli.main(["report", "evil"]) == 2
    assert tree(top, "evil") == outside
    said = capsys.readouterr().err
    assert said.count("error: ") == 2
    assert "Traceback" not in said


def test_what_a_policy_names_is_run_and_the_line_to_write_is_said(evil, capsys):
    forge(evil)
    policy([])  # a policy of before, which pins files alone
    assert cli.main(["check", "evil", "--policy", "policy.toml"]) == 2
    said = capsys.readouterr().err
    line = said[said.index("names = [") + 9 : said.rindex("]")]
    assert line == ", ".join(NAMES)
    policy([line])
    assert cli.main(["check", "evil", "--policy", "policy.toml"]) == 5  # read, and not audited
    forge(evil, (DATA, f'{DATA}\npath = "ran"'))
    policy([NAMES[0].replace("}", ', options = {path = "ran"}}'), NAMES[1]])
    (evil / "report.html").unlink(missing_ok=True)
    (evil / "privacy.json").unlink(missing_ok=True)
    write_sums(evil)
    cli.main(["check", "evil", "--policy", "policy.toml"])
    assert Path("ran").exists()  # who names an option has it handed on
    Path("ran").unlink()


@pytest.mark.slow
def test_the_line_to_write_is_of_the_files_alone_and_has_an_end(evil):
    """A name of a file is text in it, however it is spelled, and ten thousand of them are cut."""
    digest = "0" * 64
    files = {f'a" = "{digest}", "b.py': digest}
    mine = json.loads(Path("kept/sources.json").read_text())["files"]
    Path(evil, "sources.json").write_text(json.dumps({"schema": 1, "files": files | mine}))
    forge(evil)
    with pytest.raises(ValueError, match="would be run") as refused:
        ForeignFolder(evil).run_file()
    said = str(refused.value)
    line = said[said.index("allow = ") : said.index(" and beside it")]
    assert tomllib.loads(line)["allow"] == files | mine
    many = {f"{'a' * 200}{number}.py": digest for number in range(9000)} | mine
    Path(evil, "sources.json").write_text(json.dumps({"schema": 1, "files": many}))
    with pytest.raises(ValueError, match="would be run") as refused:
        ForeignFolder(evil).run_file()
    assert len(str(refused.value)) < 40_000
    wrong = {"schema": 1, "files": mine, "installed": {"os": 'x"}, names = [{'}}
    Path(evil, "sources.json").write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match=r"sources\.json cannot be read: installed/os"):
        ForeignFolder(evil).run_file()


def test_an_object_of_python_is_handed_nothing_that_a_stranger_chose(evil):
    rows = sys.modules["foreign_mine"].rows
    name = give(rows, key="[data] name")
    forge(evil, (DATA, f'name = "{name}"\npath = "ran"'), (MODEL, 'name = "linear"'))
    with pytest.raises(ValueError, match="what somebody else may have chosen"):
        _ = Run("evil", data=rows).config
    forge(evil, ('name = "linear"', f'name = "{name}"'), ('path = "ran"', ""))
    with pytest.raises(ValueError, match="what somebody else may have chosen"):
        _ = Run("evil", data=rows).config  # given as data, and called as a model
    assert not Path("ran").exists()


def test_a_table_of_a_folder_is_converted_nowhere(evil):
    table = "a,y\n" + "".join(f"{i / 400:.4f},{i % 2}\n" for i in range(400))
    Path("table.csv").write_text(table)
    own = RUN.replace(DATA, 'name = "csv"\n' + TABLE.format("table.csv"))
    Path("own.toml").write_text(own.replace(MODEL, 'name = "linear"'))
    shutil.rmtree("evil")
    train_run(load_run_file("own.toml"), evil)
    cache = Path.cwd().parent / "written"
    forge(evil, ('"table.csv"', f'"./table.csv"\ncache = "{cache}"'))
    policy()
    outside = tree(Path.cwd().parent, "evil")
    assert cli.main(["report", "evil"]) == 0
    assert cli.main(["check", "evil", "--policy", "policy.toml"]) == 0
    assert tree(Path.cwd().parent, "evil") == outside


def test_what_the_user_names_may_lie_anywhere(evil, monkeypatch):
    secret = Path.cwd().parent / "elsewhere" / "secret.npz"
    forge(evil, data("npz", f'root = "{secret}"'), (MODEL, 'name = "linear"'))
    folder = ForeignFolder(evil)
    with pytest.raises(ValueError, match="set the environment's OVERHEAR_DATA"):
        folder.run_file()
    monkeypatch.setenv("OVERHEAR_DATA", str(secret.parent))
    assert folder.run_file().data.root == str(secret)
    monkeypatch.delenv("OVERHEAR_DATA")
    Path("mine.toml").write_text((evil / "run.toml").read_text())
    load_run_file("mine.toml")
    assert folder.run_file().data.root == str(secret)


def test_resuming_moves_and_removes_nothing_behind_a_link(evil, capsys):
    (evil / "SHA256SUMS").unlink()
    shutil.rmtree(evil / "checkpoints")
    elsewhere = Path.cwd().parent / "elsewhere"
    (evil / "checkpoints").symlink_to(elsewhere.resolve())
    before = tree(elsewhere, "")
    assert cli.main(["train", "run.toml", "--out", "evil", "--resume"]) == 2
    assert "checkpoints is a link that leads out of evil" in capsys.readouterr().err
    assert tree(elsewhere, "") == before
    (evil / "checkpoints").unlink()
    shutil.copytree("kept/checkpoints", evil / "states")
    (evil / "checkpoints").symlink_to("states")  # a link within the folder
    assert cli.main(["train", "run.toml", "--out", "evil", "--resume"]) == 0


def test_a_folder_that_hides_its_links_is_refused(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    listed = os.scandir

    def scandir(path):
        if path == str(tmp_path / "checkpoints"):  # for root no mode hides it
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    ForeignFolder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        with pytest.raises(ValueError, match="checkpoints may not be listed, and a link in it"):
            ForeignFolder(tmp_path)


# What this user trained is trusted again, and nothing else.


@pytest.fixture
def state(evil, stranger, monkeypatch, tmp_path):
    """The file in which `kept` is remembered, as the training of `stranger` left it."""
    written = stranger.parent / "trained" / "overhear" / "trusted"
    assert [oct(one.stat().st_mode & 0o777) for one in (written.parent, written)] == [
        "0o700",
        "0o600",
    ]
    shutil.copytree(written.parent, tmp_path / "state" / "overhear")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "overhear" / "trusted"


REFUSED = "would be run|not in its sources.json"


def is_trusted(folder: Path, then: Callable[[], object] = lambda: None) -> bool:
    """Whether a command without --trust-code reads a folder."""

    def read() -> bool:
        trust.use_remembered()
        try:
            ForeignFolder(folder).run_file()
        except InputError as error:
            if not re.search(REFUSED, str(error)):
                raise
            return False
        then()
        return True

    return contextvars.copy_context().run(read)


def sources(change: Callable[[dict[str, dict[str, str]]], object]) -> Callable[[Path], None]:
    """Forge what a folder says of the files that trained it."""

    def forged(evil: Path) -> None:
        held = json.loads((evil / "sources.json").read_text())
        change(held)
        (evil / "sources.json").write_text(json.dumps(held))
        forge(evil)

    return forged


def change_a_byte(evil: Path) -> None:
    """Change a file, and the folder so that it says so."""
    Path("foreign_mine.py").write_text(MINE + "\n")
    digest = hashlib.sha256(Path("foreign_mine.py").read_bytes()).hexdigest()
    sources(lambda held: held["files"].update({"foreign_mine.py": digest}))(evil)


@pytest.mark.parametrize(
    ("change", "trusted"),
    [
        pytest.param(lambda evil: None, True, id="as it was trained, in a copy"),
        pytest.param(forge, True, id="written anew"),
        pytest.param(lambda evil: forge(evil, ("rounds = 1", "rounds = 2")), True, id="rounds"),
        pytest.param(change_a_byte, False, id="a byte"),
        pytest.param(lambda evil: forge(evil, data("foreign_mine:rows", "path = 'x'")), False),
        pytest.param(lambda evil: forge(evil, data("./foreign_mine.py:rows")), False),
        pytest.param(lambda evil: forge(evil, data("digits")), False, id="a call less"),
        pytest.param(lambda evil: forge(evil, ('"cross-entropy"', '"foreign_mine:net"')), False),
        pytest.param(sources(lambda held: held["files"].clear()), False, id="a file less"),
        pytest.param(sources(lambda held: held["files"].update({"b.py": "0" * 64})), False),
        pytest.param(sources(lambda held: held["installed"].update({"os": "none"})), False),
    ],
)
def test_a_folder_is_trusted_if_its_user_trained_all_of_its_code(evil, state, change, trusted):
    try:
        change(evil)
        assert is_trusted(evil) is trusted
        with pytest.raises(InputError, match=REFUSED):
            ForeignFolder(evil).run_file()  # as a gate reads it, and after the command
        assert pins() is None
    finally:
        Path("foreign_mine.py").write_text(MINE)


def test_what_was_trained_elsewhere_is_not_trusted_here(evil, state, tmp_path, monkeypatch):
    shutil.copytree(Path.cwd(), tmp_path / "there")
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "there")
        assert not is_trusted(Path("evil"))


def test_a_check_asks_its_policy_alone(evil, state, capsys):
    policy([])
    assert cli.main(["check", "evil", "--policy", "policy.toml"]) == 2
    assert "in a way that it does not name" in capsys.readouterr().err
    assert cli.main(["report", "evil"]) == 0
    state.unlink()
    assert cli.main(["report", "evil"]) == 2
    assert "would be run" in capsys.readouterr().err


def test_what_attacks_a_run_is_not_trusted_with_it(evil, state):
    def attacked() -> None:
        with pytest.raises(ValueError, match="names code that would be run"):
            trust.check_of_attack(evil, Call(key="[attack] denoiser", name="foreign_mine:net"))

    assert is_trusted(evil, attacked)


def test_what_is_trained_of_a_stranger_is_not_remembered(evil, state):
    before = state.read_bytes()
    state.write_bytes(b"")
    with trust.trusting():
        train_run(load_run_file("evil/run.toml"), evil / "again")
    assert state.read_bytes() == b""
    assert not is_trusted(evil / "again")
    train_run(load_run_file("run.toml"), evil / "mine")
    assert state.read_bytes() == before


def instead(make: Callable[[Path], object], *, of: str = "file") -> Callable[[Path], object]:
    """Put something in the place of the file, or of its folder, that leads to what was there."""

    def put(state: Path) -> None:
        place = state if of == "file" else state.parent
        place.rename(place.with_name("moved"))
        make(place)

    return put


def by_home(home: str, *, moved: bool = True) -> Callable[[Path], object]:
    """Find the state by the user's home, and not by a variable of its own."""

    def put(state: Path) -> None:
        del os.environ["XDG_STATE_HOME"]
        os.environ["HOME"] = home.format(state.parents[2])
        if moved:
            (state.parents[2] / ".local").mkdir()
            shutil.move(state.parents[1], state.parents[2] / ".local" / "state")

    return put


@pytest.mark.parametrize(
    ("change", "trusted"),
    [
        (lambda state: None, True),
        (by_home("{}"), True),
        (lambda state: state.write_bytes(b'{"\xff\n[[[\n\n' + state.read_bytes()), True),
        (lambda state: state.write_bytes(b'{"\xff\n' + state.read_bytes()[1:]), False),
        (lambda state: state.write_bytes(state.read_bytes() + b"\n" * (1 << 20)), False),
        (lambda state: os.truncate(state, 1 << 40), False),
        (lambda state: state.chmod(0o620), False),
        (lambda state: state.chmod(0o640), False),
        (lambda state: state.chmod(0o602), False),
        (lambda state: state.parent.chmod(0o770), False),
        (lambda state: state.parent.chmod(0o707), False),
        (lambda state: state.parents[1].chmod(0o777), False),
        (lambda state: state.parents[1].chmod(0o1777), True),
        (lambda state: state.unlink(), False),
        (lambda state: shutil.rmtree(state.parents[1]), False),
        (instead(lambda path: os.mkfifo(path, 0o600)), False),
        (instead(lambda path: path.mkdir(0o700)), False),
        (instead(lambda path: path.symlink_to("moved")), False),
        (instead(lambda path: path.symlink_to("moved"), of="folder"), False),
        (instead(lambda path: path.symlink_to(path), of="folder"), False),
        (instead(lambda path: path.touch(0o600), of="folder"), False),
        (lambda state: os.chown(state, 12345, -1), False),
        (lambda state: os.chown(state.parent, 12345, -1), False),
        (lambda state: os.chown(state.parents[1], 12345, -1), False),
        (lambda state: os.environ.update(XDG_STATE_HOME="state"), False),
        (by_home("nowhere"), False),
        (by_home("/dev/null"), False),
        (by_home("{}/none", moved=False), False),
    ],
)
def test_a_state_that_another_could_write_is_not_believed(
    evil, state, monkeypatch, change, trusted
):
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    try:
        change(state)
    except PermissionError:
        pytest.skip("only root gives files away")
    top = state.parents[2]
    assert is_trusted(evil) is trusted
    before = {path: path.lstat().st_mode for path in top.rglob("moved")}
    held = (top / "state/moved/trusted", state.with_name("moved"))
    texts = [path.read_bytes() for path in held if path.is_file()]
    trust.remember("0" * 64)  # never an error, and through no link
    assert texts == [path.read_bytes() for path in held if path.is_file()]
    assert before == {path: path.lstat().st_mode for path in top.rglob("moved")}
    assert is_trusted(evil) is trusted
    assert not Path("state").exists()
    assert not Path("nowhere").exists()


def test_the_newest_are_kept_and_none_is_lost(state, monkeypatch):
    digests = [f"{number:064x}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(trust.remember, digests))
    assert set(digests) < set(state.read_text().split())
    monkeypatch.setattr(trust, "_MOST_TRUSTED", 3)
    for digest in (*digests, digests[9]):
        trust.remember(digest)
    assert state.read_text().split() == [digests[number] for number in (10, 11, 9)]
    assert [path.name for path in state.parent.iterdir()] == ["trusted"]


# Every command that opens a folder which somebody else may have made. A new command fails the test
# below until it is decided here.
OPENS = {
    "account": ["account", "logs"], "attack": ["attack", "evil"], "audit": ["audit", "evil"],
    "audit-last-model": ["audit-last-model", "evil"],
    "audit-log": ["audit-log", "logs", "--oracle", "math:sqrt"],
    "membership": ["membership", "evil"], "check": ["check", "evil", "--policy", "policy.toml"],
    "check-account": ["check-account", "evil/run.toml"], "compare": ["compare", "evil", "evil"],
    "design": ["design", "evil/run.toml"], "person": ["person", "person.jsonl", "--add", "evil"],
    "plan": ["plan", "evil/run.toml"], "plot": ["plot", "evil", "--out", "plot.svg"],
    "report": ["report", "evil"], "reproduce": ["reproduce", "dpdl-table-4", "--out", "evil"],
    "sign": ["sign", "evil", "--key", "key"], "sweep": ["sweep", "sweep.toml", "--out", "evil"],
    "table": ["table", "evil"], "total": ["total", "evil"],
    "train": ["train", "evil/run.toml", "--out", "new"],
    "train --resume": ["train", "run.toml", "--out", "evil", "--resume"],
}  # fmt: skip
# attack-sweep opens run folders in --out alone, each as attack does.
OPENS_NONE = {"attack-sweep", "audit-scores", "budget", "demo", "invert", "membership-training"}
OPENS_NONE |= {"new", "review", "schema"}


@pytest.mark.some_quick(8)
@pytest.mark.parametrize("case", OPENS)
def test_every_command_opens_a_folder_as_a_stranger_s(evil, case, capsys):
    Path("sweep.toml").write_text('base = "run.toml"\nseeds = 1\n[grid]\n"training.rounds" = [1]\n')
    policy()
    logs = Path("logs")
    logs.mkdir(exist_ok=True)
    for folder in (evil, logs):
        (folder / "leads-out").symlink_to("/etc")
    assert cli.main(OPENS[case]) == 2
    said = capsys.readouterr().err
    shutil.rmtree(logs)
    assert "leads-out is a link that leads out of" in said, said


def test_every_command_is_decided():
    commands = set(typer.main.get_command(cli.app).commands)
    assert {case.partition(" ")[0] for case in OPENS} | OPENS_NONE == commands


def test_every_path_of_a_run_file_is_decided():
    """A text of a table is a path, or one of these."""
    texts = {
        *("data.name", "data.user", "data.separator", "model.name", "model.loss"),
        *(
            "algorithm.name",
            "attack.adversary",
            "attack.denoiser",
            "privacy.adversary",
            "training.device",
        ),
        *("report.responsible", "report.contact", "report.data", "report.purpose"),
    }
    for name, field in RunFile.model_fields.items():
        (table,) = [t for t in (field.annotation, *get_args(field.annotation)) if is_table(t)]
        for key, one in table.model_fields.items():
            held = get_args(one.annotation) if get_origin(one.annotation) is UnionType else ()
            if str in (one.annotation, *held) and f"{name}.{key}" not in texts:
                assert key in table.paths, f"{name}.{key}"
                values = {name: {"name": "npy", key: "x"}}
                assert (f"[{name}] {key}", "x") in named_paths(values)


def is_table(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Table)
