"""Local steps and secret cohorts on tensors, and one record's influence by exact enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from overhear.privacy import Event, ParticipationPattern, composed_epsilon
from overhear.privacy.participation import Draws, Reach, poisson
from overhear.testing import check_algorithm
from overhear.training import (
    ALGORITHMS,
    Engine,
    Examples,
    Recorded,
    SecretRandomness,
    Setting,
    bind,
    build_graph,
)
from overhear.training.algorithms.dp_fedavg import Cohorts, LocalData
from overhear.training.engine.recording import WholeCall

FEDAVG = ALGORITHMS["dp-fedavg"]


def engine(*, agents=6, noise=0.0, clip=1.0, root=3, rate=0.4, **settings):
    rng = torch.Generator().manual_seed(1)
    net = nn.Linear(3, 2)
    for parameter in net.parameters():
        parameter.data.normal_(generator=rng)
    shards = [
        Examples(torch.randn(n, 3, generator=rng), torch.randint(2, (n,), generator=rng))
        for n in range(agents)  # the first one holds nothing
    ]
    setting = Setting(
        graph=build_graph("server", agents), model=net, shards=shards, sampling_rate=rate,
        device=torch.device("cpu"), dtype=torch.float64,
    )  # fmt: skip
    bound = bind(
        FEDAVG, FEDAVG.settings(**settings), learning_rate=0.3, clip_norm=clip, noise_std=noise,
        batch_size=2.0, graph=setting.graph, rounds=50,
    )  # fmt: skip
    return Engine(setting, bound, randomness=SecretRandomness(root))


def plain_steps(start, examples, *, steps, rate):
    """Gradient descent on the mean cross-entropy, with autograd."""
    x = start.clone().requires_grad_()
    for _ in range(steps):
        W, b = x[:6].view(2, 3), x[6:]
        if not len(examples.targets):
            break
        logits = examples.inputs.double() @ W.T + b
        (g,) = torch.autograd.grad(nn.functional.cross_entropy(logits, examples.targets), x)
        x = (x - rate * g).detach().requires_grad_()
    return x.detach() - start


@pytest.mark.parametrize("clip", [None, 0.05])
def test_without_noise_a_round_is_federated_averaging(clip):
    run = engine(clip=clip, cohort_rate=1.0, local_steps=4)
    run.start()
    before, recorded = run.models()[0], Recorded()
    run.advance(recorded=recorded)
    changes = [plain_steps(before, s, steps=4, rate=0.3) for s in run.setting.shards]
    if clip is not None:
        changes = [c * min(1.0, clip / max(float(c.norm()), 1e-300)) for c in changes]
    mean = torch.stack(changes).mean(0)
    assert torch.allclose(run.models(), before + mean, atol=1e-12)
    assert recorded.calls == [WholeCall("local_update"), WholeCall("average")]
    assert float(recorded.contributions[0][0].norm()) == 0.0  # of no data


@pytest.mark.parametrize("data", list(LocalData))
def test_what_runs_is_what_is_traced(data):
    check_algorithm(FEDAVG, graph="server:4", settings={"local_data": data, "cohort_rate": 0.5})


@pytest.mark.parametrize(
    "scheme",
    [
        Cohorts.SHUFFLED,
        pytest.param(Cohorts.FIXED, marks=pytest.mark.slow),
        pytest.param(Cohorts.CYCLIC, marks=pytest.mark.slow),
    ],
)
def test_what_runs_is_what_is_traced_however_cohorts_are_drawn(scheme):
    asked = {"cohort": scheme, "cohort_rate": 0.5, "local_data": LocalData.ONE}
    check_algorithm(FEDAVG, graph="server:4", settings=asked)


@pytest.mark.parametrize("scheme", list(Cohorts))
def test_a_run_that_goes_on_from_a_snapshot_draws_the_same_cohorts(scheme):
    asked = {"noise": 1.0, "cohort_rate": 0.5, "cohort": scheme}
    whole, parted = engine(**asked), engine(**asked)
    for _ in range(4):
        whole.advance()
    for _ in range(2):
        parted.advance()
    again = engine(**asked)
    again.restore(parted.snapshot(), round=2)
    for _ in range(2):
        again.advance()
    assert torch.equal(whole.models(), again.models())


def test_coins_are_thrown_at_their_rate_and_apart():
    # n = 20,000 coins at 0.3; six standard deviations: a false alarm once in 5e8.
    source = SecretRandomness(7)
    taking = torch.cat(
        [source.coins(round=t, call=0, rows=range(20), rate=0.3).T for t in range(1000)]
    ).double()
    limit = 6 * math.sqrt(0.3 * 0.7 / taking.numel())
    assert abs(float(taking.mean()) - 0.3) < limit
    together = (taking[:, :10] * taking[:, 10:]).mean()
    assert abs(float(together) - 0.09) < 6 * math.sqrt(0.09 * 0.91 / (taking.numel() / 2))
    later = (taking[:-1] * taking[1:]).mean()
    assert abs(float(later) - 0.09) < 6 * math.sqrt(0.09 * 0.91 / taking.numel() * 2)


@pytest.mark.parametrize("scheme", list(Cohorts))
def test_the_sum_of_a_cohort_is_divided_by_its_expected_size(scheme):
    run = engine(cohort_rate=0.5, local_steps=1, clip=None, cohort=scheme)
    run.start()
    recorded = Recorded()
    before = run.models()[0]
    run.advance(recorded=recorded)
    taking = recorded.cohorts[0].double()
    assert scheme is Cohorts.POISSON or float(taking.sum()) == 3.0
    expected = (recorded.contributions[0] * taking).sum(0) / (0.5 * 6)
    assert torch.allclose(run.models()[0], before + expected, atol=1e-12)


def changes(values, q, *, steps, learning_rate, clip):
    """(weights, changes) of 1-D steps towards the mean of the values drawn, over all draws."""
    weights, found = [], []
    n = len(values)
    for drawn in itertools.product(itertools.product((0, 1), repeat=n), repeat=steps):
        x, p = 0.0, 1.0
        for mask in drawn:
            held = [v for v, m in zip(values, mask, strict=True) if m]
            p *= q ** sum(mask) * (1 - q) ** (n - sum(mask))
            x -= learning_rate * (x - sum(held) / len(held)) if held else 0.0
        weights.append(p)
        found.append(max(-clip, min(clip, x)))
    return np.array(weights), np.array(found)


def divergence(one, other, *, std, epsilon):
    """Hockey-stick divergence of two mixtures of normals, on a grid of width std / 200."""
    z = np.arange(-12 * std, 12 * std, std / 200)
    p, q = (norm.pdf(z[:, None], c, std) @ w for w, c in (one, other))
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * std / 200)


OTHERS = (-9.0,) * 4  # pull to one side of the ball, and the record far to the other
NEIGHBOURS = {
    "add-or-remove-one": [((*OTHERS, 1e6), OTHERS), ((2.0, -1.0, 0.5), (2.0, -1.0))],
    "replace-one": [((*OTHERS, 1e6), (*OTHERS, -9.0)), ((5.0, 1.0, -7.0), (5.0, 1.0, 9.0))],
}


@pytest.mark.parametrize("adjacency", list(NEIGHBOURS))
@pytest.mark.parametrize("delta", [1e-3, 0.03])
def test_no_pair_of_toy_data_sets_exceeds_the_figure_of_local_steps(adjacency, delta):
    q, std, steps = 0.3, 1.5, 2
    rate = Draws((None,) * steps).rate(q)
    assert rate == pytest.approx(1 - 0.7**2)
    added = adjacency == "add-or-remove-one"
    event = Event(std / 2.0, poisson(rate)) if added else Event(std, poisson(rate), Reach.BALL)
    epsilon = composed_epsilon({event: 1}, delta=delta, adjacency=adjacency)
    worst = 0.0
    for one, other in NEIGHBOURS[adjacency]:
        made = [changes(of, q, steps=steps, learning_rate=0.5, clip=1.0) for of in (one, other)]
        for pair in (made, made[::-1]):
            worst = max(worst, divergence(*pair, std=std, epsilon=epsilon))
    assert 0.2 * delta < worst <= delta * (1 + 1e-6)


def test_the_rate_of_one_batch_would_understate_two_local_steps():
    q, std, delta = 0.3, 1.5, 0.03
    wrong = composed_epsilon({Event(std / 2.0, poisson(q)): 1}, delta=delta)
    made = [changes(of, q, steps=2, learning_rate=0.5, clip=1.0)
            for of in NEIGHBOURS["add-or-remove-one"][0]]  # fmt: skip
    assert divergence(*made, std=std, epsilon=wrong) > 1.3 * delta


def test_participation_in_any_of_several_batches():
    assert Draws(()).rate(0.1) == 1.0
    assert Draws((None,)).rate(0.1) == 0.1
    assert Draws((None, 1.0)).rate(0.1) == 1.0
    assert Draws((0.5, 0.5, None)).rate(0.0) == pytest.approx(0.75)
    assert isinstance(poisson(0.5), ParticipationPattern)
