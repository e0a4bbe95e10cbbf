"""A gradient that never crosses a link, from DPDL's momenta and cross-gradients of two rounds.

    u = v~_t - momentum * sum_j W_ij v~_{t-1}^j - sum_{d != i} g[i, d] / (sqrt(W_id) A)

of the victim i is made of its own gradient alone:

    u = g[i, i] / (sqrt(W_ii) A) + alpha sum_d W_id c_d ghat_i

In the repaired form ghat_i = g[i, i], so u is a multiple of it, and since c_d depends on directions
alone the factor is known: the self-gradient is recovered as it would have been sent. In the
published form ghat_i is the noise-free gradient, so dividing by the same factor leaves an estimate
with *less* noise than any message carries.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...training.algorithms.algorithm import Form
from ...training.algorithms.dpdl import Settings as DpdlSettings
from ...training.engine.transcript import Transcript
from ...training.graphs.graph import Graph, Topology
from ..problem.observation import Observation


def intercept_momentum(
    transcript: Transcript,
    *,
    graph: Topology,
    settings: DpdlSettings,
    form: Form,
    round: int,
    victim: int,
    records: int,
    batch_size: float,
    clip_norm: float | None,
    noise_std: float,
) -> Observation:
    """The victim's own gradient, from DPDL's momenta and cross-gradients of two rounds.

    Args:
        transcript: what crossed the links in this round and, from round 2 on, in the one before.
        graph: the topology.
        settings: hyper-parameters of the run.
        form: published or repaired.
        round: the round.
        victim: the agent whose batch is attacked.
        records: how many records the attacker takes the batch to hold.
        batch_size: the public normaliser.
        clip_norm: bound on one record's gradient; None where nothing is clipped.
        noise_std: noise on the sum of clipped gradients.

    Returns:
        One intercept, of the victim's gradient on its own model.

    Raises:
        LookupError: a message of this or the previous round was not kept.
        ValueError: the victim has no neighbour.
    """
    now, previous = graph.at(round), graph.at(round - 1)
    others = [j for j in now.neighbours(victim) if j != victim]
    if not others:
        raise InputError(f"agent {victim} has no neighbour; nothing of it crosses a link")
    to = others[0]
    sent = transcript.sent(round=round, kind="momentum", sender=victim, receiver=to)
    u = sent.to(torch.float64, copy=True)  # a difference of large, nearly equal numbers
    if round > 1:
        for j in previous.neighbours(victim):
            before = transcript.sent(
                round=round - 1,
                kind="momentum",
                sender=j,
                receiver=victim if j != victim else _receiver(previous, victim),
            )
            u -= settings.momentum * float(previous.weights[victim, j]) * before.double()
    heard = {
        d: transcript.sent(round=round, kind="cross-gradient", sender=d, receiver=victim).double()
        for d in others
    }
    for d, g in heard.items():
        u -= g / (math.sqrt(float(now.weights[victim, d])) * graph.agents)
    own = float(now.weights[victim, victim])
    direct = 1.0 / (math.sqrt(own) * graph.agents)
    pull = own * _weight(1.0) + sum(
        float(now.weights[victim, d]) * _weight(_cosine(g, u)) for d, g in heard.items()
    )
    total = direct + settings.alpha * pull
    noise = noise_std / records
    if form is Form.PUBLISHED:
        noise *= direct / total
    found = Observation.single(
        gradient=(u * (batch_size / (records * total))).to(sent.dtype),
        model=transcript.sent(round=round, kind="model", sender=victim, receiver=to),
        noise_std=noise,
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


def _cosine(a: Tensor, b: Tensor) -> float:
    size = float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return float(a @ b) / size if size > 0 else 0.0


def _weight(cosine: float) -> float:
    return 1.0 / (1.0 + math.exp(cosine))
