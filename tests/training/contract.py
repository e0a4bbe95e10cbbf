"""The contract of every algorithm, as checks that a sound step passes and a faulty one does not.

A check takes an algorithm with its numbers bound, or a run of it, and raises AssertionError with
the word for what is broken. `test_contract_faults.py` shows which fault each of them finds.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms import ALGORITHMS, Algorithm, Form, bind
from overhear.training.algorithms.algorithm import Bound
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.links import Links
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.setting import Setting
from overhear.training.engine.tensor_round import AllRounds, DrawBatch, Drawing, TensorRound
from overhear.training.engine.transcript import Message, Tap, Transcript
from overhear.training.gradients.gradients import PairGradients
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import ring
from overhear.training.models.tasks import ClassWeights
from overhear.training.step.values import Agents
from overhear.training.tracing.linear_forms import Contributions, Known, Messages, NoiseSources
from overhear.training.tracing.round_trace import RoundTrace
from overhear.training.tracing.trace import trace

CLIP, NOISE = 0.2, 0.4
EXACT = {"rtol": 1e-12, "atol": 1e-13}
_LOOKED_AT = 3  # the round of a run whose messages are compared with their rows


def setting(
    graph: Graph, *, records: int = 9, rate: float = 0.5, min_max: bool = False, apart: bool = False
) -> Setting:
    """A small network in double precision, and a few records for every agent, or of one class."""
    rng = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    for p in net.parameters():
        p.data.normal_(generator=rng)
    shards = [
        Examples(
            torch.randn(records, 4, generator=rng),
            torch.full((records,), i % 2) if apart else torch.randint(2, (records,), generator=rng),
        )
        for i in range(graph.agents)
    ]
    return Setting(
        graph=graph, model=net, shards=shards, sampling_rate=rate, device=torch.device("cpu"),
        dtype=torch.float64, task=ClassWeights(net, classes=2) if min_max else None,
    )  # fmt: skip


def summed_gradient(net: nn.Module, x: np.ndarray, shard: Examples) -> np.ndarray:
    """Gradient of the summed cross-entropy by autograd, in the order of the parameters."""
    flat = torch.tensor(x, requires_grad=True)
    parts, start = {}, 0
    for name, p in net.named_parameters():
        parts[name] = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    logits = functional_call(net, parts, (shard.inputs.double(),))
    (gradient,) = torch.autograd.grad(cross_entropy(logits, shard.targets, reduction="sum"), flat)
    return gradient.numpy()


def bound_to(
    algorithm: Algorithm | str,
    graph: Graph,
    *,
    form: Form = Form.REPAIRED,
    clip_norm: float | None = CLIP,
    noise_std: float = NOISE,
    rounds: int = 40,
    settings: object = None,
) -> Bound:
    """An algorithm with the numbers of the checks."""
    known = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm
    return bind(
        known, settings or known.settings(), form=form, learning_rate=0.3, clip_norm=clip_norm,
        noise_std=noise_std, batch_size=4.5, graph=graph, rounds=rounds, records=9,
    )  # fmt: skip


def started(
    bound: Bound,
    graph: Graph,
    *,
    rate: float = 0.5,
    randomness: SecretRandomness | None = None,
    taps: Sequence[Tap] = (),
) -> Engine:
    """A run at its start."""
    engine = Engine(
        setting(graph, rate=rate, min_max=bound.blocks == 2), bound,
        randomness=randomness or SecretRandomness(5), taps=taps,
    )  # fmt: skip
    engine.start()
    return engine


def bare_round(
    kind: type[TensorRound] = TensorRound, draw: DrawBatch = lambda *_: []
) -> TensorRound:
    """A first round of five agents with models of 23 zeros, outside of any run."""
    s = setting(ring(5))
    return kind(
        Links(s.graph, device=s.device, dtype=s.dtype),
        AllRounds(
            torch.zeros(23, dtype=torch.float64),
            sizes=(23,),
            gradients=PairGradients(s.model, "loop", dtype=torch.float64),
        ),
        index=1,
        drawing=Drawing(draw, lambda _: [], lambda: s.shards, lambda _: torch.ones(5, 1)),
        randomness=SecretRandomness(3),
    )


def traced(init, step, graph: Graph) -> RoundTrace:
    """The first round of a step on symbols."""
    return trace(init, step, graph=graph, rounds=5, noise_multiplier=1.0).rounds[0][0]


def joint(one: RoundTrace, adversary: str, victim: int = 0) -> float:
    """Mu of the one batch of a round."""
    who = parse_adversary(adversary, one.record.agents)
    (only,) = one.sensitivities(who, victim)
    return only.mu


def check_cost(one: RoundTrace, expected: float, *, adversary: str = "eavesdropper") -> None:
    """A round costs what the closed form says; where it is infinite, the message is named."""
    who = parse_adversary(adversary, one.record.agents)
    for found in one.sensitivities(who, 0):
        assert math.isclose(found.mu, expected, abs_tol=1e-9), f"mu {found.mu}: {found.because}"


def check_rows(
    bound: Bound,
    graph: Graph,
    *,
    of: Setting | None = None,
    watched: Callable[[Tap], Tap] = lambda tap: tap,
) -> None:
    """Every message and end state of a run equals its row over what the round drew and sent.

    `watched` puts something between the run and its transcript.
    """
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=5, noise_multiplier=bound.noise_multiplier
    )
    record = [one for one, count in traces.rounds for _ in range(count)][_LOOKED_AT - 1]
    transcript = Transcript()
    engine = Engine(
        of or setting(graph, min_max=bound.blocks == 2), bound, randomness=SecretRandomness(5),
        taps=[watched(transcript)],
    )  # fmt: skip
    engine.start()
    for _ in range(_LOOKED_AT):
        before, recorded = engine.snapshot(), Recorded()
        engine.advance(recorded=recorded)
    sent = transcript.of(round=engine.round)
    drawn = {
        Contributions: recorded.contributions,
        NoiseSources: recorded.noise,
        Known: recorded.known_of(record.groups, before.values()),
        Messages: [message.rows for message in sent],
    }
    for kind, held in drawn.items():
        counted = sum(isinstance(group, kind) for group in record.groups)
        assert counted == len(held), f"{len(held)} {kind.__name__} in the run, {counted} traced"
    _check_links(record.messages, sent)
    rest = {kind: iter(held) for kind, held in drawn.items()}
    columns = [next(rest[type(group)]) for group in record.groups]
    assert [len(column) for column in columns] == [group.size for group in record.groups]

    def check(what: str, rows, value: torch.Tensor) -> None:
        """Columns of another block have another width, and may not occur."""
        held = np.zeros(value.shape)
        for group, column in zip(record.groups, columns, strict=True):
            part = rows[:, group.start : group.start + group.size]
            if part.nnz:
                held += part @ column[: part.shape[1]].numpy()
        np.testing.assert_allclose(held, value.numpy(), **EXACT, err_msg=f"row of {what}")

    for group, message in zip(record.messages, sent, strict=True):
        check(f"message {group.kind}", group.rows, message.rows)
    ends = zip(record.record.end_state.items(), engine.snapshot().values(), strict=True)
    for (field, rows), value in ends:
        check(f"state {field}", rows, value)


def _check_links(traced: Sequence[Messages], sent: Sequence[Message]) -> None:
    for group, message in zip(traced, sent, strict=True):
        assert message.kind == group.kind
        assert message.senders.tolist() == group.senders.tolist(), f"senders of {group.kind}"
        assert message.links.tolist() == group.links.tolist(), f"links of {group.kind}"


def check_mean_is_kept(bound: Bound, graph: Graph) -> None:
    """Rounds without records and noise leave the mean of the models where it was."""
    engine = started(bound, graph, rate=0.0)
    rng = torch.Generator().manual_seed(1)
    apart = torch.randn(engine.models().shape, generator=rng, dtype=torch.float64)
    engine.restore(engine.snapshot() | {"x": apart}, round=0)
    for _ in range(3):
        engine.advance()
    assert not torch.allclose(engine.models(), apart), "nothing is mixed"
    _close(engine.models().mean(0), apart.mean(0), "mean of the models")


def check_tracker_keeps_the_sum(
    bound: Bound, graph: Graph, *, pairs: Sequence[tuple[str, str]]
) -> None:
    """After any round the mean of each tracker is the mean of what entered it."""
    engine = started(bound, graph)
    for _ in range(4):
        engine.advance()
        end = engine.snapshot()
        for tracker, entered in pairs:
            assert float(end[entered].abs().max()) > 1e-3, f"{entered} is empty"
            _close(end[tracker].mean(0), end[entered].mean(0), f"mean of {tracker}")


def check_noise(engine: Engine) -> None:
    """Every source is standard normal, and no two of them, nor two rounds, go together.

    n = 200 rounds times the first two to five coordinates of a source. Each statistic within 6 of
    its standard errors: of a variance of 400 normals false alarm 5e-8, of a correlation 5e-9; with
    at most 50 sources and 1,225 pairs all together below 1e-5.
    """
    draws = []
    for _ in range(200):
        recorded = Recorded()
        engine.advance(recorded=recorded)
        draws.append([z[:, :5].T for z in recorded.noise])  # (coordinates, sources) of each call
    for call in range(len(draws[0])):
        z = torch.stack([draw[call] for draw in draws])  # (200, coordinates, sources)
        flat = z.flatten(0, 1)
        n = len(flat)
        off = (flat.square().mean(0) - 1.0).abs()
        assert float(off.max()) < 6 * math.sqrt(2 / n), f"variance of source {int(off.argmax())}"
        pairs = (flat.T @ flat / n).fill_diagonal_(0.0).abs()
        assert float(pairs.max()) < 6 / math.sqrt(n), "two sources go together"
        lagged = float((z[1:] * z[:-1]).mean())
        assert abs(lagged) < 6 / math.sqrt(z[1:].numel()), "rounds go together"


def check_added_noise(one: TensorRound, *, dtype: torch.dtype) -> None:
    """What is added to a message has the declared deviation, with a factor or without.

    n = 100,000 and 20,000 normals, variance within 5 standard errors: false alarm 6e-7 each.
    """
    like = Agents(torch.zeros(5, 20_000, dtype=dtype))
    z = one.noise(like, std=NOISE).rows.double()
    off = abs(float(z.var()) / NOISE**2 - 1)
    assert off < 5 * math.sqrt(2 / z.numel()), "variance of what is added"
    factor = torch.tensor([[1.0, 2.0]] * 5, dtype=torch.float64)
    shared = one.noise(like, std=NOISE, factor=factor).rows.double()
    off = abs(float(shared[0].var()) / (5 * NOISE**2) - 1)
    assert off < 5 * math.sqrt(2 / 20_000), "variance of what is added by a factor"
    assert float((shared - shared[0]).abs().max()) < 1e-6, "the same two sources on every row"


def check_clipping(bound: Bound, graph: Graph) -> None:
    """A batch of one record stays within the bound that was traced, and some come near it.

    A vector whose parts lie in several blocks is measured with all of them. The clipped mean of a
    batch reaches half of its bound, because another record could turn it round.
    """
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=5, noise_multiplier=bound.noise_multiplier
    )
    record = [one for one, count in traces.rounds for _ in range(count)][1]
    groups = [group for group in record.groups if isinstance(group, Contributions)]
    engine = started(bound, graph)
    engine.advance()  # the models differ from here on
    recorded = Recorded()
    one_record = {
        agent: Examples(10.0 * shard.inputs[:1], shard.targets[:1])
        for agent, shard in enumerate(engine.setting.shards)
    }
    engine.advance(planted=one_record, recorded=recorded)
    squared, bounds, clipped = dict[int, float](), dict[int, float](), set[int]()
    for group, value in zip(groups, recorded.contributions, strict=True):
        norms = value.square().sum(1).tolist()
        for i, (norm, most) in enumerate(zip(norms, group.bounds.tolist(), strict=True)):
            vector = group.first_vector + i
            squared[vector] = squared.get(vector, 0.0) + norm
            bounds[vector] = most
            if group.blame is None:
                clipped.add(vector)
    reached = {vector: math.sqrt(found) / bounds[vector] for vector, found in squared.items()}
    worst = max(reached, key=lambda vector: reached[vector])
    assert reached[worst] <= 1 + 1e-9, f"contribution {worst} is {reached[worst]:.3g} its bound"
    assert max(reached[vector] for vector in clipped) > 0.49, "nothing is near its bound"


def _close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, **EXACT, msg=lambda said: f"{what}: {said}")
