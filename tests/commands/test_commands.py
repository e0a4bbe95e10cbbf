"""What is a command: an old spelling says what to type, and no option is of a mode of another."""

import re
import shutil
import subprocess
import sys

import pytest
import typer

from overhear.commands.cli import BECAME, app, main
from tests import warm
from tests.small_run import run_text

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined] # a group

# An old spelling, and what is to be typed in its place.
SPELLINGS = {
    "audit run --membership --games 2": "membership run --games 2",
    "audit --last-model run.toml --runs 20": "audit-last-model run.toml --runs 20",
    "audit logs --oracle a:b --draw 2": "audit-log logs --oracle a:b --draw 2",
    "audit logs --oracle=a:b": "audit-log logs --oracle=a:b",
    "audit --scores s.csv --claim epsilon=3": "audit-scores s.csv --claim epsilon=3",
    "audit --claim epsilon=3 --scores=s.csv": "audit-scores --claim epsilon=3 s.csv",
    "attack --train a:b --data a:c": "membership-training a:b --data a:c",
    "attack run.toml --out runs --json": "attack-sweep run.toml --out runs --json",
    "attack run.toml --sweep a.b=1,2 --out x": "attack-sweep run.toml --sweep a.b=1,2 --out x",
    "attack run.toml --set a.b=1 --images 2": "attack-sweep run.toml --set a.b=1 --set "
    "attack.images=2 --out DIR",
    "audit --trust-code logs --oracle a:b": "audit-log logs --oracle a:b",
    "audit run --membership --membership": "membership run",
}
# An old spelling whose words the new command does not take, and what it says of them.
NEITHER = {
    "attack run --out x": "`overhear attack run`",
    "attack run.toml --markdown": "Missing option '--out'",
    "audit run --membership --set a.b=1": "No such option: --set",
    "audit run.toml --membership": "`overhear train run.toml --out DIR`",
}


@pytest.mark.parametrize("old", SPELLINGS)
def test_an_old_spelling_is_refused_with_the_new_one_which_is_read(
    old, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").touch()
    assert main(old.split()) == 2
    assert f"type `overhear {SPELLINGS[old]}`" in capsys.readouterr().err
    name, *arguments = SPELLINGS[old].split()
    COMMANDS[name].make_context(name, arguments)


@pytest.mark.parametrize("old", NEITHER)
def test_no_line_is_to_be_typed_that_would_be_refused(old, capsys):
    assert main(old.split()) == 2
    told = capsys.readouterr().err
    assert NEITHER[old] in told
    assert "; type `" not in told


def test_a_word_with_a_space_is_quoted_and_one_behind_two_dashes_is_no_option(capsys):
    assert main(["audit", "my run", "--membership"]) == 2
    assert "`overhear membership 'my run'`" in capsys.readouterr().err
    assert main(["audit", "--", "--membership"]) == 2
    assert "type `overhear" not in capsys.readouterr().err


def test_an_option_of_another_command_names_that(capsys):
    assert main(["audit", "run", "--minutes", "3"]) == 2
    assert "no option of audit, but of membership and audit-last" in capsys.readouterr().err


def test_what_became_a_command_is_none_of_the_options_left():
    for command, became in BECAME.items():
        assert set(became.values()) <= set(COMMANDS)
        assert not {option for one in COMMANDS[command].params for option in one.opts} & set(became)


def test_no_help_text_is_of_a_mode():
    mode = re.compile(r"(With --|For (DIR|RUN)|Instead of)")
    assert [
        (name, one.name)
        for name, command in COMMANDS.items()
        for one in command.params
        if mode.match(getattr(one, "help", None) or "")
    ] == []


SWEEP = """base = "run.toml"
seeds = [1]
[grid]
"training.learning_rate" = [0.1, 0.2]
"""
ABSENT = """import sys
for name in [*sys.modules, {package!r}]:
    if name.partition(".")[0] == {package!r}:
        sys.modules[name] = None
from overhear.commands.__main__ import main
sys.argv = ["overhear", *{command!r}.split()]
sys.exit(main())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run, a sweep, and a run file whose records are in a parquet file."""
    folder = tmp_path_factory.mktemp("absent")
    text = run_text(
        "dp-dpsgd", agents=4, privacy={"epsilon": 4.0, "delta": 1e-5},
        training={"rounds": 2, "sampling_rate": 0.1}, intercept={"rounds": [1]},
    )  # fmt: skip
    (folder / "run.toml").write_text(text)
    (folder / "rows.parquet").write_bytes(b"PAR1")
    (folder / "rows.toml").write_text(
        text.replace('name = "digits"', 'name = "parquet"\nroot = "rows.parquet"\ntarget = "ill"')
        + '[data.columns]\nage = [0, 100]\nill = ["no", "yes"]\n'
    )
    (folder / "sweep.toml").write_text(SWEEP)
    for command in ("train run.toml --out run", "sweep sweep.toml --out swept"):
        done = warm.run(*command.split(), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "command", "name"),
    [
        ("matplotlib", "plot swept --out x.svg", "matplotlib"),
        ("pyarrow", "train rows.toml --out new", "pyarrow"),
        ("distributed", "sweep sweep.toml --out new --backend dask", "distributed"),
        ("ray", "sweep sweep.toml --out new --backend ray", "ray"),
        ("joblib", "sweep sweep.toml --out new", "joblib"),
        ("sklearn", "train run.toml --out new", "scikit-learn"),
        ("safetensors", "train run.toml --out new", "safetensors"),
        ("PIL", "attack run --images 1", "pillow"),
        ("skimage", "attack run --images 1", "scikit-image"),
        ("dp_accounting", "report run", "dp-accounting"),
        ("networkx", "report run", "networkx"),
        ("jinja2", "report run", "jinja2"),
        ("rich", "plan run.toml", "rich"),
    ],
)
def test_a_package_that_is_missing_is_named_by_every_command_that_needs_it(
    folder, package, command, name
):
    done = warm.run(cwd=folder, code=ABSENT.format(package=package, command=f"--quiet {command}"))
    shutil.rmtree(folder / "new", ignore_errors=True)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert re.search(rf'needs {name}, which is not installed: pip .*"{name}[<>=]', last), last


@pytest.mark.slow
@pytest.mark.parametrize("package", ["typer", "numpy", "pydantic", "scipy"])
def test_a_command_line_that_cannot_be_loaded_says_what_is_missing(package, tmp_path):
    """In a process of its own, in which nothing is loaded yet."""
    command = "budget --epsilon 3 --rounds 3 --sampling-rate .1 --delta 1e-5"
    code = ABSENT.format(package=package, command=command)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f'needs {package}, which is not installed: pip install "{package}>=' in done.stderr
