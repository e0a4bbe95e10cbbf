"""Two tracers agree on the registry, and the second one finds faults that are put into the first.

None of this is a matter of chance: both tracers compute, and 1e-9 is far above their rounding.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from overhear import account
from overhear.privacy.batches.sampling import Drawing, Scheme
from overhear.privacy.participation import Reach
from overhear.privacy.view import view as first_view
from overhear.training import ALGORITHMS, Round
from overhear.training.accounts.summary import Verdict
from overhear.training.accounts.traced_twice import TracedTwice, check_account
from overhear.training.step.operations import reply_order
from overhear.training.step.values import Batch, Edges
from overhear.training.tracing.traced_round import TracedRound
from tests.training.states import State, start

RUN: Mapping[str, Any] = {
    "graph": "ring:5", "rounds": 4, "sampling_rate": 0.1, "batch_size": 10, "delta": 1e-5,
    "noise_multiplier": 2.0,
    "adversaries": ["eavesdropper", "neighbour", "final-models", "coalition:1,2", "all-others"],
}  # fmt: skip
FORMS = [(name, form) for name, one in ALGORITHMS.items() for form in one.forms]
ABSENT = np.array([[0, 1, 1, 1, 1], [1, 1, 0, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 1]])


def checked(*algorithm: Any, **asked: Any) -> dict[str, TracedTwice]:
    return check_account(account(*algorithm, **{**RUN, **asked}))


def verdicts(found: Mapping[str, TracedTwice]) -> set[Verdict]:
    return {one.verdict for one in found.values()}


def asked_of(name: str) -> dict[str, Any]:
    """What an algorithm of the registry needs besides."""
    records = {"records": 100} if ALGORITHMS[name].needs_records else {}
    return records | ({"graph": "server:5"} if name in ("dp-sgda", "dp-fedavg") else {})


def check_agreement(found: Mapping[str, TracedTwice]) -> None:
    for name, one in found.items():
        assert one.verdict is Verdict.AGREES, (name, one)
        assert one.second == pytest.approx(one.first, rel=1e-9), (name, one)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_two_tracers_agree_on_the_registry(name, form):
    check_agreement(checked(name, form=form, **asked_of(name)))


DRAWN: Mapping[str, Any] = {"records": 100, "adjacency": "zero-out"}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    # whose data are hidden
    ("whisper", {"unit": "agent", "clip": "batch"}),
    ("dp-cga", {"unit": "agent", "clip": "batch"}),
    ("decor", {"unit": "agent", "clip": "batch", "adjacency": "replace-one"}),
    ("dp-fedavg", {"unit": "agent", "graph": "server:5"}),
    ("dp-fedavg", {"unit": "agent", "graph": "server:5", "cohort": "fixed", "cohort_rate": 0.4}),
    ("dp-cga", {"clip": "batch"}),
    ("dp-dpsgd", {"unit": "user", "records_per_person": 3}),
    ("dp-netfleet", {"unit": "user", "records_per_person": 3, "batches": "per-round"}),
    # how they are drawn
    ("dp-netfleet", {"batches": "per-round", "local_steps": 4}),
    ("dp-netfleet", {"sampling": "fixed", **DRAWN}),
    ("dpdl", {"sampling": "shuffled", **DRAWN}),
    ("dpdl", {"sampling": "cyclic", "records": 100, "adjacency": "replace-one"}),
    ("dp-dpsgd", {"largest_batch": 20, **DRAWN}),
    ("dp-fedavg", {"graph": "server:5", "local_data": "one-batch", "cohort_rate": 0.4}),
    ("dp-fedavg", {"graph": "server:5", "local_data": "batches", "cohort_rate": 1.0}),
    (
        "dp-fedavg",
        {"graph": "server:5", "cohort": "shuffled", "cohort_rate": 0.4, "local_data": "batches"},
    ),
    # which rounds a record, or an agent, is in
    ("dp-ftrl", {"participation": {"cycle": 2}}),
    ("mafalda", {"participation": {"cycle": 3}, "rounds": 7}),
    ("decor-over-time", {"participation": [1, 3]}),
    ("dpdl", {"active": ABSENT}),
    ("whisper", {"active": ABSENT}),
    ("cdp-dsgd", {"active": ABSENT}),
    # graphs, links and numbers
    ("dpdl", {"graph": "star:6"}),
    ("decor", {"graph": "grid:9"}),
    ("dp-cga", {"graph": "full:6"}),
    ("muffliato", {"graph": "star:6"}),
    ("dyn-d2p", {"graph": "directed-ring:6", "rounds": 12}),
    ("dyn-d2p", {"graph": "directed-exponential:6"}),
    ("decor", {"links": "encrypted", "adversaries": ["eavesdropper", "all-others"]}),
    ("dp-dpsgd", {"learning_rate": {"schedule": "cosine", "start": 0.1}}),
    ("dpdl", {"rounds": 100_000, "noise_multiplier": 8.0}),
    ("dpdl", {"clip_norm": 3.0, "noise_multiplier": 0.7}),
    ("decor", {"graph": "ring:40", "adversaries": ["eavesdropper"]}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "asked"), OTHERS)
def test_two_tracers_agree_on_units_batches_and_graphs(name, asked):
    check_agreement(checked(name, **asked))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "asked", "why"),
    [
        ("dpdl", {"missing": 1, "adversaries": ["eavesdropper"]}, "may be missing"),
        ("dpdl", {"holders": [0, 3], "adversaries": ["eavesdropper"]}, "one person at several"),
        ("dp-ftrl", {"participation": {"apart": 2}}, "does not count turns"),
        ("dp-dpsgd", {"participation": {"cycle": 2}}, "does not count turns"),
        ("dp-dpsgd", {"noise_multiplier": 0.0}, "no noise"),
    ],
)
def test_what_is_not_checked_is_not_confirmed(name, asked, why):
    found = checked(name, **asked)
    assert verdicts(found) == {Verdict.NOT_CHECKED}
    assert all(why in one.because and one.second is None for one in found.values())


def test_a_view_that_is_too_large_is_not_checked():
    known = account("dp-dpsgd", **{**RUN, "adversaries": ["eavesdropper"]})
    (one,) = check_account(known, seconds=1e-9).values()
    assert (one.verdict, one.second) == (Verdict.NOT_CHECKED, None)
    assert "it would take more than" in one.because


def crossed(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
    """Gradients on neighbours' models, which go back to them: three of one batch on a ring."""
    models = round.broadcast(state.x, kind="model")
    sums = round.clipped_sums(models, batch=round.draw(), clip_norm=clip_norm)
    back = round.reply(sums + round.noise(sums, std=noise_std), kind="cross-gradient")
    return State(state.x - round.sum_in(back))


Original = Callable[..., Any]


def smaller(of: Original, *given: Any) -> float:
    """A joint sensitivity times .9."""
    return float(0.81 * of(*given))


def forgotten(of: Original, self: TracedRound, value: Edges, *, kind: str) -> Edges:
    """A message that nobody is said to see."""
    del of, kind
    return Edges(value.rows[reply_order(self._graph)])


def noise_twice(of: Original, self: TracedRound, like: Any, *, std: float, **more: Any) -> Any:
    """Noise counted twice."""
    return of(self, like, std=2.0 * std, **more)


def batch_twice(of: Original, self: TracedRound, *points: Any, batch: Batch, **more: Any) -> Any:
    """One batch counted as two, each drawn by itself."""
    taken = self.__dict__.setdefault("_taken", [])
    taken.append(batch)
    another = Batch(call=batch.call + 1, sampling_rate=batch.sampling_rate)
    return of(self, *points, batch=another if len(taken) == 2 else batch, **more)


FAULTS = [
    (first_view, "squared_joint_sensitivity", smaller, "is stated"),
    (TracedRound, "reply", forgotten, "is stated"),
    (TracedRound, "noise", noise_twice, "is stated"),
]


def test_an_honest_step_agrees():
    check_agreement(checked(start, crossed, adversaries=["eavesdropper", "neighbour"]))


@pytest.mark.parametrize(("where", "name", "fault", "said"), FAULTS)
def test_a_fault_of_the_first_tracer_is_found(where, name, fault, said, monkeypatch):
    original = getattr(where, name)

    @functools.wraps(original)
    def planted(*given: Any, **named: Any) -> Any:
        return fault(original, *given, **named)

    monkeypatch.setattr(where, name, planted)
    found = checked(start, crossed, adversaries=["eavesdropper"])["eavesdropper"]
    assert found.verdict is Verdict.CONTRADICTED
    assert found.second is not None
    assert found.first < 0.95 * found.second
    assert said in found.because


@pytest.mark.slow
def test_a_batch_that_the_first_tracer_counts_as_two_is_found(monkeypatch):
    asked = {"batches": "per-round", "adversaries": ["eavesdropper"]}
    check_agreement(checked("dp-netfleet", **asked))
    original = TracedRound.clipped_sums
    monkeypatch.setattr(TracedRound, "clipped_sums", functools.partialmethod(_twice, original))
    found = checked("dp-netfleet", **asked)["eavesdropper"]
    assert found.verdict is Verdict.CONTRADICTED
    assert found.first == pytest.approx(found.second)  # the sum of squares alone shows nothing
    assert "moves a sum by" in found.because


def _twice(self: TracedRound, of: Original, *given: Any, **named: Any) -> Any:
    return batch_twice(of, self, *given, **named)


@pytest.mark.slow
def test_another_pair_that_is_told_more_and_another_rate_are_found():
    known = account("dpdl", **{**RUN, "graph": "star:5", "adversaries": ["eavesdropper"]})
    [(name, stated)] = known.joint_sensitivities.items()
    assert stated.victim == 0  # the hub, of whom five cross-gradients are released
    leaf = account("dpdl", **{**RUN, "graph": "star:5", "adversaries": ["eavesdropper"]}, victim=1)
    wrong = dataclasses.replace(known, joint_sensitivities=leaf.joint_sensitivities)
    found = check_account(wrong)[name]
    assert found.verdict is Verdict.CONTRADICTED
    assert found.because == "eavesdropper learns more of agent 0"
    assert check_account(leaf, victim=1)[name].verdict is Verdict.AGREES
    release = stated.releases[0]._replace(sampling_rate=0.05)
    slower = {name: stated._replace(releases=(release,))}
    found = check_account(dataclasses.replace(known, joint_sensitivities=slower))[name]
    assert found.verdict is Verdict.CONTRADICTED
    assert "more batches at sampling rate 0.1" in found.because


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "asked", "charged", "said"),
    [
        ("dp-ftrl", {"adjacency": "replace-one"}, {"reach": Reach.BALL}, "a ball is charged"),
        ("dp-ftrl", {}, {"sampling_rate": 0.1}, "a sampling rate is charged for all rounds"),
        (
            "dp-dpsgd",
            {"sampling": "shuffled", "records": 100, "adjacency": "zero-out"},
            {"drawn": None},
            "drawn in another way",
        ),
        (
            "dp-dpsgd",
            {"sampling": "fixed", "records": 100, "adjacency": "zero-out"},
            {"sampling_rate": 0.05},
            "at sampling rate 0.1",
        ),
        (
            "dp-dpsgd",
            {"largest_batch": 20, "records": 100, "adjacency": "zero-out"},
            {"sampling_rate": 0.05},
            "at sampling rate 0.1",
        ),
        ("dp-dpsgd", {}, {"sampling_rate": 0.05}, "at sampling rate 0.1"),
    ],
)
def test_what_is_charged_must_be_what_is_drawn(name, asked, charged, said):
    known = account(name, **{**RUN, "adversaries": ["eavesdropper"], **asked})
    [(who, stated)] = known.joint_sensitivities.items()
    assert check_account(known)[who].verdict in (Verdict.AGREES, Verdict.LOOSER)
    releases = tuple(one._replace(**charged) for one in stated.releases)
    wrong = {who: stated._replace(releases=releases)}
    found = check_account(dataclasses.replace(known, joint_sensitivities=wrong))[who]
    assert found.verdict is Verdict.CONTRADICTED
    assert said in found.because


DRAWN_BY_ONE = Drawing(Scheme.FIXED, 480, 48, 480)


@pytest.mark.parametrize(
    ("charged", "as_drawn"),
    [
        (DRAWN_BY_ONE, True),
        (DRAWN_BY_ONE._replace(records=478), True),  # of the smallest of several agents
        (DRAWN_BY_ONE._replace(records=478, most=481), True),
        (DRAWN_BY_ONE._replace(records=481, most=481), False),  # a record is drawn less often
        (DRAWN_BY_ONE._replace(records=470, most=479), False),
        (DRAWN_BY_ONE._replace(size=47), False),
        (DRAWN_BY_ONE._replace(scheme=Scheme.SHUFFLED), False),
        (DRAWN_BY_ONE._replace(of_agents=True), False),
        (None, False),
    ],
)
@pytest.mark.slow
def test_batches_are_charged_as_of_agents_that_bound_the_victim(charged, as_drawn):
    known = account(
        "dp-dpsgd",
        **{**RUN, "adversaries": ["eavesdropper"], "adjacency": "zero-out", "batch_size": 48},
        sampling="fixed",
        records=480,
    )
    assert known.subject.drawn is not None
    known = dataclasses.replace(
        known, subject=dataclasses.replace(known.subject, drawn=(DRAWN_BY_ONE,) * 5)
    )
    [(who, stated)] = known.joint_sensitivities.items()
    rate = 0.1 if charged is None else charged.rate
    releases = tuple(one._replace(drawn=charged, sampling_rate=rate) for one in stated.releases)
    told = dataclasses.replace(known, joint_sensitivities={who: stated._replace(releases=releases)})
    found = check_account(told)[who]
    if as_drawn:
        assert found.verdict is Verdict.AGREES
    rare = tuple(one._replace(sampling_rate=0.09) for one in releases)
    told = dataclasses.replace(known, joint_sensitivities={who: stated._replace(releases=rare)})
    assert check_account(told)[who].verdict is Verdict.CONTRADICTED
    assert (found.because != "batches are charged as if they were drawn in another way") == as_drawn


@pytest.mark.slow
def test_more_than_is_told_is_looser_and_contradicts_nothing():
    known = account("dpdl", **{**RUN, "adversaries": ["eavesdropper"]})
    [(name, stated)] = known.joint_sensitivities.items()
    release = stated.releases[0]._replace(joint_sensitivity=2.0)
    larger = {name: stated._replace(releases=(release,))}
    found = check_account(dataclasses.replace(known, joint_sensitivities=larger))[name]
    assert (found.verdict, found.because) == (Verdict.LOOSER, "")


def accumulated(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
    """Four batches under one noise, beside a public table."""
    sums = [
        round.clipped_sums(state.x, batch=round.draw(0.025), clip_norm=clip_norm) for _ in range(4)
    ]
    total = sums[0] + sums[1] + sums[2] + sums[3]
    table = round.of_agents(torch.ones(round.agents, 2))
    return State(round.mix(table + (total + round.noise(total, std=noise_std)), kind="model"))


def weighted(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
    """Two batches under one noise, of which one counts half."""
    one, other = (
        round.clipped_sums(state.x, batch=round.draw(0.05), clip_norm=clip_norm) for _ in range(2)
    )
    total = one + 0.5 * other
    return State(round.mix(total + round.noise(total, std=noise_std), kind="model"))


def counted(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
    """Layers with bounds of their own, a count of the same batch, and public random numbers."""
    batch = round.draw()
    sums = round.clipped_sums(state.x, batch=batch, clip_norm=(clip_norm, 2.0), parts=(1, 1))
    count = round.count(low, state.x, batch=batch)
    told = round.broadcast(count + round.noise(count, std=noise_std), kind="count")
    noised = sums + round.noise(sums, std=noise_std)
    moved = round.postprocess(beside, noised, round.public(7), told)
    return State(round.mix(moved, kind="model"))


def low(loss: Tensor) -> Tensor:
    return (loss < 1.0).to(loss.dtype)


def beside(row: Tensor, random: Tensor, counts: Tensor) -> Tensor:
    return row + random + counts.sum()


@pytest.mark.parametrize("step", [accumulated, counted])
def test_operations_that_are_seldom_used_agree(step):
    found = checked(start, step, adversaries=["eavesdropper", "neighbour", "final-models"])
    check_agreement(found)


def test_noise_that_unlike_batches_share_is_not_confirmed():
    found = checked(start, weighted, adversaries=["eavesdropper"])["eavesdropper"]
    assert found.verdict is Verdict.NOT_CHECKED
    assert "share noise" in found.because
