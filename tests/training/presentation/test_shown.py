"""An account as text, in a notebook, as a paragraph, as data and as a chart."""

import builtins
import io
import json
import math
from typing import Any

import pytest

from overhear import record
from overhear.privacy import epsilon_from_mu
from overhear.privacy.errors import InputError
from overhear.training import account
from overhear.training.accounts.summary import rounded_up

RUN: dict[str, Any] = {"graph": "ring:5", "rounds": 60, "sampling_rate": 0.1, "delta": 1e-5}


@pytest.fixture(scope="module")
def found():
    return account("dpdl", epsilon=2.0, **RUN)


@pytest.fixture
def axes():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if a package were not installed."""
    real = builtins.__import__

    def imported(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", imported)


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """The account of a log: a release at 2 in rounds 1 and 2, at 4 in round 5, of unit mu."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    with record(path, agent=0, agents=1, clip=1.0) as log:
        for t, noise in ((1, 2.0), (2, 2.0), (5, 4.0)):
            log.release(t, kind="model", to="all", noise=noise)
        return log.account(delta=1e-5)


@pytest.mark.parametrize("which", ["found", "declared"])
def test_an_account_has_the_same_ways_out_whatever_it_is_of(request, axes, which):
    shown = request.getfixturevalue(which)
    assert json.loads(json.dumps(shown.to_json(), allow_nan=False))["schema"] == 1
    assert f"at most epsilon {rounded_up(shown.worst.epsilon)} at delta 1e-05" in shown.statement()
    assert "eavesdropper" in str(shown.explain("eavesdropper"))
    assert "eavesdropper" in repr(shown)
    assert "<table>" in shown._repr_html_()
    assert shown.__rich__().row_count == len(shown)
    assert shown.plot(axes=axes) is axes
    line = axes.lines[0]
    last = shown.epsilon("eavesdropper", rounds=shown.rounds)
    assert line.get_ydata()[-1] == last == shown.epsilon("eavesdropper")
    assert shown.plot("trade-off", axes=axes) is axes


def test_a_log_is_drawn_and_explained_as_declared(declared, axes):
    """Epsilon after so many rounds of the log, whichever numbers they have."""
    assert declared.rounds == 3
    for rounds, mu in ((0, 0.0), (1, 0.5), (2, math.hypot(0.5, 0.5)), (3, 0.75)):
        expected = epsilon_from_mu(mu, 1e-5) if mu else 0.0
        assert declared.epsilon("eavesdropper", rounds=rounds) == pytest.approx(expected)
    with pytest.raises(InputError, match=r"rounds=4 must lie in \[0, 3\]"):
        declared.epsilon("eavesdropper", rounds=4)
    assert declared.plot(axes=axes).lines[0].get_label() == "eavesdropper (declared)"
    said = declared.statement()
    assert "if the list of releases is true, which nothing shows" in said
    assert "proven" not in said
    told = str(declared.explain("eavesdropper")).splitlines()
    assert "mu 0.5 in 2 of the rounds, by the noise that the log declares; declared:" in told[0]
    assert [row.split()[:3] for row in told[2:]] == [["0.5", "1", "2"], ["0.25", "1", "1"]]


def test_the_worst_is_never_a_single_message():
    several = account("dp-netfleet", noise_multiplier=2.0, **RUN)
    assert next(iter(several)) == "single-message"
    assert several.worst.adversary == "eavesdropper"
    alone = account("dp-dpsgd", noise_multiplier=2.0, adversaries=["single-message"], **RUN)
    with pytest.raises(InputError, match="how papers count and no adversary"):
        _ = alone.worst


def test_a_notebook_shows_every_adversary_and_escapes_what_it_shows(found):
    shown = found._repr_html_()
    for name in found:
        assert f">{name}" in shown
    assert shown.count("<tr>") == len(found) + 1
    assert "<script" not in shown


def test_rich_prints_the_rows(found):
    from rich.console import Console

    console = Console(file=io.StringIO(), width=200)
    console.print(found)
    printed = console.file.getvalue()  # type: ignore[attr-defined] # a StringIO
    assert all(name in printed for name in found)
    assert "proven" in printed


def test_the_paragraph_names_what_a_statement_needs(found):
    said = found.statement()
    for part in (
        *("dpdl (alpha 0.1, momentum 0.9)", "60 rounds on ring of 5 agents", "Poisson"),
        *("adding or removing one record", "at most epsilon 2 at delta 1e-05", "accountant pld"),
        *("eavesdropper", "neighbour (worst: ", "every message can be read"),
    ):
        assert part in said
    assert "single-message" not in said


def test_the_paragraph_of_a_heuristic_figure_says_that_nothing_is_proven():
    said = account("dpdl", noise_multiplier=2.0, form="published", **RUN).statement()
    assert "nothing is proven" in said
    assert "at most" not in said


def test_the_paragraph_of_an_infinite_figure_has_no_epsilon():
    said = account("dsgd", noise_multiplier=1.0, **RUN).statement()
    assert "nothing protects" in said
    assert "epsilon" not in said


def test_the_object_is_the_plan_of_the_same_numbers(found):
    from overhear.runs.plan.plan import make_plan
    from overhear.runs.plan.schema import Planned
    from overhear.runs.run_file.run_file import RunFile

    run = RunFile.model_validate(
        {
            "data": {"name": "digits", "agents": 5},
            "model": {"name": "mlp"},
            "algorithm": {"name": "dpdl", "alpha": 0.1, "momentum": 0.9},
            "graph": {"name": "ring"},
            "privacy": {"epsilon": 2.0, "delta": 1e-5},
            "training": {"rounds": 60, "sampling_rate": 0.1},
        }
    )
    planned = make_plan(run).to_json()
    object_ = found.to_json()
    # A run counts its records, and says what comes from their number.
    assert [said[:21] for said in planned["warnings"]] == ["The number of records"]
    assert {**planned, "published_bound": None, "warnings": []} == object_
    Planned.parse(json.dumps(object_), refusal="{}: {}".format)


def test_infinite_figures_are_words_in_json():
    found = account("dsgd", noise_multiplier=1.0, **RUN).to_json()
    assert found["adversaries"][0]["epsilon"] == "inf"
    json.dumps(found, allow_nan=False)


def test_a_table_has_a_row_an_adversary(found):
    pytest.importorskip("pandas")
    table = found.to_pandas()
    assert list(table["name"]) == list(found)
    assert table["epsilon"].tolist() == [found[name].epsilon for name in found]


def test_epsilon_is_drawn_round_by_round(found, axes):
    assert found.plot(axes=axes) is axes
    (line, target) = axes.lines
    assert line.get_label() == "eavesdropper, neighbour, final-models"
    drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert drawn[60] == pytest.approx(found["eavesdropper"].epsilon)
    assert drawn[0] == 0.0
    assert sorted(drawn.values()) == list(drawn.values())
    assert list(target.get_ydata()) == [2.0, 2.0]


def test_the_trade_off_curve_is_that_of_all_rounds(found, axes):
    from overhear.privacy import trade_off

    found.plot("trade-off", axes=axes)
    rates, missed = axes.lines[0].get_xdata(), axes.lines[0].get_ydata()
    multiplier = found["eavesdropper"].effective_noise_multiplier
    curve = trade_off({(multiplier, 0.1): 60})
    assert missed == pytest.approx(curve.false_negative_rates(rates))


def test_nothing_is_drawn_of_infinite_figures():
    with pytest.raises(InputError, match="nothing to draw"):
        account("dsgd", noise_multiplier=1.0, **RUN).plot()


def test_an_unknown_chart_is_refused(found):
    with pytest.raises(InputError, match="kind='roc' must be 'rounds' or 'trade-off'"):
        found.plot("roc")


@pytest.mark.parametrize(
    ("package", "method", "sentence"),
    [
        ("matplotlib", "plot", 'plot needs matplotlib, .*: pip install "matplotlib>=3.8"'),
        ("pandas", "to_pandas", 'to_pandas needs pandas, .*: pip install "pandas>=2.1"'),
    ],
)
def test_what_is_not_installed_is_named(found, monkeypatch, package, method, sentence):
    without(monkeypatch, package)
    with pytest.raises(ImportError, match=sentence):
        getattr(found, method)()
