"""A gradient that never crosses a link, from momenta and cross-gradients of two rounds.

Where a momentum is sent that holds the sender's own gradient beside public multiples of other
messages, those can be taken out again: the algorithm says how (`Algorithm.own_gradient`), and what
share of the noise is left. Here the messages are collected and the rest is accounted for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...privacy.errors import InputError
from ...training.algorithms.algorithm import Algorithm, Form
from ...training.engine.transcript import Transcript
from ...training.graphs.graph import Graph, Topology
from ..problem.observation import Observation


def intercept_momentum(
    transcript: Transcript,
    *,
    algorithm: Algorithm,
    graph: Topology,
    settings: Any,
    form: Form,
    round: int,
    victim: int,
    records: int,
    batch_size: float,
    clip_norm: float | None,
    noise_std: float,
) -> Observation:
    """The victim's own gradient, from momenta and cross-gradients of two rounds.

    Args:
        transcript: what crossed the links in this round and, from round 2 on, in the one before.
        algorithm: what ran, which says how its momenta are undone.
        settings: hyper-parameters of the run.
        form: published or repaired.
        victim: the agent whose batch is attacked.
        records: how many records the attacker takes the batch to hold.
        batch_size: the public normaliser.
        clip_norm: bound on one record's gradient; None where nothing is clipped.
        noise_std: noise on the sum of clipped gradients.

    Returns:
        One intercept, of the victim's gradient on its own model.

    Raises:
        LookupError: a message of this or the previous round was not kept.
        ValueError: the victim has no neighbour, or the algorithm's momenta cannot be undone.
    """
    if algorithm.own_gradient is None:
        raise InputError(f"algorithm {algorithm.name!r} sends no momenta that can be undone")
    now, previous = graph.at(round), graph.at(round - 1)
    others = [j for j in now.neighbours(victim) if j != victim]
    if not others:
        raise InputError(f"agent {victim} has no neighbour; nothing of it crosses a link")
    to = others[0]
    sent = transcript.sent(round=round, kind="momentum", sender=victim, receiver=to)
    before = [
        (
            float(previous.weights[victim, j]),
            transcript.sent(
                round=round - 1,
                kind="momentum",
                sender=j,
                receiver=victim if j != victim else _receiver(previous, victim),
            ),
        )
        for j in (previous.neighbours(victim) if round > 1 else ())
    ]
    heard = [
        (
            float(now.weights[victim, d]),
            transcript.sent(round=round, kind="cross-gradient", sender=d, receiver=victim),
        )
        for d in others
    ]
    own = algorithm.own_gradient(
        sent,
        before=before,
        heard=heard,
        own_weight=float(now.weights[victim, victim]),
        agents=graph.agents,
        settings=settings,
        form=form,
    )
    u = own.multiple
    found = Observation.single(
        gradient=(u * (batch_size / (records * own.factor))).to(sent.dtype),
        model=transcript.sent(round=round, kind="model", sender=victim, receiver=to),
        noise_std=noise_std / records * own.noise_share,
        clip_norm=clip_norm,
        records=records,
    )
    largest = float(torch.linalg.vector_norm(sent.double()))  # of what nearly cancels
    left = torch.finfo(sent.dtype).eps * largest / max(float(torch.linalg.vector_norm(u)), 1e-300)
    return replace(found, rounding=left if sent.dtype != torch.float64 else 0.0)


def _receiver(graph: Graph, victim: int) -> int:
    """An agent that the victim sends to."""
    to = [receiver for sender, receiver in graph.links if sender == victim]
    if not to:
        raise InputError(f"agent {victim} has no neighbour; nothing of it crosses a link")
    return to[0]
