"""Several runs on the same records cost what one run of all their rounds costs."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from overhear.commands import cli
from overhear.privacy import epsilon_from_mu
from overhear.privacy.errors import InputError
from overhear.privacy.formats.codec import schema_of
from overhear.reports.document.collect import collect
from overhear.reports.schema import Total, TotalAdversary, report_schema
from overhear.reports.total.total import notes, sentences, total_of_runs
from overhear.runs.folder import resume as accounted_run
from overhear.runs.folder import run
from overhear.runs.folder.folder import write_sums
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import Plan, make_plan
from overhear.runs.run_file.run_file import RunFile, load_run_file
from tests.reports.document.test_html import Page
from tests.reports.test_schema import closed, found
from tests.runs.folder.interrupted import CutOffError, cut_off_at
from tests.small_run import run_text

RUN = run_text(
    "dpdl", agents=3, privacy={"noise_multiplier": 2, "delta": 1e-05},
    training={"rounds": 3, "sampling_rate": 0.1},
)  # fmt: skip
Make = Callable[..., Path]
_PLANNED: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def planned():
    """Plan equal run files once, which takes longer than to train them."""

    def once(config: RunFile, **given: Any) -> Plan:
        key = config.to_toml()
        if key not in _PLANNED:
            _PLANNED[key] = make_plan(config, **given)
        return _PLANNED[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(accounted_run, "make_plan", once)
        patched.setattr(run, "make_plan", once)
        yield


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A run with some keys changed, and a name; made once."""
    place = tmp_path_factory.mktemp("runs")
    (place / "run.toml").write_text(RUN, encoding="utf-8")

    def made(*changes: str, name: str = "", stop: int | None = None) -> Path:
        out = place / f"{name}-{stop}-{'-'.join(changes).replace('/', '')}"
        if not out.exists():
            config = load_run_file(place / "run.toml", list(changes))
            if stop is None:
                train_run(config, out)
            else:
                with pytest.raises(CutOffError):
                    train_run(config, out, progress=cut_off_at(stop))
        return out

    return made


def of(total: Total, name: str = "eavesdropper") -> TotalAdversary:
    return next(one for one in total.adversaries if one.name == name)


def test_one_run_costs_what_its_report_says(make):
    for folder in (make(name="a"), make("training.rounds=12", stop=4), make("privacy.delta=1e-6")):
        total, report = total_of_runs([folder]), collect(folder)
        assert {one.name: one.epsilon for one in total.adversaries} == report.ledger.epsilon
        assert all(one.alone == [one.epsilon] for one in total.adversaries)
        assert (total.composed, total.delta) == ("as its report", report.plan.target.delta)


def test_equal_runs_cost_what_one_run_of_all_their_rounds_costs(make):
    whole = collect(make("training.rounds=9")).ledger.epsilon
    total = total_of_runs([make(name=name) for name in "abc"])
    for one in total.adversaries:
        assert one.epsilon == pytest.approx(whole[one.name], rel=1e-6)
        assert max(one.alone) <= one.epsilon <= sum(one.alone)
        assert [one.epsilon] > one.alone[:1]


def test_runs_of_full_batches_have_the_closed_form(make):
    full = "training.sampling_rate=1"
    runs = [make(full), make(full, "privacy.noise_multiplier=5", "training.rounds=7")]
    joint = collect(runs[0]).plan.adversaries[0].joint_sensitivity
    mu = joint * math.sqrt(3 / 2**2 + 7 / 5**2)
    assert of(total_of_runs(runs)).epsilon == pytest.approx(epsilon_from_mu(mu, 1e-5), rel=1e-6)


@pytest.mark.slow
def test_runs_that_differ_cost_what_another_accountant_says(make):
    runs = [make(name="a"), make("training.rounds=40", "training.sampling_rate=0.03")]
    joint = collect(runs[0]).plan.adversaries[0].joint_sensitivity
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
    )
    for rate, rounds in ((0.1, 3), (0.03, 40)):
        one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(2 / joint))
        accountant.compose(one, rounds)
    assert of(total_of_runs(runs)).epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_the_order_of_runs_changes_nothing(make):
    runs = [make(name="a"), make("training.rounds=5"), make("privacy.delta=1e-6")]
    first, second = total_of_runs(runs), total_of_runs(runs[::-1])
    assert of(first).epsilon == of(second).epsilon
    assert of(first).alone == of(second).alone[::-1]


def test_delta_is_the_smallest_unless_it_is_given(make):
    runs = [make(name="a"), make("privacy.delta=1e-6")]
    smallest, given = total_of_runs(runs), total_of_runs(runs, delta=1e-3)
    assert (smallest.delta, given.delta) == (1e-6, 1e-3)
    assert of(given).epsilon < of(smallest).epsilon
    assert total_of_runs([runs[0]], delta=1e-3).adversaries[0].epsilon < of(given).epsilon
    for delta in (0.0, 1.0, math.nan, -1e-5, math.inf):
        with pytest.raises(InputError, match="delta="):
            total_of_runs(runs, delta=delta)


@pytest.mark.slow
def test_another_accountant_of_a_run_does_not_compose_the_total(make):
    runs = [make(name="a"), make("privacy.accountant=rdp")]
    assert of(total_of_runs(runs)).epsilon == of(total_of_runs([make(name="b"), runs[0]])).epsilon


def test_an_unfinished_run_counts_as_planned_and_a_torn_line_more(make, tmp_path):
    first, unfinished = make(name="a"), make("training.rounds=12", stop=4)
    planned = of(total_of_runs([first, make("training.rounds=12")])).epsilon
    total = total_of_runs([first, unfinished])
    assert of(total).epsilon == planned
    assert (total.runs[1].rounds, total.runs[1].planned_rounds) == (4, 12)
    assert "(4 releases of rounds, 12 planned counted)" in next(sentences(total))
    torn = tmp_path / "torn"
    shutil.copytree(unfinished, torn)
    with (torn / "ledger.jsonl").open("a") as file:
        file.write('{"round": 5, "rel')
    assert of(total_of_runs([first, torn])).epsilon > planned
    assert of(total_of_runs([first, torn])).epsilon == pytest.approx(
        of(total_of_runs([first, make("training.rounds=13")])).epsilon, rel=1e-9
    )


def test_a_round_that_was_released_twice_counts_twice(make, tmp_path):
    out = tmp_path / "again"
    shutil.copytree(make("training.rounds=12", "training.checkpoint_every=4", stop=6), out)
    resume_run(load_run_file(out / "run.toml"), out)
    together = of(total_of_runs([make(name="a"), out])).epsilon
    more = of(total_of_runs([make(name="a"), make("training.rounds=14")])).epsilon
    assert together == pytest.approx(more, rel=1e-9)


def test_a_run_counts_once(make, tmp_path):
    first = make(name="a")
    (tmp_path / "link").symlink_to(first)
    copy = tmp_path / "copy"
    shutil.copytree(first, copy)
    for second, words in (
        (first, "is the folder"),
        (first / ".." / first.name, "is the folder"),
        (tmp_path / "link", "is the folder"),
        (copy, "hold the same run"),
    ):
        with pytest.raises(InputError, match=words):
            total_of_runs([first, make(name="b"), second])


def test_copies_that_were_continued_apart_have_no_total(make, tmp_path):
    unfinished = make("training.rounds=12", stop=4)
    copies = [tmp_path / name for name in "ab"]
    for copy in copies:
        shutil.copytree(unfinished, copy)
        resume_run(load_run_file(copy / "run.toml"), copy)
    with pytest.raises(InputError, match="continued apart, neither ledger names all"):
        total_of_runs(copies)


def test_what_one_adversary_only_sees_in_one_run_has_no_total(make):
    one = make('privacy.adversaries=["eavesdropper", "neighbour:1"]')
    total = total_of_runs([one, make(name="a")])
    assert [each.name for each in total.adversaries] == ["eavesdropper"]
    assert total.left_out == ["final-models", "neighbour", "neighbour:1", "single-message"]
    assert any(
        "Not every run accounts for final-models, neighbour," in said for said in notes(total)
    )
    other = make('privacy.adversaries=["all-others"]', 'privacy.adversary="all-others"')
    with pytest.raises(InputError, match="no adversary is accounted for in every run"):
        total_of_runs([other, make(name="a")])


def test_adjacencies_do_not_mix(make):
    other = make('privacy.adjacency="replace-one"', 'algorithm.name="dp-dpsgd"')
    with pytest.raises(InputError, match=r"adjacency differs \(.*replace-one"):
        total_of_runs([make(name="a"), other])
    assert of(total_of_runs([other])).epsilon > 0


def test_nothing_protects_together_what_one_run_does_not_protect(make):
    total = total_of_runs([make(name="a"), make("privacy.noise_multiplier=0")])
    assert (of(total).epsilon, of(total).status) == (math.inf, "no protection")
    assert total.dump()["adversaries"][0]["epsilon"] == "inf"
    assert ": no protection: the noise multiplier is 0" in " ".join(notes(total))


def test_a_heuristic_figure_makes_the_total_heuristic(make):
    seeded = make("training.evaluation_noise_seed=1")
    total = total_of_runs([make(name="a"), seeded])
    assert of(total).status == "heuristic"
    assert "evaluation_noise_seed" in of(total).because
    assert of(total_of_runs([make(name="a"), make(name="b")])).status == "proven"
    same = make("training.evaluation_noise_seed=1", name="again")
    with pytest.raises(InputError, match="draw their noise from the same evaluation_noise_seed=1"):
        total_of_runs([seeded, same])
    total_of_runs([seeded, make("training.evaluation_noise_seed=2")])


def test_who_holds_which_record_is_told(make):
    first = make(name="a")
    assert total_of_runs([first, make(name="b")]).holders == "the same"
    for other in (make("training.seed=3"), make("data.agents=4"), make('data.partition="shards"')):
        total = total_of_runs([first, other])
        assert (total.records, total.holders) == ("the same", "others")
        assert any("may be at the worst-off agent of each" in said for said in notes(total))


def test_other_records_are_refused_unless_told(make, tmp_path):
    for name, labels in (("first", "+-+-+-"), ("second", "+-+-++")):
        lines = [f"{label}1 1:{at} 2:1\n" for at, label in enumerate(labels)]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    svm = ('data.name="libsvm"', "data.features=2", f'data.test="{tmp_path / "first"}"')
    runs = [make(*svm, f'data.root="{tmp_path / name}"') for name in ("first", "second")]
    assert of(total_of_runs(runs[:1])).epsilon > 0
    with pytest.raises(InputError, match=r"trained on other records than.*--assume-same-records"):
        total_of_runs(runs)
    total = total_of_runs(runs, assume_same_records=True)
    assert (total.records, total.holders) == ("assumed to be the same", "not known")
    assert of(total).epsilon > max(of(total).alone)
    assert any("assumed to be on the same records" in said for said in notes(total))


def test_records_that_changed_since_are_not_compared(make, tmp_path, monkeypatch):
    runs = [make(name="a"), make(name="b")]
    from overhear.runs.folder import released

    digest = released.digest_of_records
    monkeypatch.setattr(released, "digest_of_records", lambda s: digest([*s[1:], s[0]]))
    with pytest.raises(InputError, match="are not those that the run was trained on"):
        total_of_runs(runs)
    assert total_of_runs(runs, assume_same_records=True).records == "assumed to be the same"
    assert total_of_runs(runs[:1]).records == "the same"


def test_what_says_which_records_is_chained_to_the_ledger(make, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(make(name="a"), out)
    other = make(name="b")
    (out / "records.json").write_bytes((other / "records.json").read_bytes())
    with pytest.raises(InputError, match=r"records\.json is not the file that SHA256SUMS names"):
        total_of_runs([out, other])
    write_sums(out)
    with pytest.raises(InputError, match=r"records\.json is not the file that the ledger names"):
        total_of_runs([out, other])


def test_no_digest_of_the_records_is_published(make):
    """Two runs on the same records have nothing in common by which one could be tested."""
    first, second = (
        json.loads((make(name=name) / "records.json").read_text(encoding="utf-8")) for name in "ab"
    )
    assert first["salt"] != second["salt"]
    assert first["digest"] != second["digest"]
    assert len(first["salt"]) == 32


def test_figures_for_one_agent_add_up_for_that_agent_alone(make):
    runs = [make("privacy.victim=1", name=name) for name in "ab"]
    total = total_of_runs(runs)
    assert any("records of agent 1 alone" in said for said in notes(total))
    for other in (
        make(name="a"),
        make("privacy.victim=2"),
        make("privacy.victim=1", "training.seed=3"),
    ):
        with pytest.raises(InputError, match=r"\[privacy\] victim limits figures"):
            total_of_runs([runs[0], other])


def test_no_run_is_no_total():
    with pytest.raises(InputError, match="no run is given"):
        total_of_runs([])


def test_a_changed_run_has_no_total(make, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(make(name="a"), out)
    (out / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match="SHA256SUMS is missing"):
        total_of_runs([make(name="b"), out])


def test_the_object_fits_its_schema(make):
    total = total_of_runs([make(name="a"), make("privacy.noise_multiplier=0")]).dump()
    assert found(total, closed(schema_of(Total, ""))) == []
    report = collect(make(name="a"), others=[make(name="b")]).dump()
    assert found(report, closed(report_schema())) == []


def test_the_command_prints_and_refuses(make, capsys):
    a, b = str(make(name="a")), str(make(name="b"))
    assert cli.main(["total", a, b]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "eavesdropper 1.54 ≤ 1.83 1e-5 proven" in shown
    assert "Not counted: runs that are not named here" in shown
    assert cli.main(["total", a, b, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counted"] == 2
    for arguments in ([], [a, a], [a, f"{a}/none"], [a, "--delta", "0"]):
        assert cli.main(["total", *arguments]) == 2
        shown = capsys.readouterr()
        assert (shown.out, "Traceback" in shown.err) == ("", False)


def test_a_report_gives_the_total_with_the_runs_that_are_named(make, tmp_path, capsys):
    out, other = tmp_path / "out", make(name="b")
    shutil.copytree(make(name="a"), out)
    assert cli.main(["report", str(out), "--total", str(other)]) == 0
    held = json.loads((out / "privacy.json").read_text(encoding="utf-8"))
    assert held["total"] == total_of_runs([out, other]).dump()
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "Together with other runs on the same records" in text
    assert 'data-path="/total/adversaries/0/epsilon" data-kind="bound"' in text
    assert "records of the same agents" not in Page(text).text()
    (tmp_path / "policy.toml").write_text(
        'schema = 1\n[[limits]]\nadversary = "eavesdropper"\nepsilon = 9\ndelta = 1e-5\n'
    )
    assert cli.main(["check", str(out), "--policy", str(tmp_path / "policy.toml")]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(out), "--total", str(other), "--format", "md"]) == 0
    assert "## Together with other runs on the same records" in capsys.readouterr().out
    assert cli.main(["report", str(out), "--total", str(out)]) == 2
    assert cli.main(["report", str(out)]) == 0
    assert "No other run is counted here" in (out / "report.html").read_text(encoding="utf-8")
