"""Runs side by side."""

import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from overhear.commands import cli
from overhear.reports import compare
from overhear.runs.folder.folder import ATTACK, AUDIT, write_sums
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import load_run_file
from tests.runs.evidence.evidence import attack, audited

HOSTILE = "<img src=x onerror=alert(1)>|`\x1b[2J\n# [x](y)&\"'"
VOID = {"meta", "link", "br", "img", "hr", "input"}
RUN = """
[data]
name = "digits"
agents = 4
[model]
name = "linear"
[algorithm]
name = "dpdl"
[privacy]
epsilon = 4
delta = {delta}
[training]
rounds = 2
sampling_rate = 0.1
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs at different deltas, the second attacked and audited."""
    place = tmp_path_factory.mktemp("compared")
    for name, delta in (("a", "1e-5"), ("b", "1e-4")):
        (place / f"{name}.toml").write_text(RUN.format(delta=delta), encoding="utf-8")
        train_run(load_run_file(place / f"{name}.toml"), place / name)
    second = place / "b"
    (second / ATTACK).parent.mkdir()
    found = attack().model_dump(by_alias=True)
    found["scenarios"][0]["rows"] = [
        {"name": name, "mse": [], "psnr": [], "ssim": [], "mean": mean}
        for name, mean in (
            ("blind guess", {"mse": 0.1, "psnr": 10.0, "ssim": 0.1}),
            ("defended", {"mse": 0.1, "psnr": 12.5, "ssim": 0.1}),
        )
    ]
    (second / ATTACK).write_text(json.dumps(found), encoding="utf-8")
    measured = audited(measured_epsilon=1.2399).model_dump_json(by_alias=True)
    (second / AUDIT).write_text(measured, encoding="utf-8")
    write_sums(second)
    return [place / "a", place / "b"]


@pytest.fixture(scope="module")
def found(folders):
    return compare.compare_runs(folders)


def cells(found: compare.Comparison) -> dict[str, list[str]]:
    return dict(compare.rows_of(found.runs))


def test_epsilon_stands_with_its_delta_and_status(found):
    assert cells(found)["epsilon: eavesdropper"] == [
        "≤ 4.00 at delta 1e-5, proven",
        "≤ 4.00 at delta 1e-4, proven",
    ]
    assert all("heuristic" in cell for cell in cells(found)["epsilon: single-message"])


def test_different_deltas_are_flagged(found):
    (flag,) = found.flags
    assert re.match(r"delta differs \(.*/a: 1e-5, .*/b: 1e-4\), so their epsilons cannot", flag)


def test_accuracy_is_the_mean_and_the_worst_of_the_agents(found, folders):
    lines = (folders[0] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    each = json.loads(lines[-1])["accuracy"]
    mean = pytest.approx(sum(each) / 4)
    assert found.runs[0].accuracy == compare.Accuracy(round=2, mean=mean, worst=min(each))


def test_attack_and_audit_stand_beside_a_run_without_them(found):
    table = cells(found)
    assert table["closest attack, defence on"] == [
        "not attacked",
        "12.5 dB PSNR (view by matched, round 1)",
    ]
    assert table["blind guess beside it"] == ["–", "10.0 dB PSNR"]
    assert table["audit"] == ["not audited", "consistent"]
    # 1.2399 is a lower bound, so it is rounded down.
    assert table["measured epsilon: eavesdropper"][1].startswith("≥ 1.23 at delta 1e-5, 1000 can")


def _changed(found: compare.Comparison, **changes: Any) -> list[compare.ComparedRun]:
    first, second = found.runs
    return [first, replace(second, adversaries=first.adversaries, **changes)]


def _renamed(run: compare.ComparedRun, **changes: Any) -> compare.ComparedRun:
    """The run with another first adversary."""
    adversary, *others = run.adversaries
    return replace(run, adversaries=[replace(adversary, **changes), *others])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"links": "encrypted"}, "links differs"),
        ({"data": "faces"}, "accuracies and attack scores are of different data"),
        ({"model": "mlp"}, "of different models"),
        ({"victim": 3}, "victim differs"),
        ({"evaluation_noise_seed": 0}, "No figure of this run is proven"),
        ({"contradictions": ["more was rebuilt than proven"]}, "more was rebuilt than proven"),
    ],
)
def test_what_cannot_be_compared_is_flagged(found, changes, words):
    assert compare.flags_of(_changed(found)) == []
    (flag,) = compare.flags_of(_changed(found, **changes))
    assert words in flag


@pytest.mark.parametrize(("key", "other"), [("unit", "agent"), ("adjacency", "replace-one")])
def test_different_units_and_adjacencies_are_flagged(found, key, other):
    runs = _changed(found)
    rows = [replace(row, **{key: other}) for row in runs[1].adversaries]
    (flag,) = compare.flags_of([runs[0], replace(runs[1], adversaries=rows)])
    assert flag.startswith(f"{key} differs")


def test_an_adversary_of_one_run_alone_is_said_to_be(found):
    runs = _changed(found)
    runs[0] = replace(runs[0], adversaries=runs[0].adversaries[1:])
    name = runs[1].adversaries[0].adversary
    assert dict(compare.rows_of(runs))[f"epsilon: {name}"][0] == "not accounted for"


@pytest.mark.parametrize("status", ["no protection", "cannot be expressed"])
def test_an_infinite_epsilon_is_said_to_be_what_it_is(found, status):
    runs = _changed(found)
    runs[0] = _renamed(runs[0], epsilon=math.inf, status=status)
    name = runs[0].adversaries[0].adversary
    assert dict(compare.rows_of(runs))[f"epsilon: {name}"][0] == f"∞: {status}"


class _Balanced(HTMLParser):
    """Fails on a tag that is not closed, and keeps what loads or runs something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.active: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.active += [(tag, k) for k, _ in attrs if k in ("src", "href") or k.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def hostile(found: compare.Comparison) -> compare.Comparison:
    runs = _changed(found, run=HOSTILE, model=HOSTILE, data=HOSTILE, contradictions=[HOSTILE])
    runs[1] = _renamed(runs[1], adversary=HOSTILE)
    return compare.Comparison(runs=runs, flags=compare.flags_of(runs))


def test_the_page_is_whole_and_loads_and_runs_nothing(found):
    for one in (found, hostile(found)):
        page = compare.comparison_html(one)
        parser = _Balanced()
        parser.feed(page)
        parser.close()
        assert parser.open == []
        assert not parser.active
        assert not parser.seen & {"script", "img", "link", "iframe"}
        assert "default-src 'none'" in page
        assert "\x1b" not in page


def test_a_hostile_name_does_not_break_the_markdown_table(found):
    text = compare.comparison_markdown(hostile(found))
    lines = text.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {4}
    assert "<img" not in text.replace("\\<", "")
    assert not [line for line in lines if line.startswith("#")]


@pytest.mark.parametrize("form", ["md", "html", "json"])
def test_the_command_prints_or_writes(found, tmp_path, form, monkeypatch, capsys):
    monkeypatch.setattr("overhear.reports.compare.compare_runs", lambda _: found)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", "a", "b", "--format", form]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert cli.main([*arguments, "--out", str(tmp_path / "f")]) == 0
    assert (tmp_path / "f").read_text(encoding="utf-8") == printed
    assert capsys.readouterr().out == f"{tmp_path / 'f'}\n"
    if form == "json":
        assert [run["algorithm"] for run in json.loads(printed)["runs"]] == ["dpdl", "dpdl"]


def test_one_run_is_no_comparison(folders, capsys):
    assert cli.main(["compare", str(folders[0])]) == 2
    assert "needs 2 or more" in capsys.readouterr().err


def test_nothing_is_written_into_a_run(folders, capsys):
    out = folders[0] / "privacy.json"
    assert cli.main(["compare", *map(str, folders), "--out", str(out)]) == 2
    assert "choose another folder" in capsys.readouterr().err
    assert not out.exists()


def test_a_changed_run_is_refused(folders, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(folders[0], changed)
    (changed / "metrics.jsonl").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="the run was changed"):
        compare.compare_runs([folders[1], changed])
