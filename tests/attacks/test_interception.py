"""What an onlooker computes from messages is the gradient that was sent."""

import math
from dataclasses import replace

import pytest
import torch

from overhear.attacks.evaluation import SCENARIOS, Protection, Trial, conclusion, observe_round
from overhear.attacks.interception import Scenario
from overhear.attacks.observation import sent_gradient
from overhear.training.algorithms import ALGORITHMS, Form, dp_dpsgd, dpdl
from overhear.training.algorithms.dp_dpsgd import Order
from overhear.training.engine import Setting
from overhear.training.models import build_model
from overhear.training.tensor_round import Examples
from overhear.training.topologies import ring, star

CASES = [(name, scenario) for name, every in SCENARIOS.items() for scenario in every]


def trial(name: str, *, graph=None, form=Form.REPAIRED, round=3, noise_std=0.0, clip=0.05) -> Trial:
    graph = graph or ring(5)
    rng = torch.Generator().manual_seed(3)
    shards = [
        Examples(torch.rand(9, 1, 4, 4, generator=rng), torch.randint(3, (9,), generator=rng))
        for _ in range(graph.agents)
    ]
    settings = (
        dpdl.Settings(alpha=0.7, momentum=0.9) if name == "dpdl" else ALGORITHMS[name].settings()
    )
    return Trial(
        setting=Setting(
            graph=graph,
            model=build_model("mlp", input_shape=(1, 4, 4), classes=3, generator=rng),
            shards=shards,
            sampling_rate=0.5,
            device=torch.device("cpu"),
            dtype=torch.float64,
        ),
        algorithm=name,
        form=form,
        settings=settings,
        learning_rate=0.2,
        clip_norm=clip,
        noise_std=noise_std,
        batch_size=4.5,
        snapshot=None,
        snapshot_round=0,
        round=round,
        rounds=4,
        victim=1,
        model_owner=0,
    )


def planted(records: int = 1) -> Examples:
    rng = torch.Generator().manual_seed(8)
    return Examples(torch.rand(records, 1, 4, 4, generator=rng), torch.arange(records) % 3)


@pytest.mark.parametrize(("name", "scenario"), CASES)
@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("round", [1, 3])
def test_without_noise_the_planted_gradient_comes_back(name, scenario, records, round):
    t = trial(name, round=round)
    if name == "dsgd":
        t = t.under(Protection.NONE)
    batch = planted(records)
    seen = observe_round(t, batch, scenario=scenario)
    expected = sent_gradient(
        t.setting.model.double(),
        seen.points[0, 0],
        inputs=batch.inputs.double(),
        targets=batch.targets,
        clip_norm=t.clip_norm,
    )
    torch.testing.assert_close(seen.gradient[0], expected.detach(), rtol=1e-8, atol=1e-10)
    assert seen.noise_std == 0.0


@pytest.mark.parametrize("round", [1, 2, 4])
def test_the_update_of_step_then_mix_is_the_planted_gradient_too(round):
    t = replace(
        trial("dp-dpsgd", round=round), settings=dp_dpsgd.Settings(order=Order.STEP_THEN_MIX)
    )
    seen = observe_round(t, planted(), scenario=Scenario.UPDATE)
    expected = sent_gradient(
        t.setting.model.double(),
        seen.points[0, 0],
        inputs=planted().inputs.double(),
        targets=planted().targets,
        clip_norm=t.clip_norm,
    )
    torch.testing.assert_close(seen.gradient[0], expected.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("form", list(Form))
def test_the_momentum_on_an_irregular_graph_gives_the_self_gradient(form):
    t = trial("dpdl", graph=star(5), form=form)
    seen = observe_round(t, planted(), scenario=Scenario.MOMENTUM)
    again = sent_gradient(
        t.setting.model.double(),
        seen.points[0, 0],
        inputs=planted().inputs.double(),
        targets=planted().targets,
        clip_norm=t.clip_norm,
    )
    torch.testing.assert_close(seen.gradient[0], again.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("name", "scenario"), [c for c in CASES if c[0] != "dsgd"])
def test_the_error_has_the_declared_deviation(name, scenario):
    t = trial(name, noise_std=0.3)
    errors = []
    for _ in range(20):
        seen = observe_round(t, planted(), scenario=scenario)
        clean = sent_gradient(
            t.setting.model.double(),
            seen.points[0, 0],
            inputs=planted().inputs.double(),
            targets=planted().targets,
            clip_norm=t.clip_norm,
        )
        errors.append((seen.gradient[0] - clean.detach()) / seen.noise_std)
    z = torch.cat(errors)
    # n standard normals: variance within 5 standard errors, false alarm 6e-7
    assert abs(float(z.var()) - 1) < 5 * math.sqrt(2 / z.numel())


def test_published_momentum_is_less_noisy_than_any_message():
    published = observe_round(
        trial("dpdl", form=Form.PUBLISHED, noise_std=0.3), planted(), scenario=Scenario.MOMENTUM
    )
    repaired = observe_round(trial("dpdl", noise_std=0.3), planted(), scenario=Scenario.MOMENTUM)
    assert published.noise_std < 0.6 * repaired.noise_std
    assert repaired.noise_std == 0.3


def test_a_trial_names_a_link_that_exists():
    with pytest.raises(ValueError, match="neighbour"):
        replace(trial("dpdl", graph=star(5)), model_owner=3)


def test_an_attack_that_fails_undefended_says_nothing_about_the_defence():
    from overhear.attacks.evaluation import BLIND, Row
    from overhear.attacks.metrics import Scores

    def row(name, mse):
        scores = Scores(mse=(mse,), psnr=(1.0,), ssim=(0.0,), order=(0,))
        return Row(name=name, scores=scores, images=torch.zeros(1, 1, 2, 2), stages=("",))

    def rows(undefended, defended):
        return [
            row(BLIND, 0.1),
            row(Protection.NONE, undefended),
            row(Protection.CLIPPING, undefended),
            row(Protection.DEFENDED, defended),
        ]

    assert "says nothing about the defence" in conclusion(rows(0.2, 0.2))
    assert conclusion(rows(0.001, 0.1)).startswith("No leak shown")
    assert conclusion(rows(0.001, 0.05)).startswith("A leak is shown")


def test_a_gain_within_the_spread_of_the_images_is_no_leak_shown():
    from overhear.attacks.evaluation import BLIND, Row
    from overhear.attacks.metrics import Scores

    def row(name, mse):
        n = len(mse)
        scores = Scores(mse=mse, psnr=(1.0,) * n, ssim=(0.0,) * n, order=tuple(range(n)))
        return Row(name=name, scores=scores, images=torch.zeros(n, 1, 2, 2), stages=("",) * n)

    def say(defended):
        blind, clean = (0.1, 0.1, 0.1, 0.1), (0.001, 0.001, 0.001, 0.001)
        rows = [row(BLIND, blind), row(Protection.NONE, clean), row(Protection.CLIPPING, clean)]
        return conclusion([*rows, row(Protection.DEFENDED, defended)])

    assert "beyond chance" in say((0.05, 0.13, 0.12, 0.09))
    assert say((0.05, 0.06, 0.05, 0.04)).startswith("A leak is shown")
