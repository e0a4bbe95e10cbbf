"""What works where only the base is installed, without what trains.

    python tests/base_install.py          where nothing but the wheel and its packages are installed
    python tests/base_install.py --hide   where what trains is installed, and hidden here

It prints each thing that works, and stops at the first that does not.
"""

import contextlib
import importlib.abc
import io
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
IMPORTED_AS = {"pillow": "PIL", "scikit-image": "skimage", "scikit-learn": "sklearn"}
POLICY = """schema = 1

[[limits]]
adversary = "eavesdropper"
epsilon = 3
delta = 1e-5

[evidence]
declared = "trusted"
"""
RUN = """[data]
name = "digits"
agents = 4

[model]
name = "linear"

[algorithm]
name = "dp-dpsgd"

[privacy]
epsilon = 8
delta = 1e-5

[training]
rounds = 3
sampling_rate = 0.1
"""


def trains() -> list[str]:
    """The modules of the packages that only training needs."""
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    names = [line.partition(">")[0] for line in extras["train"]]
    return [IMPORTED_AS.get(name, name) for name in names]


class Hidden(importlib.abc.MetaPathFinder):
    """Finds nothing of some packages, as if they were not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname.partition(".")[0] in trains():
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def expect(what: object, shown: object) -> None:
    """Stop where something does not hold."""
    if not what:
        sys.exit(f"it does not hold: {shown}")


def command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    from overhear.commands.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return code, out.getvalue(), err.getvalue()


def refused(call: Callable[[], object], *parts: str) -> None:
    """Stop unless a call raises an error of ours that holds these parts."""
    from overhear.privacy.errors import InputError

    try:
        found = call()
    except InputError as error:
        expect(all(part in str(error) for part in parts), f"{error} holds {parts}")
    else:
        expect(False, f"{found} was to be refused with {parts}")


def a_budget() -> None:
    import overhear

    found = overhear.budget(epsilon=3, delta=1e-5, rounds=1000, sampling_rate=0.01)
    expect(abs(found.noise_multiplier - 0.8136) < 1e-4, found)


def two_recorders_of_arrays() -> None:
    import numpy as np

    import overhear

    said = {"agents": 2, "rounds": 5, "clip": 1.0, "rate": 0.1, "noise": 2.0}
    for agent in range(2):
        with overhear.record(f"logs/agent-{agent}.jsonl", agent=agent, **said) as ledger:
            for number in range(1, 6):
                ledger.batch(100)
                drawn = ledger.noise(7, std=2.0, like=np.zeros(7))
                expect(drawn.std() > 0.1, drawn)
                sent = {"kind": "model", "to": 1 - agent, "noise": 2.0, "value": drawn}
                ledger.release(number, **sent)
    found = ledger.account(delta=1e-5)["eavesdropper"]
    expect(0.3 < found.epsilon < 3 and str(found.status) == "declared", found)


def accounts_of_their_logs() -> None:
    epsilon = 0.0
    for kind in ("table", "json", "markdown", "html"):
        code, out, err = command("account", "logs", "--format", kind)
        expect((code, err) == (0, ""), err)
        if kind == "json":
            epsilon = json.loads(out)["plan"]["adversaries"][0]["epsilon"]
    expect(0.3 < epsilon < 3, epsilon)
    code, out, err = command("account", "logs", "--policy", "policy.toml")
    expect((code, err) == (0, ""), out + err)


def checks_and_reports_of_their_logs() -> None:
    import overhear

    code, out, err = command("report", "logs")
    expect(code == 0 and Path(out.strip()).stat().st_size > 10_000, out + err)
    code, out, err = command("check", "logs", "--policy", "policy.toml")
    expect((code, err) == (0, ""), out + err)
    expect("declared" in overhear.report("logs", "md").text, "the same from Python")


def sentences_where_what_trains_is_needed() -> None:
    import overhear

    install = 'needs torch, which is not installed: pip install "joblib>='
    for given in (["plan", "run.toml"], ["train", "run.toml", "--out", "run"]):
        code, _, err = command(*given)
        expect(code == 2 and '"torch>=' in err and "Traceback" not in err, err)
    refused(lambda: overhear.train("run.toml", out="run"), "train", "not installed", '"torch>=')
    kept = {"agent": 0, "agents": 2, "clip": 1.0, "keep": "all"}
    refused(lambda: overhear.record("kept.jsonl", **kept), f"keep {install}")
    expect(not Path("kept.jsonl").exists(), "nothing was written")
    refused(
        lambda: overhear.budget(
            noise_multiplier=1, delta=1e-5, rounds=9, sampling_rate=0.1, accountant="prv"
        ),
        "accountant='prv' needs opacus",
    )
    with overhear.record("b.jsonl", agent=0, agents=2, clip=1.0, data=[1, 2]) as ledger:
        refused(lambda: ledger.conformance(lambda *_, **__: None), "conformance needs torch")
        refused(lambda: ledger.noise(3, std=1.0), f"noise without like=, an array, {install}")


def a_release_whose_noise_is_lost() -> None:
    import numpy as np

    import overhear

    with overhear.record("c.jsonl", agent=0, agents=2, clip=1.0) as ledger:
        sent = {"kind": "model", "to": 1, "noise": 1e-9}
        for values in (np.full(10, 1e9), [1e9] * 10, np.full(10, 1e3, np.float32)):
            refused(lambda of=values: ledger.release(1, **sent, value=of), "the rounding of float")
        refused(lambda: ledger.release(1, **sent, value=[np.inf]), "value holds inf")
    expect(Path("c.jsonl").read_text().count("\n") == 1, "the log has its first line alone")


THINGS = (
    a_budget, two_recorders_of_arrays, accounts_of_their_logs, checks_and_reports_of_their_logs,
    sentences_where_what_trains_is_needed, a_release_whose_noise_is_lost,
)  # fmt: skip


def main() -> None:
    """Do all of it in a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("policy.toml").write_text(POLICY)
        Path("run.toml").write_text(RUN)
        for thing in THINGS:
            thing()
            print(f"works: {thing.__name__.replace('_', ' ')}", flush=True)
        loaded = [name for name in trains() if name in sys.modules]
        expect(not loaded, f"{loaded} were loaded")


if __name__ == "__main__":
    if "--hide" in sys.argv:
        sys.meta_path.insert(0, Hidden())
    main()
