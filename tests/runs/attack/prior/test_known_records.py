"""Attacks that know the records of a file, by the command and its folder."""

import json

import numpy as np
import pytest

from overhear.commands import cli
from overhear.reports.document.collect import report_run
from overhear.runs.attack.attack import attack_run
from overhear.runs.attack.planted import plant
from overhear.runs.run_file.build import data_of
from overhear.runs.run_file.run_file import load_run_file
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=4, privacy={"noise_multiplier": 1, "delta": 0.0001},
    training={"rounds": 1, "sampling_rate": 0.1}, intercept={"rounds": [1]},
    attack={"presets": ["posterior"], "images": 2},
)  # fmt: skip


@pytest.fixture(scope="module")
def files(trained):
    """Training records as what is known, with labels and without, and with planted ones."""
    data = data_of(load_run_file(trained / "run.toml"))
    pixels, labels = data.pixels(data.inputs[:150]).numpy(), data.targets[:150].numpy()
    planted = data.pixels(plant(data, 2).images).numpy()
    folder = trained.parent
    np.savez(folder / "labelled.npz", pixels=pixels, labels=labels)
    np.savez(folder / "plain.npz", pixels=pixels)
    np.savez(folder / "planted.npz", pixels=np.concatenate([pixels, planted]))
    return folder


def test_known_records_come_first_or_alone(trained, files):
    others = 359 - 2 - 98  # of 359 test records two are planted, and 98 stand in lineups
    for name, more, count, words in (
        ("labelled", [], 150 + others, "150 records of labelled.npz"),
        ("labelled", ["--prior-only"], 150, "in place of public test records"),
        ("plain", ["--prior-only"], 1500, "150 records of plain.npz, each under every label"),
    ):
        given = ["--prior", str(files / f"{name}.npz"), *more, "--name", f"{name}{len(more)}"]
        assert cli.main(["attack", str(trained), *given]) == 0
        found = json.loads((trained / f"attacks/{name}{len(more)}/attack.json").read_text())
        (scenario,) = found["scenarios"]
        assert [row["candidates"] for row in scenario["rows"]] == [0, count, count, count]
        assert words in scenario["known"]
        assert set(scenario["rows"][-1]["stage"]) == {"posterior"}
    page = report_run(trained).read_text()
    assert "150 records of plain.npz, each under every label" in page
    assert "--name plain1 --prior" in page
    assert "--prior-only" in page


def test_planted_records_and_other_files_are_refused(trained, files, capsys):
    for given, words in (
        (["--prior", str(files / "planted.npz")], "record 150, 151, counted from 0"),
        (["--prior", str(files / "gone.npz")], "gone.npz"),
        (["--prior-only"], "prior_only=True has no effect without prior"),
        (["--prior", "x.npz", "--preset", "dlg"], "has no effect on dlg"),
        (["--prior", "x.npz", "--set", "attack.batch=2"], "has no effect with batch=2"),
    ):
        before = sorted(trained.rglob("*"))
        assert cli.main(["attack", str(trained), *given]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
        assert sorted(trained.rglob("*")) == before


def test_an_attack_goes_on_with_the_same_records_alone(trained, files):
    path = files / "changed.npz"
    path.write_bytes((files / "labelled.npz").read_bytes())
    asked = [f"attack.prior={str(path)!r}"]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack_run(trained, overrides=asked, name="cut-off", progress=stop)
    path.write_bytes((files / "plain.npz").read_bytes())
    with pytest.raises(FileExistsError, match="unfinished attack with prior_sha256="):
        attack_run(trained, overrides=asked, name="cut-off")
