"""From intercepted messages to an observation of one victim's batch.

    cross-gradient   the gradient on m's model that the victim d sent to m, as it crossed the link
    momentum         v~_t - momentum * sum_j W_ij v~_{t-1}^j of the victim i, less the
                     cross-gradients sent to it: what is left is made of its own gradient alone
    update           (sum_j W_ij x_j - x_i') / eta, from models of two consecutive rounds

For DPDL the momentum difference is

    u = g[i, i] / (sqrt(W_ii) A) + alpha sum_d W_id c_d ghat_i

In the repaired form ghat_i = g[i, i], so u is a multiple of it, and since c_d depends on directions
alone the factor is known: the self-gradient, which never crosses a link, is recovered as sent. In
the published form ghat_i is the noise-free gradient, so dividing by the same factor leaves an
estimate with *less* noise than any message carries.
"""

from __future__ import annotations

import enum
import math

import torch
from torch import Tensor

from ..training.algorithms.dpdl import Settings as DpdlSettings
from ..training.algorithms.form import Form
from ..training.graph import Graph, Topology
from ..training.transcript import Transcript
from .observation import Observation


class Scenario(enum.StrEnum):
    """What is intercepted."""

    CROSS_GRADIENT = "cross-gradient"
    MOMENTUM = "momentum"
    UPDATE = "update"


def intercept_cross_gradient(
    transcript: Transcript,
    *,
    round: int,
    model_owner: int,
    victim: int,
    records: int,
    batch_size: float,
    clip_norm: float | None,
    noise_std: float,
) -> Observation:
    """The cross-gradient that `victim` sent to `model_owner`.

    Args:
        transcript: what crossed the links.
        round: the round.
        model_owner: the agent to which the gradient goes.
        victim: the agent whose batch it is of.
        records: how many records the attacker takes the batch to hold.
        batch_size: the public normaliser.
        clip_norm: bound on one record's gradient; None where nothing is clipped.
        noise_std: noise on the sum of clipped gradients.

    Raises:
        LookupError: the messages were not kept.
    """
    sent = transcript.sent(round=round, kind="cross-gradient", sender=victim, receiver=model_owner)
    model = transcript.sent(round=round, kind="model", sender=model_owner, receiver=victim)
    return Observation.single(
        gradient=sent * (batch_size / records),
        model=model,
        noise_std=noise_std / records,
        clip_norm=clip_norm,
        records=records,
    )


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

    Args are those of `intercept_cross_gradient`; round 1 needs no round before it.

    Raises:
        LookupError: a message of this or the previous round was not kept.
        ValueError: the victim has no neighbour.
    """
    now, previous = graph.at(round), graph.at(round - 1)
    others = [j for j in now.neighbours(victim) if j != victim]
    if not others:
        raise ValueError(f"agent {victim} has no neighbour; nothing of it crosses a link")
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
    return Observation.single(
        gradient=(u * (batch_size / (records * total))).to(sent.dtype),
        model=transcript.sent(round=round, kind="model", sender=victim, receiver=to),
        noise_std=noise,
        clip_norm=clip_norm,
        records=records,
    )


def intercept_update(
    transcript: Transcript,
    *,
    graph: Topology,
    initial: Tensor,
    step_first: bool,
    learning_rate: float,
    round: int,
    victim: int,
    records: int,
    batch_size: float,
    clip_norm: float | None,
    noise_std: float,
) -> Observation:
    """The victim's gradient from the models it and its neighbours sent in two rounds.

    For steps x_i <- sum_j W_ij x_j - eta g_i whose models are sent at the start of a round
    (`step_first` False) and x_i <- sum_j W_ij (x_j - eta g_j), where what is sent has taken its
    step already (`step_first` True). Args are those of `intercept_cross_gradient`, and `initial`,
    the public initial model (D,), at which round 1 starts.

    Raises:
        LookupError: a model of this round, the next or the one before was not kept.
        ValueError: the victim has no neighbour.
    """

    def sent(number: int, sender: int) -> Tensor:
        to = _receiver(graph.at(number), victim) if sender == victim else victim
        return transcript.sent(round=number, kind="model", sender=sender, receiver=to).double()

    def mixed(number: int) -> Tensor:
        now = graph.at(number)
        heard = [float(now.weights[victim, j]) * sent(number, j) for j in now.neighbours(victim)]
        return torch.stack(heard).sum(dim=0)

    if step_first:
        model = initial.double() if round == 1 else mixed(round - 1)
        taken = model - sent(round, victim)
    else:
        model, taken = sent(round, victim), mixed(round) - sent(round + 1, victim)
    return Observation.single(
        gradient=(taken * (batch_size / (learning_rate * records))).to(initial.dtype),
        model=model.to(initial.dtype),
        noise_std=noise_std / records,
        clip_norm=clip_norm,
        records=records,
    )


def _receiver(graph: Graph, victim: int) -> int:
    """An agent that the victim sends to."""
    to = [receiver for sender, receiver in graph.links if sender == victim]
    if not to:
        raise ValueError(f"agent {victim} has no neighbour; nothing of it crosses a link")
    return to[0]


def _cosine(a: Tensor, b: Tensor) -> float:
    size = float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return float(a @ b) / size if size > 0 else 0.0


def _weight(cosine: float) -> float:
    return 1.0 / (1.0 + math.exp(cosine))
