"""The contract that every algorithm of the registry keeps, for one of the user's.

    from overhear.testing import check_algorithm
    from mine import MOMENTUM

    def test_momentum():
        check_algorithm(MOMENTUM)

What is proven of an algorithm is proven of its trace. These checks hold runs on tensors against it:
the same messages on the same links, each the sum that its row of the trace says, of contributions
that stay within their bounds and of noise that is normal, unequal and new in every round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attacks.audit.audited import AGAIN
from ..attacks.checks.recording import RecordedColumns
from ..attacks.checks.watched_run import traces_of, watch
from ..attacks.foreign.audit_training import TrainingAudit, audit_training
from ..attacks.foreign.claimed import Claimed, parse_claim
from ..attacks.foreign.own_training import check_dataset
from ..privacy.errors import InputError, within
from ..testing import BUDGET
from ..training.algorithms.algorithm import Algorithm, Bound, Form, bind
from ..training.data.store import Examples
from ..training.engine.engine import Engine
from ..training.engine.randomness import SecretRandomness
from ..training.engine.recording import Recorded
from ..training.engine.setting import Setting
from ..training.graphs.graph import Topology
from ..training.graphs.topologies import build_graph
from ..training.models.tasks import ClassWeights
from ..training.step.script import UnplannedOperation
from ..training.tracing.linear_forms import Contributions
from .neighbours import Replayed
from .neighbours import replay as replayed

# Assertions for tests of one's own training: each names the value, the bound and the remedy.


Train = Callable[[Any], Any]
_EACH = 250  # canaries of one training


def replay(train: Train, data: Any, **claim: Any) -> Replayed:
    """`overhear.replay`, of which every check that applies must run and pass.

    Raises:
        AssertionError: a check fails, or could not be made.
    """
    __tracebackhide__ = True  # pytest shows the line of the test, and what was found
    found = replayed(train, data, **claim)
    if not found.passed:
        raise AssertionError(repr(found))
    return found


def assert_noise(train: Train, data: Any, *, noise: float, **how: Any) -> Replayed:
    """Noise of this size is in all that leaves and moves, and new with each entropy.

    Args:
        train: as of `overhear.replay`, and data.
        noise: deviation on each coordinate of the clipped sum.
        how: scale and seed of `overhear.replay`.

    Raises:
        AssertionError: there is less, it is known to anyone who knows a seed, or none was seen.
    """
    __tracebackhide__ = True
    found = replayed(train, data, noise=noise, records=8, **how)
    looked = [found["noise"], found["secrecy"]]
    if not all(one.passed for one in looked):
        raise AssertionError("\n".join(f"{one.name} {one.verdict}: {one.words}" for one in looked))
    return found


def assert_private(
    train: Train, data: Any, *, claim: Claimed | str, seconds: float | None = None, **how: Any
) -> TrainingAudit:
    """Canaries show no more than is claimed, as many as there is time for.

    One training is timed; of a sound one the assertion fails once in a thousand times at most.

    Args:
        train: as of `audit_training`, and data.
        claim: such as "epsilon=3,delta=1e-5", or of `claimed`.
        seconds: for all trainings, those of a second look with them; by default 60, or what
            `pytest --overhear-seconds` says.
        how: more of `audit_training`.

    Raises:
        AssertionError: the claim is contradicted, in both looks.
    """
    __tracebackhide__ = True
    seconds = BUDGET["seconds"] if seconds is None else seconds
    within("seconds", seconds, "(0, inf)")
    each = min(_EACH, check_dataset(data, name="data"))
    began = time.monotonic()
    train(data)
    one = max(time.monotonic() - began, 1e-3)
    runs = max(1, int((seconds - one) / one / (1 + AGAIN)))
    found = audit_training(
        train,
        data,
        claim=parse_claim([claim]) if isinstance(claim, str) else claim,
        **{"canaries": each * min(runs, 400), "per_run": each, **how},
    )
    if found.contradicted:
        raise AssertionError(
            f"{found.words()}. Look for what adds to the sum unclipped or without noise: "
            "overhear.replay(train, data, clip=..., noise=...) names it"
        )
    return found


_CLIP, _NOISE, _RATE, _RECORDS = 0.2, 0.4, 0.5, 9
_ROUNDS = 5  # of the trace, of which one is held against a run
_LOOKED_AT = 3  # the round that is
_DRAWS = 100  # rounds whose noise is looked at
_SIGMAS = 6.0  # of 500 normals each: false alarms below 1e-6 for a variance, less for two
_EXACT = 1e-10


def check_algorithm(
    algorithm: Algorithm, *, settings: Mapping[str, object] | None = None, graph: str = "ring:5"
) -> None:
    """Check that an algorithm keeps the contract of the registry; silent where it does.

    It takes some seconds. The false-alarm rate of its statistical part is below 1e-5.

    Args:
        algorithm: one's own.
        settings: hyper-parameters by name, in place of the defaults.
        graph: name and number of agents.

    Raises:
        AssertionError: a fault, in words: which round, message or source it is in.
        InputError: no algorithm, or another graph.

    >>> from overhear.training import ALGORITHMS
    >>> check_algorithm(ALGORITHMS["dp-dpsgd"])
    """
    if not isinstance(algorithm, Algorithm):
        raise InputError(f"algorithm is a {type(algorithm).__name__}; it must be an Algorithm(...)")
    name, _, agents = graph.partition(":")
    if not agents.isdigit():
        raise InputError(f'graph={graph!r} must read "name:agents", such as "ring:5"')
    topology = build_graph(name, int(agents))
    chosen = algorithm.settings(**(settings or {}))
    try:
        for form in algorithm.forms:
            _check_form(algorithm, chosen, form, topology)
    except UnplannedOperation as error:  # the engine itself holds a round against its trace
        raise AssertionError(str(error)) from error


def _check_form(algorithm: Algorithm, settings: object, form: Form, graph: Topology) -> None:
    bound = _bound(algorithm, settings, form, graph, noise=algorithm.private)
    _check_same_root(bound, graph)
    _check_rows(bound, graph)
    if algorithm.private:
        _check_contributions(bound, graph)
        _check_noise(bound, graph)
        _check_plain(_bound(algorithm, settings, form, graph, noise=False), graph)


def _bound(
    algorithm: Algorithm, settings: object, form: Form, graph: Topology, *, noise: bool
) -> Bound:
    return bind(
        algorithm,
        settings,
        form=form,
        learning_rate=0.3,
        clip_norm=_CLIP if noise else None,
        noise_std=_NOISE if noise else 0.0,
        batch_size=_RATE * _RECORDS,
        graph=graph,
        rounds=_DRAWS,
        records=_RECORDS,
    )


def _setting(bound: Bound, graph: Topology) -> Setting:
    """A small network in double precision, with a few records for every agent."""
    rng = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    for parameter in net.parameters():
        parameter.data.normal_(generator=rng)
    shards = [
        Examples(
            torch.randn(_RECORDS, 4, generator=rng), torch.randint(2, (_RECORDS,), generator=rng)
        )
        for _ in range(graph.agents)
    ]
    return Setting(
        graph=graph,
        model=net,
        shards=shards,
        users=[torch.arange(_RECORDS) // 2] * graph.agents,
        sampling_rate=_RATE,
        device=torch.device("cpu"),
        dtype=torch.float64,
        task=ClassWeights(net, classes=2) if bound.blocks == 2 else None,
    )


def _engine(bound: Bound, graph: Topology) -> Engine:
    """One after its start."""
    engine = Engine(_setting(bound, graph), bound, randomness=SecretRandomness(5))
    engine.start()
    return engine


def _check_same_root(bound: Bound, graph: Topology) -> None:
    """The same randomness gives the same run: nothing is drawn beside the round."""
    runs = [_engine(bound, graph) for _ in range(2)]
    for _ in range(3):
        for engine in runs:
            engine.advance()
    first, second = (engine.models() for engine in runs)
    _demand(
        torch.equal(first, second),
        "two runs with the same randomness differ: the step draws or keeps something of its own",
    )


def _check_rows(bound: Bound, graph: Topology) -> None:
    """Every message and end state of a run equals its row over what the round drew and sent."""
    setting = _setting(bound, graph)
    traces = traces_of(bound, setting, rounds=_ROUNDS)
    own = SecretRandomness(5)
    run = watch(setting, bound, rounds=[_LOOKED_AT], traces=traces, randomness=own)
    watched = run.rounds[1]
    _demand(not watched.mismatch, watched.mismatch)
    columns, record = RecordedColumns(watched), watched.trace
    sent = zip(record.messages, watched.messages, strict=True)
    ends = record.record.end_state.items()
    for what, rows, value in (
        *((f"message {group.kind!r}", group.rows, message.rows) for group, message in sent),
        *((f"state {field!r}", rows, watched.after[field]) for field, rows in ends),
    ):
        total = columns.value(rows, width=value.shape[1])
        _demand(
            np.allclose(total, value.numpy(), rtol=_EXACT, atol=_EXACT),
            f"{what} of round {_LOOKED_AT} is not what the trace says it is made of",
        )


def _check_contributions(bound: Bound, graph: Topology) -> None:
    """A batch of one large record stays within the bound that was traced."""
    engine = _engine(bound, graph)
    traces = traces_of(bound, engine.setting, rounds=_ROUNDS)
    second = [one for one, count in traces.rounds for _ in range(count)][1]
    groups = [group for group in second.groups if isinstance(group, Contributions)]
    engine.advance()  # the models differ from here on
    recorded = Recorded()
    large = {
        agent: Examples(10.0 * shard.inputs[:1], shard.targets[:1])
        for agent, shard in enumerate(engine.setting.shards)
    }
    engine.advance(planted=large, recorded=recorded)
    squared, bounds = dict[int, float](), dict[int, float]()
    for group, value in zip(groups, recorded.contributions, strict=True):
        norms = value.square().sum(1).tolist()
        for i, (norm, most) in enumerate(zip(norms, group.bounds.tolist(), strict=True)):
            vector = group.first_vector + i
            squared[vector] = squared.get(vector, 0.0) + norm
            bounds[vector] = most
    for vector, norm in squared.items():
        if not bounds[vector]:
            _demand(norm == 0, f"contribution {vector} is that of an absent agent, and not 0")
            continue
        share = math.sqrt(norm) / bounds[vector]
        _demand(share <= 1 + 1e-9, f"contribution {vector} of a record is {share:.3g} its bound")


def _check_noise(bound: Bound, graph: Topology) -> None:
    """Every source is standard normal, and no two of them, nor two rounds, go together."""
    # The first coordinates of all sources, over rounds.
    engine = _engine(bound, graph)
    draws: list[list[Tensor]] = []
    for _ in range(_DRAWS):
        recorded = Recorded()
        engine.advance(recorded=recorded)
        draws.append([z[:, :5].T for z in recorded.noise])  # (coordinates, sources) of each call
    _demand(bool(draws[0]), "no noise is drawn in a round of a private algorithm")
    # Variance 1 in each source, and no correlation between sources or rounds.
    calls = [torch.stack(of) for of in zip(*draws, strict=True)]  # (rounds, coordinates, sources)
    for call, z in enumerate(calls):
        flat = z.flatten(0, 1)
        n, limit = len(flat), _SIGMAS / math.sqrt(len(flat))
        off = (flat.square().mean(0) - 1.0).abs()
        _demand(
            float(off.max()) < math.sqrt(2) * limit,
            f"noise source {int(off.argmax())} of call {call} is not standard normal",
        )
        pairs = (flat.T @ flat / n).fill_diagonal_(0.0).abs()
        _demand(float(pairs.max()) < limit, f"two noise sources of call {call} go together")
        words = f"the noise of call {call} goes together in two rounds that follow each other"
        _demand(_apart(z[1:], z[:-1]), words)
    for (one, a), (other, b) in combinations(enumerate(calls), 2):
        words = f"the noise of calls {one} and {other} goes together"
        _demand(a.shape != b.shape or _apart(a, b), words)


def _apart(one: Tensor, other: Tensor) -> bool:
    """Whether two arrays of normals do not go together."""
    return abs(float((one * other).mean())) < _SIGMAS / math.sqrt(one.numel())


def _check_plain(bound: Bound, graph: Topology) -> None:
    """Without noise and clipping it still runs: neither is taken to be there."""
    engine = _engine(bound, graph)
    for _ in range(_LOOKED_AT):
        engine.advance()
    _demand(
        bool(torch.isfinite(engine.models()).all()),
        "without noise and clipping the models are not finite after three rounds",
    )


def _demand(holds: bool, words: str) -> None:
    if not holds:
        raise AssertionError(words)
