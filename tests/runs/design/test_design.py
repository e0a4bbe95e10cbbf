"""Kinds of noise at equal epsilon: known figures, who undoes it, and what trains it."""

import math

import pytest

from overhear.privacy import epsilon
from overhear.privacy.errors import InputError
from overhear.runs.plan.design_compare import compare
from overhear.runs.plan.plan import make_plan
from overhear.runs.plan.trainable import run_file_with
from overhear.runs.run_file.run_file import read_tables

KEYS = {
    "data": {"name": "digits", "agents": 10},
    "model": {"name": "linear"},
    "graph": {"name": "ring"},
    "algorithm": {"name": "dpdl", "alpha": 0.1},
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
    "training": {"rounds": 100, "sampling_rate": 0.05, "learning_rate": 0.5},
}


def config(**overrides):
    return read_tables(
        KEYS, [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    )


def by_kind(found):
    return {row.kind: row for row in found.rows}


@pytest.mark.parametrize(
    ("target", "independent", "over_time", "across", "joint"),
    [
        (0.5, 8.990, 9.524, 4.836, 5.353),
        (1, 5.148, 5.339, 2.771, 3.001),
        (4, 2.257, 2.086, 1.215, 1.172),
        (16, 1.264, 0.925, 0.680, 0.566),
    ],
)
def test_memory_pays_from_about_epsilon_4_on(target, independent, over_time, across, joint):
    rows = by_kind(compare(config(privacy__epsilon=target)))
    found = [rows[kind].noise for kind in ("independent", "over time", "across agents", "joint")]
    assert found == pytest.approx([independent, over_time, across, joint], rel=1e-3)
    assert (rows["joint"].noise < rows["across agents"].noise) == (target >= 4)


def test_at_epsilon_1_the_advice_is_noise_without_memory_and_why():
    found = compare(config())
    said = " ".join(found.advice)
    assert "memory loses" in said
    assert "noise that is independent in time is best" in said
    assert "any agent that is curious can remove it (epsilon infinite)" in said
    assert found.rows[0].kind == "across agents"


def test_records_that_take_turns_get_the_best_noise_over_agents_and_rounds():
    found = compare(config(training__rounds=50, training__sampling_rate="0.1"), groups=10)
    rows = by_kind(found)
    assert rows["joint"].energy == pytest.approx(2.20423, abs=5e-6)
    assert rows["joint"].gap < 1e-6
    assert rows["joint"].bound_of == "all noise"
    assert rows["over time"].energy == pytest.approx(4.79651, abs=1e-5)
    said = config(
        training__rounds=50, training__sampling_rate="0.1", privacy__participation="{cycle = 10}"
    )
    assert compare(said) == found
    once = compare(config(training__rounds=50, training__sampling_rate="0.02"), groups=50)
    assert by_kind(once)["joint"].energy == pytest.approx(0.43117, abs=5e-6)


def test_every_row_meets_the_target_at_its_multiplier_and_no_less():
    for row in compare(config()).rows:
        turns = math.ceil(100 / row.groups)
        spent = epsilon(
            noise_multiplier=row.noise_multiplier / row.joint_sensitivity, delta=1e-5,
            rounds=turns, sampling_rate=row.rate,
        )  # fmt: skip
        assert 0.999 < spent <= 1.0
        assert row.outsider == pytest.approx(1.0, abs=1e-3)


def test_insiders_stand_in_the_same_table():
    rows = by_kind(compare(config()))
    for kind in ("across agents", "joint"):
        assert rows[kind].one_agent == rows[kind].all_others == math.inf
        assert "common seed" in rows[kind].undone_by
    assert rows["independent"].all_others == rows["independent"].outsider
    pairs = rows["pair secrets"]
    assert pairs.outsider < pairs.one_agent < pairs.all_others < math.inf


def test_against_a_neighbour_common_seeds_meet_no_target():
    found = compare(config(privacy__adversary="neighbour"))
    rows = by_kind(found)
    assert not rows["joint"].meets
    assert not rows["across agents"].meets
    assert rows["pair secrets"].one_agent == pytest.approx(1.0, abs=1e-3)
    assert found.rows[0].kind == "pair secrets"
    everybody = by_kind(compare(config(privacy__adversary="all-others")))
    assert everybody["pair secrets"].noise >= everybody["independent"].noise * (1 - 1e-3)


@pytest.mark.parametrize("kind", ["across agents", "pair secrets", "independent"])
def test_a_run_file_that_is_written_is_planned_at_that_noise(kind):
    base = config(privacy__adversaries='["eavesdropper"]', training__rounds=20)
    found = compare(base)
    row = by_kind(found)[kind]
    plan = make_plan(run_file_with(base, row, epsilon=found.epsilon))
    assert plan.noise_multiplier == pytest.approx(row.noise_multiplier, rel=1e-5)
    assert plan.guarantee("eavesdropper").epsilon == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("rate", ["0.2", "0.1"])
def test_a_run_file_of_records_in_turns_is_planned_at_that_noise(rate):
    base = config(
        privacy__adversaries='["eavesdropper"]', training__rounds=20, training__sampling_rate=rate
    )
    found = compare(base, groups=5)
    for kind in ("across agents", "independent", "over time"):
        row = by_kind(found)[kind]
        plan = make_plan(run_file_with(base, row, epsilon=found.epsilon))
        assert plan.noise_multiplier == pytest.approx(row.noise_multiplier, rel=1e-5)


@pytest.mark.parametrize("rate", ["0.25", "0.1"], ids=["whole", "amplified"])
@pytest.mark.parametrize("kind", ["joint", "pair secrets over time"])
@pytest.mark.parametrize("graph", ["ring", "star"])
def test_noise_over_agents_and_rounds_is_planned_as_the_design_says(kind, rate, graph):
    """Agents of a star are not alike; against a neighbour pair secrets alone are finite."""
    base = config(
        privacy__adversaries='["eavesdropper", "neighbour"]', training__rounds=8,
        training__sampling_rate=rate, data__agents=4, graph__name=graph,
    )  # fmt: skip
    found = compare(base, groups=4)
    row = by_kind(found)[kind]
    plan = make_plan(run_file_with(base, row, epsilon=found.epsilon))
    assert plan.noise_multiplier == pytest.approx(row.noise_multiplier, rel=1e-5)
    assert plan.guarantee("eavesdropper").epsilon == pytest.approx(1.0, abs=1e-3)
    neighbour = plan.guarantee("neighbour").epsilon
    if row.amplified:  # the design's agent hears all links; the plan's may count turns together
        assert neighbour >= row.one_agent * (1 - 1e-3)
    else:
        assert neighbour == pytest.approx(row.one_agent, rel=1e-3)
    assert plan.guarantee("eavesdropper").joint_sensitivity == pytest.approx(
        row.joint_sensitivity, rel=1e-6
    )


def test_pair_secrets_over_time_against_a_neighbour_are_planned_as_the_design_says():
    """Ring of ten, 50 rounds, uses 10 apart: energy 4.2005 at mu 1 to a neighbour."""
    base = config(
        privacy__adversary="neighbour", training__rounds=50, training__sampling_rate="0.1"
    )
    row = by_kind(compare(base, groups=10))["pair secrets over time"]
    assert row.energy * row.joint_sensitivity**2 == pytest.approx(4.2005, abs=1e-4)
    short = config(privacy__adversary="neighbour", training__rounds=12)  # drawn by a coin
    row = by_kind(compare(short, groups=4))["pair secrets over time"]
    plan = make_plan(run_file_with(short, row, epsilon=1.0))
    assert plan.noise_multiplier == pytest.approx(row.noise_multiplier, rel=1e-5)
    assert plan.guarantee("neighbour").epsilon == pytest.approx(1.0, abs=1e-3)
    assert plan.guarantee("eavesdropper").epsilon == pytest.approx(row.outsider, rel=1e-3)


def test_a_proposal_to_take_turns_is_planned_at_its_noise():
    base = config(privacy__adversaries='["eavesdropper"]', training__rounds=12)
    found = compare(base)
    row = by_kind(found)["over time"]
    assert not row.own_sampling
    written = run_file_with(base, row, epsilon=found.epsilon)
    assert written.pattern.number == row.groups
    plan = make_plan(written)
    assert plan.noise_multiplier == pytest.approx(row.noise_multiplier, rel=1e-4)
    assert plan.guarantee("eavesdropper").epsilon == pytest.approx(1.0, abs=1e-3)


def test_where_a_record_is_replaced_no_memory_is_offered():
    rows = by_kind(compare(config(privacy__adjacency="replace-one")))
    assert not any(row.memory for row in rows.values())
    with pytest.raises(InputError, match="replace-one"):
        compare(config(privacy__adjacency="replace-one"), groups=5)


def test_pair_secrets_cost_an_insider_what_the_plan_says():
    base = config(privacy__adversary="neighbour", training__rounds=20)
    found = compare(base)
    row = by_kind(found)["pair secrets"]
    plan = make_plan(run_file_with(base, row, epsilon=found.epsilon))
    assert plan.guarantee("neighbour").epsilon == pytest.approx(1.0, abs=1e-3)
    assert plan.guarantee("eavesdropper").epsilon == pytest.approx(row.outsider, rel=1e-3)


def test_a_given_noise_multiplier_is_compared_at_its_own_epsilon():
    found = compare(config(privacy__noise_multiplier=2.0))
    assert by_kind(found)["independent"].noise_multiplier == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"graph__name": "directed-ring"}, "symmetric"),
        ({"graph__name": "directed-exponential"}, "one graph|symmetric"),
        ({"graph__name": "server"}, "links"),
        ({"privacy__unit": "agent"}, "unit='agent'"),
        ({"privacy__advantage": "0.1"}, "epsilon"),
        ({"privacy__adversary": "single-message"}, "single-message"),
        ({"privacy__adversary": "final-models"}, "'final-models' sees the final models alone"),
        ({"graph__links": "encrypted"}, "use 'neighbour' or 'all-others', or links='clear'"),
        ({"data__agents": "1"}, "links"),
        ({"privacy__participation": "{most = 3}"}, "participation"),
    ],
)
def test_what_has_no_design_is_refused(overrides, named):
    with pytest.raises(InputError, match=named):
        compare(config(**overrides))


@pytest.mark.parametrize(("rounds", "rate"), [(1, 0.1), (8, 0.6)])
def test_where_memory_has_nothing_to_take_back_no_kind_is_shown_twice(rounds, rate):
    found = compare(config(training__rounds=rounds, training__sampling_rate=rate))
    assert sorted(by_kind(found)) == ["across agents", "independent", "pair secrets"]
    assert len(found.rows) == 3
    assert "memory" not in " ".join(found.advice)


@pytest.mark.parametrize(("groups", "named"), [(0, "groups=0"), (101, "groups=101"), (30, "30")])
def test_groups_that_cannot_take_turns_are_refused(groups, named):
    with pytest.raises(InputError, match=named):
        compare(config(), groups=groups)


@pytest.mark.parametrize("adversary", ["neighbour", "all-others"])
def test_the_noise_of_pair_secrets_is_that_of_the_plan_against_who_knows_some(adversary):
    asked = config(privacy__adversary=adversary, training__rounds=4, data__agents=5)
    row = by_kind(compare(asked))["pair secrets"]
    planned = make_plan(run_file_with(asked, row, epsilon=1.0))
    assert row.noise_multiplier == pytest.approx(planned.noise_multiplier, rel=1e-4)
    assert row.joint_sensitivity == pytest.approx(
        planned.guarantee(adversary).joint_sensitivity, rel=1e-4
    )
    assert row.joint_sensitivity > 1.001


def test_where_a_plan_counts_turns_of_an_agent_one_by_one_no_figure_of_the_table_is_smaller():
    """Turns of 5 rounds in a cycle of 4: the table said .0153 of all others, the plan .0166."""
    base = config(
        data__agents=4, graph__name="full", privacy__adversary="neighbour",
        privacy__adversaries='["eavesdropper", "neighbour", "all-others"]',
        privacy__epsilon=0.0064, privacy__delta=1e-3, privacy__participation="{cycle = 4}",
        training__rounds=5, training__sampling_rate=0.01,
    )  # fmt: skip
    found = compare(base)
    row = by_kind(found)["pair secrets over time"]
    plan = make_plan(run_file_with(base, row, epsilon=found.epsilon))
    assert plan.noise_multiplier < row.noise_multiplier / 10
    assert row.one_agent == pytest.approx(plan.guarantee("neighbour").epsilon, rel=1e-3)
    assert row.all_others >= plan.guarantee("all-others").epsilon * (1 - 1e-3)


_GRAPHS = [
    {"name": "ring"},
    {"name": "star"},
    {"name": "erdos-renyi", "edge_probability": 0.6},
    {"name": "grid"},
]


@pytest.mark.parametrize(
    ("graph", "agents", "rounds"),
    [
        (_GRAPHS[0], 2, 4),
        *(
            pytest.param(graph, agents, rounds, marks=pytest.mark.slow)
            for graph, agents, rounds in (
                (_GRAPHS[0], 5, 8),
                (_GRAPHS[1], 4, 8),
                (_GRAPHS[2], 6, 8),
                (_GRAPHS[3], 6, 4),  # one turn: no second one that a longer view could meet
                ({"name": "full"}, 4, 8),
                (_GRAPHS[0], 5, 1),
            )
        ),
    ],
    ids=lambda one: one["name"] if isinstance(one, dict) else str(one),
)
def test_the_table_and_the_plan_of_what_it_writes_agree_for_every_adversary(graph, agents, rounds):
    """A neighbour of banded noise over time on a ring of 5 was planned at three times the word."""
    turns = {"participation": {"cycle": 4}} if rounds > 1 else {}
    names = ["eavesdropper", "neighbour", "all-others"]
    said = KEYS | {
        "data": {"name": "digits", "agents": agents},
        "graph": graph,
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "adversaries": names, **turns},
        "training": {"rounds": rounds, "sampling_rate": 0.1, "learning_rate": 0.5},
    }
    found = compare(read_tables(said, []))
    made = [row for row in found.rows if row.algorithm is not None]
    assert {row.kind for row in made} >= {"independent", "across agents"} | (
        {"over time"} if turns else set()
    )
    for row in made:
        plan = make_plan(run_file_with(read_tables(said, []), row, epsilon=found.epsilon))
        planned = {one.adversary: one.epsilon for one in plan.guarantees}
        table = dict(zip(names, (row.outsider, row.one_agent, row.all_others), strict=True))
        assert table == pytest.approx({name: planned[name] for name in names}, rel=1e-3)


@pytest.mark.slow
def test_joint_noise_is_written_with_as_much_memory_as_its_plan_can_view():
    """Ten agents and 50 rounds were written with all memory, which no plan took."""
    said = KEYS | {
        "training": {"rounds": 50, "sampling_rate": 0.01, "learning_rate": 0.5},
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "adversaries": ["eavesdropper"]},
    }
    found = compare(read_tables(said, []), groups=10)
    plan = make_plan(
        run_file_with(read_tables(said, []), by_kind(found)["joint"], epsilon=found.epsilon)
    )
    assert plan.guarantees[0].epsilon == pytest.approx(4.0, rel=1e-4)
    assert str(plan.guarantees[0].status) == "proven"


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "rate"), [({"cycle": 4}, 0.25), ("every", 0.05)])
def test_where_learning_rates_differ_every_row_is_planned_as_it_says(turns, rate):
    """The file that a row writes keeps the schedule, and its plan is at the row's noise."""
    schedule = {"schedule": "cosine", "start": 0.5, "warmup": 2}
    tables = {
        **KEYS,
        "data": {"name": "digits", "agents": 5},
        "privacy": {"epsilon": 2.0, "delta": 1e-5, "participation": turns},
        "training": {"rounds": 12, "sampling_rate": rate, "learning_rate": schedule},
    }
    base = read_tables(tables)
    found = compare(base)
    equal = compare(read_tables(tables, ["training.learning_rate=0.5"]))
    assert [row.noise for row in found.rows] != [row.noise for row in equal.rows]
    for row in found.rows:
        written = run_file_with(base, row, epsilon=found.epsilon)
        assert written.training.learning_rate == schedule
        plan = make_plan(written)
        assert plan.noise_multiplier == pytest.approx(row.noise_multiplier, rel=1e-4)
        assert plan.guarantee("eavesdropper").epsilon == pytest.approx(2.0, abs=1e-3)


def test_rates_that_differ_in_more_rounds_than_are_dense_are_refused():
    schedule = {"schedule": "step", "start": 0.5, "factor": 0.5, "every": 9}
    training = {"rounds": 201, "sampling_rate": 0.05, "learning_rate": schedule}
    with pytest.raises(InputError, match="use at most 200 rounds"):
        compare(read_tables({**KEYS, "training": training}))
