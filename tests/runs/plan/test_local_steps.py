"""A plan says what local steps that are clipped as a whole cost a record, and noise at each."""

import pytest

from overhear.reports.judgement.remedies import What, advise
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.run_file import load_run_file
from tests.small_run import run_text

RUN = run_text(
    "dp-fedavg", agents=4, graph={"name": "server"},
    algorithm={"cohort_rate": 1.0, "local_data": "batches", "local_steps": 5},
    privacy={"noise_multiplier": 2.0, "delta": 1e-05},
    training={"rounds": 200, "sampling_rate": 0.02},
)  # fmt: skip


def advised(folder, *changes):
    path = folder / "run.toml"
    path.write_text(RUN, encoding="utf-8")
    config = load_run_file(path, list(changes))
    found = advise(config, make_plan(config))
    return next((one for one in found if one.what is What.LOCAL_STEPS), None)


def test_a_plan_says_that_clipping_the_change_does_not_pay_for_a_record(tmp_path):
    found = advised(tmp_path)
    assert found.epsilon == pytest.approx(1.3297, rel=1e-4)
    assert "costs epsilon 1.33 in place of 9.55" in found.words


def test_it_is_said_within_a_cohort_of_coins_too(tmp_path):
    found = advised(tmp_path, "algorithm.cohort_rate=0.1", "training.rounds=200")
    assert found.epsilon == pytest.approx(1.1030, rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        ['privacy.unit="agent"'],
        ['algorithm.local_data="all"', "algorithm.local_steps=9"],  # nine looks at all of it
        ['algorithm.name="dp-dpsgd"', 'graph.name="ring"'],
    ],
)
def test_nothing_is_said_where_it_pays_or_is_not_so(tmp_path, changes):
    text = RUN
    if "dp-dpsgd" in str(changes):
        text = "\n".join(
            line for line in RUN.splitlines() if not line.startswith(("cohort_rate", "local_"))
        )
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    config = load_run_file(path, changes)
    assert all(one.what is not What.LOCAL_STEPS for one in advise(config, make_plan(config)))
