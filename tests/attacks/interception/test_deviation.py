"""A neighbour that deviates: what it sends, what it gets back, and what the proof says of it."""

import math
from dataclasses import replace

import pytest
import torch

from overhear.attacks.interception.estimate import intercept
from overhear.attacks.interception.names import Scenario
from overhear.attacks.interception.replay import DeviatingEngine, ReplayedRun, replay, trace_of
from overhear.attacks.inversion.crafted import craft
from overhear.attacks.problem.observation import Observation, sent_gradients
from overhear.attacks.scoring.reconstruction_bound import declared_mu, lineup_bound, proven_mu
from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms import ALGORITHMS, Form, bind, dp_cga
from overhear.training.algorithms.algorithm import Clip
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.transcript import Transcript
from tests.attacks.interception.replays import CLIP, planted, shown, trial

ACTIVE = "active-neighbour:0"
WITH_CROSS_GRADIENTS = [
    n for n, of in ALGORITHMS.items() if "cross-gradient" in of.single_gradients
]


def crafted(one: ReplayedRun, *, size: float = 1.0) -> dict[int, torch.Tensor]:
    made = torch.Generator().manual_seed(5)
    flat = torch.randn(sum(p.numel() for p in one.setting.model.parameters()), generator=made)
    return {one.round: size * flat.double()}


@pytest.mark.parametrize("name", WITH_CROSS_GRADIENTS)
@pytest.mark.parametrize("scenario", [Scenario.CROSS_GRADIENT, Scenario.VIEW])
def test_the_victims_gradient_comes_back_at_the_crafted_model(name, scenario):
    one, batch = trial(name, adversary=ACTIVE), planted(3)
    sent = crafted(one)
    seen = intercept(replay(one, batch, crafted=sent), scenario=scenario).observation
    assert seen is not None
    at = [k for k, p in enumerate(seen.points) if torch.equal(p[0], sent[one.round])]
    assert len(at) == 1
    torch.testing.assert_close(seen.gradient, shown(one, seen, batch), rtol=1e-7, atol=1e-9)


def _played(name: str, *, model: torch.Tensor | None) -> tuple[Transcript, Recorded]:
    """The first round of a run, in which agent 0 deviates if there is a model to send."""
    one, transcript, recorded = trial(name), Transcript(), Recorded()
    bound = bind(
        ALGORITHMS[name], one.settings, form=one.form, learning_rate=0.2, clip_norm=CLIP,
        noise_std=0.1, batch_size=4.5, graph=one.setting.graph, rounds=5, records=9.0,
    )  # fmt: skip
    how = {"randomness": SecretRandomness(7), "taps": [transcript]}
    engine = (
        Engine(one.setting, bound, **how)
        if model is None
        else DeviatingEngine(one.setting, bound, agent=0, crafted={1: model}, **how)
    )
    engine.start()
    transcript.clear()
    engine.advance(recorded=recorded)
    return transcript, recorded


@pytest.mark.parametrize("name", WITH_CROSS_GRADIENTS)
def test_what_is_not_computed_on_the_crafted_model_stays_as_it_was(name):
    """All models that are sent but its own, and all gradients but those others take on it."""
    model = crafted(trial(name))[3]
    (before, was), (after, now) = _played(name, model=None), _played(name, model=model)
    first, second = (list(of.of(round=1)) for of in (before, after))
    assert torch.equal(first[0].rows[1:], second[0].rows[1:])
    assert torch.equal(second[0].rows[0], model)
    receivers, senders = trial(name).setting.graph.receivers, trial(name).setting.graph.senders
    changed = (was.contributions[0] - now.contributions[0]).norm(dim=1) > 1e-9
    expected = torch.tensor((senders == 0) & (receivers != 0))
    assert torch.equal(changed, expected)


@pytest.mark.parametrize("name", WITH_CROSS_GRADIENTS)
@pytest.mark.parametrize("size", [0.0, 1.0, 1e6])
def test_no_model_draws_out_more_than_the_proof_allows(name, size):
    """The noise of what comes back is that of the proof, and its gradient is clipped, anywhere."""
    one = trial(name, adversary=ACTIVE, noise_std=2 * CLIP)
    traces, sent = trace_of(one), crafted(one, size=size)
    seen = intercept(replay(one, planted(), traces=traces, crafted=sent), scenario=Scenario.VIEW)
    assert seen.observation is not None
    proven = proven_mu(one, traces)
    assert 0 < declared_mu(seen.observation) <= proven * (1 + 1e-9)
    assert proven == pytest.approx(proven_mu(replace(one, adversary="neighbour:0"), traces))
    left = shown(one, seen.observation, planted())
    assert float(left.norm(dim=1).max()) <= CLIP * (1 + 1e-9)


def test_nothing_is_proven_of_a_form_whose_figure_is_heuristic():
    one = trial("dpdl", adversary=ACTIVE, noise_std=CLIP, form=Form.PUBLISHED)
    assert proven_mu(one, trace_of(one)) == math.inf


def test_a_clipped_mean_is_a_crafted_gradient_too():
    settings = dp_cga.Settings(clip=Clip.BATCH)
    one, batch = trial("dp-cga", adversary=ACTIVE, settings=settings), planted(2)
    seen = intercept(replay(one, batch, crafted=crafted(one)), scenario=Scenario.VIEW).observation
    assert seen is not None
    torch.testing.assert_close(seen.gradient, shown(one, seen, batch), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n not in WITH_CROSS_GRADIENTS])
def test_without_cross_gradients_nobody_has_anything_to_gain(name):
    with pytest.raises(ValueError, match="no agent takes a gradient on a model that another"):
        trial(name, adversary=ACTIVE)


def test_figures_are_of_those_who_follow_the_protocol():
    with pytest.raises(ValueError, match="deviates from the protocol"):
        parse_adversary(ACTIVE, 5)
    assert parse_adversary(ACTIVE, 5, deviating=True).deviates


@pytest.mark.parametrize(("share", "exceeded"), [(1.0, False), (0.2, True)])
def test_ranks_on_a_crafted_model_stay_under_the_bound_of_its_noise(share, exceeded):
    """Of 300 records, each the likeliest of 10 or not; false alarm .1 %.

    The crafted model is that of an mlp, the noise that of mu = 1 times a share.
    """
    made = torch.Generator().manual_seed(1)
    model = trial("dpdl").setting.model
    [imprint] = craft(
        model, input_shape=(1, 4, 4), classes=3, bounds=(torch.tensor(0.0), torch.tensor(1.0)),
        records=1, generator=made,
    )  # fmt: skip
    seen = Observation.single(
        gradient=torch.zeros(len(imprint.parameters)).double(), model=imprint.parameters,
        noise_std=1.0, clip_norm=1.0, records=1,
    )  # fmt: skip
    model, ranks = model.double(), []
    pool = torch.rand(300, 1, 4, 4, generator=made, dtype=torch.float64)
    labels = torch.randint(3, (300,), generator=made)
    sent = torch.cat(
        [
            sent_gradients(seen, model, inputs=x[None], targets=y[None]).detach()
            for x, y in zip(pool, labels, strict=True)
        ]
    )
    for victim in range(300):
        noise = torch.randn(sent.shape[1], generator=made, dtype=torch.float64)
        others = torch.randperm(300, generator=made)
        lineup = torch.cat([torch.tensor([victim]), others[others != victim][:9]])
        distances = (sent[lineup] - sent[victim] - share * noise).square().sum(dim=1)
        ranks.append(1 + int((distances[1:] < distances[0]).sum()))
    assert lineup_bound(mu=1.0, size=10, ranks=ranks).limit.exceeded == exceeded


@pytest.mark.parametrize("name", WITH_CROSS_GRADIENTS)
def test_a_model_that_overflows_on_some_records_does_not_stop_the_victim(name):
    """Whether the round goes on would tell, without noise, whether such a record is in the batch.

    The crafted model overflows for records with a bright first pixel, and for no others.
    """
    one = trial(name, adversary=ACTIVE, noise_std=2 * CLIP)
    flat = torch.zeros(sum(p.numel() for p in one.setting.model.parameters())).double()
    flat[0] = 1e200  # first hidden unit, first pixel
    flat[16 * 16] = -0.5e200  # its bias
    flat[16 * 16 + 16] = 1e200  # the first class
    dark, bright = planted(1), planted(1)
    dark.inputs[:] = bright.inputs[:] = 0.2
    bright.inputs[0, 0, 0, 0] = 0.9
    for batch in (dark, bright):
        played = replay(one, batch, crafted={one.round: flat})
        [sent] = [m for m in played.transcript.of(round=one.round) if m.kind == "cross-gradient"]
        assert float(sent.rows.abs().max()) < 10 * CLIP  # a clipped sum and its noise, over 4.5
