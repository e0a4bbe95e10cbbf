"""What an account takes is told before it is begun, and what is too long is refused."""

from dataclasses import replace

import pytest

from overhear.privacy.errors import InputError
from overhear.training import ALGORITHMS, account, build_graph
from overhear.training.accounts.account import WorkEstimate, account_of, price_of
from overhear.training.accounts.accounted_run import AccountedRun
from overhear.training.accounts.request import algorithm_of
from overhear.training.algorithms.algorithm import Form
from overhear.training.step.round import Round
from tests.training.states import State, start


def subject(
    name: str, graph: str = "ring", *, rounds: int = 50, **settings: object
) -> AccountedRun:
    known = algorithm_of(name, settings=settings)
    return AccountedRun(
        algorithm=known.algorithm, settings=known.settings, form=Form.REPAIRED,
        graph=build_graph(graph, 8), rounds=rounds, sampling_rate=0.1, clip_norm=1.0,
        learning_rate=0.1, records=100.0 if ALGORITHMS[name].needs_records else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "apart"),
    [
        (subject("dpdl"), 1),
        (subject("dsgd", "directed-exponential"), 3),
        (subject("dyn-d2p", "directed-exponential"), 50),
        (subject("dsgd", "directed-exponential", rounds=2), 2),
    ],
)
def test_rounds_are_counted_apart_where_they_differ(given, apart):
    assert price_of(given).apart == apart


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_ordinary_run_of_every_algorithm_is_short(name):
    price = price_of(subject(name))
    assert price.words is None
    price.check()


def test_more_of_anything_takes_longer():
    def seconds(name: str, graph: str = "ring", **more: object) -> float:
        return price_of(subject(name, graph, **more)).seconds  # type: ignore[arg-type]

    assert seconds("dpdl") < seconds("dpdl", "full")
    assert seconds("ldp-dsgd") + 0.1 < seconds("decor") < seconds("ldp-dsgd") + 0.3  # 8 agents
    assert seconds("dp-netfleet") < seconds("dp-netfleet", local_steps=50)
    changing = {"clip_decay": 2.0, "graph": "directed-exponential"}
    assert seconds("dyn-d2p", **changing) < seconds("dyn-d2p", rounds=99, **changing)


def test_a_round_of_many_sums_takes_longer_and_few_graphs_are_shorter_than_many():
    falling = [0.1 - 0.001 * turn for turn in range(50)]
    of_one, of_many = (
        price_of(replace(subject(name, rounds=50), learning_rate=falling))
        for name in ("dpdl", "muffliato")
    )
    assert of_many.apart == of_one.apart == 50
    assert of_many.seconds > of_one.seconds
    few, many = (
        price_of(
            replace(
                subject("dyn-d2p", rounds=3500, clip_decay=4.0),
                graph=build_graph("random-digraph", 40, edge_probability=0.2, graphs=graphs),
            )
        )
        for graphs in (4, 400)
    )
    few.check()
    assert few.seconds < many.seconds


@pytest.mark.parametrize(
    ("price", "words"),
    [
        (
            WorkEstimate(600.0, 90.0, 1000, 20, 1),
            "10 minutes and 90 MB, .* lower rounds, to 500 or less",
        ),
        (WorkEstimate(600.0, 90.0, 1, 20, 400, ("k=400",)), "draws 400 batches; lower k until"),
        (WorkEstimate(600.0, 90.0, 1, 10**7, 1), "a round has 10000000 links; lower agents"),
    ],
)
def test_a_long_account_is_refused_with_the_number_to_lower(price, words):
    with pytest.raises(InputError, match=words):
        price.check()
    price._replace(seconds=300.0).check()


def test_an_account_of_some_seconds_says_so_before_it_is_begun(monkeypatch):
    class Begun(Exception):
        pass

    def figures_of(*_: object, **__: object) -> None:
        raise Begun

    monkeypatch.setattr("overhear.training.accounts.account.figures_of", figures_of)
    told: list[WorkEstimate] = []
    long = subject("dyn-d2p", "directed-exponential", rounds=1000, clip_decay=2.0)
    for given in (subject("dpdl"), long):
        with pytest.raises(Begun):
            account_of(given, statement=STATEMENT, at=1.0, told=told.append)
    words = "".join(price.words or "" for price in told)
    assert words.startswith("The account takes about 20 seconds and")
    assert "1000 rounds differ" in words


STATEMENT = account(
    "dpdl", graph="ring:4", rounds=2, sampling_rate=0.1, delta=1e-5, noise_multiplier=1.0
).said_of


def step(state: State, round: Round, *, turns: int) -> State:
    x = state.x
    for _ in range(turns):
        x = 1.0 * x
    return State(x)


@pytest.mark.parametrize(("agents", "most"), [(2, 10_000), (300, 1527), (3000, 500)])
def test_a_round_without_an_end_is_stopped_at_a_number_of_operations(agents, most):
    known = algorithm_of(start, step, settings={"turns": 10**12})
    endless = AccountedRun(
        algorithm=known.algorithm, settings=known.settings, form=Form.REPAIRED,
        graph=build_graph("ring", agents), rounds=5, sampling_rate=0.1, clip_norm=1.0,
        learning_rate=0.1,
    )  # fmt: skip
    with pytest.raises(InputError, match=rf"turns=1000000000000 does more than {most} operations"):
        price_of(endless)
