"""What is left of an adversary's view once all that is known is taken off, and how it is scored."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from overhear.attacks.audit.canaries import (
    CanaryTask,
    Directions,
    PlantedGradients,
    with_codes_behind,
)
from overhear.attacks.audit.canary_noise import log_mixture
from overhear.attacks.audit.observed_rows import Projected, shares_noise
from overhear.attacks.audit.scores import BatchRates, Scorer
from overhear.attacks.checks.recording import WatchedRound
from overhear.privacy.guarantee import EAVESDROPPER, FINAL_MODELS, parse_adversary
from overhear.training.algorithms import ALGORITHMS, Form
from overhear.training.engine.engine import Engine
from overhear.training.engine.recording import Recorded
from overhear.training.engine.transcript import Transcript
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace
from tests.training import contract

WHOLE = {"dp-fedavg"}  # whole vectors of an agent, in which no record can be planted
PRIVATE = sorted({name for name, known in ALGORITHMS.items() if known.private} - WHOLE)
COUNT = 3
BATCH_CLIPPED = ("dp-cga",)


def _happened(name: str, form: Form, *, rounds: int = 2, noise_std: float = contract.NOISE):
    """The last of a few rounds on a ring of five where every agent holds canaries."""
    graph = ring(5)
    bound = contract.bound_to(name, graph, form=form, noise_std=noise_std)
    base = contract.setting(graph, min_max=bound.blocks == 2)
    count = 1 if name in BATCH_CLIPPED else COUNT
    objective = base.task or base.model
    dimension = 23 if base.task is None else base.task.dimensions[0]
    ways = Directions(count, dimension, generator=np.random.default_rng(1))
    gradients = PlantedGradients(
        CanaryTask(objective, directions=ways), clip_norm=contract.CLIP,
        generator=np.random.default_rng(2), device=base.device, dtype=base.dtype,
    )  # fmt: skip
    codes = dict.fromkeys(range(len(base.shards)), torch.arange(count) * 2 + 1)
    shards = with_codes_behind(base.shards, codes)
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=40, noise_multiplier=bound.noise_multiplier
    )
    parts = [traces.start, *(t for t, n in traces.rounds for _ in range(n))][: rounds + 1]
    transcript = Transcript()
    setting = replace(base, shards=shards)
    engine = Engine(setting, bound, taps=[transcript], gradients=gradients)
    found, before = [], {}
    for number, part in enumerate(parts):
        recorded = Recorded()
        transcript.clear()
        gradients.calls.clear()
        engine.advance(recorded=recorded) if number else engine.start(recorded=recorded)
        after = engine.snapshot()
        found.append(
            WatchedRound(
                number=number,
                trace=part,
                messages=transcript.of(round=number),
                before=before,
                after=after,
                recorded=recorded,
                calls=list(gradients.calls),
            )
        )
        before = after
    return objective, ways, [one for one in found if one.trace.has_contributions]


def _scorer(objective, ways: Directions, adversary: str, *, host: int = 2, **how) -> Scorer:
    who = parse_adversary(adversary, 5)
    return Scorer(
        objective, directions=ways, adversaries={adversary: {host: who}}, batches=BatchRates(0.5),
        replace=False, **how,
    )  # fmt: skip


@pytest.mark.some_quick(6)
@pytest.mark.parametrize("adversary", ["eavesdropper", "neighbour:1", "final-models"])
@pytest.mark.parametrize("name", PRIVATE)
def test_what_is_left_of_a_view_is_its_unknown_noise(name, adversary):
    objective, ways, rounds = _happened(name, Form.REPAIRED)
    scorer = _scorer(objective, ways, adversary)
    who = parse_adversary(adversary, 5)
    for happened in rounds:
        planted = scorer.planted(happened)
        rows, left = scorer._less_known(happened, who, planted, Projected(ways.project))
        blocks = [g.block for g in happened.trace.groups if type(g).__name__ == "NoiseSources"]
        z = np.concatenate(
            [
                ways.project(values).numpy() if block == 0 else np.zeros((len(values), ways.count))
                for values, block in zip(happened.recorded.noise, blocks, strict=True)
            ]
        )
        columns = np.concatenate(
            [
                np.arange(g.start, g.start + g.size)
                for g in happened.trace.groups
                if type(g).__name__ == "NoiseSources"
            ]
        )
        keep = np.isin(columns, happened.trace.unknown_noise(who))
        expected = rows.rows[:, columns[keep]] @ z[keep]
        np.testing.assert_allclose(left, expected, atol=1e-9)


def test_a_canary_adds_its_information_to_the_score():
    """Without noise in what is left, s is v with the canary and 0 without."""
    objective, ways, rounds = _happened("dpdl", Form.REPAIRED)
    scorer = _scorer(objective, ways, "eavesdropper")
    happened = rounds[-1]
    planted = scorer.planted(happened)
    who = parse_adversary("eavesdropper", 5)
    rows, left = scorer._less_known(happened, who, planted, Projected(ways.project))
    found, _ = scorer._of_host(happened, rows, np.zeros_like(left), planted, 2)
    v = 3 * (contract.CLIP / contract.NOISE) ** 2  # three cross-gradients, noise of their own
    there = planted.part[[i for i, p in enumerate(planted.part) if p.any()]].any(axis=0)
    for j in range(COUNT):
        mine = happened.calls[0].present[2, j] != 0
        expected = math.log(0.5 + 0.5 * math.exp(v / 2 if mine else -v / 2))
        assert found[j] == pytest.approx(expected)
    assert there.any()


def test_a_leak_is_decided_without_error():
    """A neighbour of Whisper knows the noise of its link, and sees what is under it."""
    objective, ways, rounds = _happened("whisper", Form.REPAIRED, rounds=4)
    scorer = _scorer(objective, ways, "neighbour:1")
    present = np.zeros(COUNT, dtype=bool)
    for happened in rounds:
        scorer.add(happened)
        present |= happened.calls[0].present[2] != 0
    assert np.isposinf(scorer.scores["neighbour:1"][2]).tolist() == present.tolist()


def test_single_messages_are_scored_with_their_own_mu():
    objective, ways, rounds = _happened("dpdl", Form.REPAIRED)
    scorer = _scorer(objective, ways, "eavesdropper", linked="eavesdropper")
    for happened in rounds:
        scorer.add(happened)
    mu = round(contract.CLIP / contract.NOISE, 12)
    replies = {key: of for key, of in scorer.links.items() if key[0].startswith("cross-gradient")}
    assert len(replies) == 2
    assert all(of.rounds == {(mu, 0.5): 2} for of in replies.values())


def test_the_mixture_does_not_overflow():
    values = log_mixture(np.array([-1e4, 0.0, 1e4]), 0.25)
    assert values == pytest.approx([math.log(0.75), 0.0, 1e4 + math.log(0.25)])
    assert log_mixture(np.array([3.0]), 1.0) == pytest.approx([3.0])
    assert log_mixture(np.array([3.0]), 0.0) == pytest.approx([0.0])


@pytest.mark.parametrize(
    ("name", "who", "expected"),
    [
        ("dpdl", EAVESDROPPER, False),  # every cross-gradient has noise of its own
        ("cdp-dsgd", EAVESDROPPER, True),  # the server's noise is all agents'
        ("decor", EAVESDROPPER, True),  # noise that cancels between neighbours
        ("dp-dpsgd", FINAL_MODELS, False),  # the mixing of five is invertible
    ],
)
def test_scores_share_noise_where_a_source_is_in_several_views(name, who, expected):
    graph = ring(5)
    bound = contract.bound_to(name, graph)
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=5, noise_multiplier=bound.noise_multiplier
    )
    adversaries = {who.name: dict.fromkeys(range(5), who)}
    assert shares_noise(traces, adversaries) is expected


def test_one_host_shares_with_nobody():
    graph = ring(5)
    bound = contract.bound_to("cdp-dsgd", graph)
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=5, noise_multiplier=bound.noise_multiplier
    )
    assert not shares_noise(traces, {"eavesdropper": {0: EAVESDROPPER}})
