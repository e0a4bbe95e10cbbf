"""Joint sensitivities of every adversary and victim, from a few of the pairs."""

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet

from overhear.privacy.errors import UnsupportedView
from overhear.privacy.guarantee import Sees, Status, neighbour
from overhear.privacy.noise.correlated import decor_factor
from overhear.training.algorithms import Form, dp_dpsgd, dpdl, dsgd
from overhear.training.exposure.joint_sensitivities import (
    joint_sensitivities,
    joint_sensitivities_by_victim,
)
from overhear.training.exposure.local_views import LocalViews
from overhear.training.exposure.sensitivity import JointSensitivity, Release, candidates, worst
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.mixing import mixing_weights
from overhear.training.graphs.topologies import bipartite, ring, star
from overhear.training.step.round import Round
from overhear.training.step.values import Agents
from overhear.training.tracing.trace import AlgorithmTrace, trace

RATE = 0.02
NAMES = ("eavesdropper", "neighbour", "final-models", "all-others", "neighbour:2", "coalition:0,2")
NUMBERS = {"learning_rate": 0.01, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 7.0}
DPDL = {"settings": dpdl.Settings(alpha=0.7, momentum=0.9), **NUMBERS}


class _X(NamedTuple):
    x: Agents


def _start(round: Round) -> _X:
    return _X(round.initial())


def _sums(state: _X, round: Round) -> Agents:
    return round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)


def _clean(state: _X, round: Round) -> _X:
    return _X(round.mix(state.x - _sums(state, round), kind="clean"))


def _cancelling(state: _X, round: Round) -> _X:
    sums = _sums(state, round)
    z = round.noise(sums, std=1.0)
    round.broadcast(2.0 * sums + z, kind="first")
    return _X(round.mix(sums + z, kind="second"))


def _known_to_one(state: _X, round: Round) -> _X:
    sums = _sums(state, round)
    shared = round.noise(sums, std=1.0, known_to=[frozenset({1})] * round.agents)
    return _X(round.mix(sums + shared, kind="masked"))


def _aside(state: _X, round: Round) -> _X:
    sums = _sums(state, round)
    round.broadcast(sums + round.noise(sums, std=0.8), kind="aside")
    return _X(round.mix(sums + round.noise(sums, std=1.0), kind="model"))


def _fading(state: _X, round: Round) -> _X:
    sums = _sums(state, round)
    noisy = sums + round.noise(sums, std=1.0 / round.index)
    return _X(round.mix(noisy, kind="fading"))


def _half_known(state: _X, round: Round) -> _X:
    """Every agent's noise has a part that the agent before it knows."""
    sums = _sums(state, round)
    before = [frozenset({(i - 1) % round.agents}) for i in range(round.agents)]
    noise = round.noise(sums, std=0.6) + round.noise(sums, std=0.8, known_to=before)
    return _X(round.mix(state.x - (sums + noise), kind="model"))


def _decor(state: _X, round: Round) -> _X:
    sums = _sums(state, round)
    links = np.eye(round.agents)
    links += np.roll(links, 1, axis=1) + np.roll(links, -1, axis=1)
    factor = np.array(decor_factor(links, local_variance=1.0, pair_variance=2.0))
    noise = round.noise(sums, std=1.0, factor=torch.from_numpy(factor))
    return _X(round.mix(state.x - (sums + noise), kind="model"))


STEPS = {
    "repaired": (dpdl.init, functools.partial(dpdl.step, form=Form.REPAIRED, **DPDL)),
    "published": (dpdl.init, functools.partial(dpdl.step, form=Form.PUBLISHED, **DPDL)),
    "step-then-mix": (
        dp_dpsgd.init,
        functools.partial(dp_dpsgd.step, order=dp_dpsgd.Order.STEP_THEN_MIX, **NUMBERS),
    ),
    "dsgd": (dsgd.init, functools.partial(dsgd.step, learning_rate=0.01, batch_size=7.0)),
    "clean": (_start, _clean),
    "cancelling": (_start, _cancelling),
    "known-to-one": (_start, _known_to_one),
    "aside": (_start, _aside),
    "fading": (_start, _fading),
    "half-known": (_start, _half_known),
    "decor": (_start, _decor),
}
GRAPHS = {"ring": ring(7), "singular-ring": ring(6), "star": star(6), "bipartite": bipartite(6)}


def traces(step: str, graph: Graph) -> AlgorithmTrace:
    return trace(*STEPS[step], graph=graph, rounds=3, noise_multiplier=1.0)


def by_whole_views(of: AlgorithmTrace, name: str) -> list[JointSensitivity]:
    """Every pair of adversary and victim, each from the adversary's whole view."""
    parts, first = [(of.start, 0, 1)], 1
    for one, count in of.rounds:
        parts.append((one, first, count))
        first += count
    parts = [part for part in parts if part[0].has_contributions]
    found = []
    for who, victims in candidates(of, name):
        views = [one.view(who) for one, _, _ in parts]
        for victim in victims:
            releases, reasons = [], []
            for view, (one, start, count) in zip(views, parts, strict=True):
                for s in one.sensitivities_in(view, who, victim, round=start):
                    releases.append(Release(s.mu, RATE, count, s.contributions, start))
                    reasons.append((s.mu, s.because))
            heuristic = any(one.blames for one, _, _ in parts)
            status = Status.HEURISTIC if heuristic else Status.PROVEN
            if any(math.isinf(mu) for mu, _ in reasons):
                status = Status.NO_PROTECTION
            because = max(reasons)[1]
            found.append(
                JointSensitivity(
                    who, victim, tuple(releases), status, because, noise_multiplier=1.0
                )
            )
    return found


@functools.cache
def pairs_of(step: str, graph: str, name: str) -> list[JointSensitivity]:
    """The same of a step on a graph, which several tests compare with."""
    return by_whole_views(traces(step, GRAPHS[graph]), name)


def same(one: JointSensitivity, other: JointSensitivity) -> bool:
    mine = [r.joint_sensitivity for r in one.releases]
    theirs = [r.joint_sensitivity for r in other.releases]
    assert mine == pytest.approx(theirs, abs=1e-9)
    assert [r[1:] for r in one.releases] == [r[1:] for r in other.releases]
    return one._replace(releases=()) == other._replace(releases=())


def on_graphs(steps: Iterable[str]) -> list[ParameterSet]:
    """Every step on every graph; the quick half has each step and each graph at least once."""
    return [
        pytest.param(step, graph, marks=[pytest.mark.slow] if (i + k) % 2 else [])
        for i, step in enumerate(steps)
        for k, graph in enumerate(GRAPHS)
    ]


@pytest.mark.some_quick(7)
@pytest.mark.parametrize(("step", "graph"), on_graphs(STEPS))
def test_the_worst_pair_is_the_worst_of_all_pairs_in_every_respect(step, graph):
    of = traces(step, GRAPHS[graph])
    for name, found in joint_sensitivities(of, NAMES, sampling_rate=RATE):
        assert same(found, worst(pairs_of(step, graph, name))), name


@pytest.mark.some_quick(4)
@pytest.mark.parametrize(
    ("step", "graph"), on_graphs(["published", "step-then-mix", "known-to-one", "aside", "fading"])
)
def test_every_victim_is_given_its_own_worst(step, graph):
    of = traces(step, GRAPHS[graph])
    for name, found in joint_sensitivities_by_victim(of, NAMES, sampling_rate=RATE):
        pairs = pairs_of(step, graph, name)
        victims = sorted({e.victim for e in pairs})
        assert [e.victim for e in found] == victims
        for sensitivity in found:
            assert same(sensitivity, worst([e for e in pairs if e.victim == sensitivity.victim])), (
                name
            )


def torus(side: int) -> Graph:
    """Five hidden messages do not determine the others: W leaves eight directions open."""
    links = nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side, periodic=True))
    adjacency = nx.to_numpy_array(links, nodelist=range(side**2)) != 0
    return Graph(name="torus", weights=mixing_weights("torus", adjacency, scheme="metropolis"))


@pytest.mark.some_quick(1)
@pytest.mark.parametrize("step", ["published", "step-then-mix", "half-known"])
def test_a_neighbour_who_cannot_tell_all_messages_is_given_its_exact_figures(step):
    of = traces(step, torus(5))
    views = LocalViews(of.rounds[0][0])
    assert all(views.of_adversary(neighbour(k)).shared.undetermined for k in range(25))
    ((_, found),) = joint_sensitivities_by_victim(of, ["neighbour"], sampling_rate=RATE)
    pairs = by_whole_views(of, "neighbour")
    for sensitivity in found:
        expected = worst([e for e in pairs if e.victim == sensitivity.victim])
        assert sensitivity.largest == pytest.approx(expected.largest, abs=1e-9)
    ((_, top),) = joint_sensitivities(of, ["neighbour"], sampling_rate=RATE)
    assert top.largest == pytest.approx(max(e.largest for e in pairs), abs=1e-9)


@pytest.mark.parametrize("step", ["published", "step-then-mix", "half-known"])
def test_what_an_adversary_sees_lies_between_less_and_more(step):
    of = traces(step, torus(5))
    views = LocalViews(of.rounds[0][0])
    apart = 0
    for k in range(0, 25, 6):
        less, more = views.bracket(neighbour(k))
        exact = views.of_adversary(neighbour(k))
        for v in set(range(25)) - {k}:
            low, mid, high = (o.sensitivities(v)[0].mu for o in (less, exact, more))
            assert low - 1e-9 <= mid <= high + 1e-9
            apart += low < high - 1e-6
    assert apart > 50  # far victims are what the bounds are not tight for


def test_a_named_victim_is_asked_about_alone():
    of = traces("published", star(5))
    for victim in (0, 3):
        ((_, found),) = joint_sensitivities(of, ["neighbour"], sampling_rate=RATE, victim=victim)
        pairs = [e for e in by_whole_views(of, "neighbour") if e.victim == victim]
        assert same(found, worst(pairs))


def test_members_of_a_coalition_are_left_out():
    ((_, found),) = joint_sensitivities_by_victim(
        traces("repaired", ring(5)), ["coalition:1,3"], sampling_rate=RATE
    )
    assert [e.victim for e in found] == [0, 2, 4]


def test_the_star_shows_its_hub_and_its_leaves():
    ((_, found),) = joint_sensitivities_by_victim(
        traces("repaired", star(10)), ["neighbour"], sampling_rate=RATE
    )
    assert [round(e.largest**2, 9) for e in found] == [10.0] + [2.0] * 9


def test_encrypted_links_leave_every_victim_the_end_states():
    of = traces("step-then-mix", ring(30))
    ((_, clear),) = joint_sensitivities_by_victim(of, ["eavesdropper"], sampling_rate=RATE)
    ((_, sealed),) = joint_sensitivities_by_victim(
        of, ["eavesdropper"], sampling_rate=RATE, encrypted=True
    )
    assert [e.largest**2 for e in clear] == pytest.approx([1.0] * 30)
    assert [e.largest**2 for e in sealed] == pytest.approx([14 / 15] * 30)
    assert {e.adversary.name for e in sealed} == {"eavesdropper"}


def test_single_messages_are_found_for_every_victim():
    of = traces("published", bipartite(6))
    ((_, found),) = joint_sensitivities_by_victim(of, ["single-message"], sampling_rate=RATE)
    assert [e.largest for e in found] == [of.rounds[0][0].single_message(v)[0] for v in range(6)]
    assert {e.adversary.sees for e in found} == {Sees.ONE_MESSAGE}


def test_an_adversary_without_a_victim_is_refused():
    with pytest.raises(UnsupportedView, match="no victim among 1 agents"):
        joint_sensitivities_by_victim(
            traces("repaired", ring(1)), ["neighbour"], sampling_rate=RATE
        )


def test_what_cancels_is_named_for_every_victim():
    ((_, found),) = joint_sensitivities_by_victim(
        traces("cancelling", ring(5)), ["eavesdropper"], sampling_rate=RATE
    )
    assert all(math.isinf(e.largest) for e in found)
    for e in found:
        assert f"first of agent {e.victim} to" in e.because
