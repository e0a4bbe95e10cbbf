"""Compression of what is seen, and gossip of the compressed differences.

    1  q_i = Q(v_i - c_i)                   send q_i
    2  c_i <- c_i + q_i,   m_i <- m_i + sum_j W_ij q_j
    3  the caller moves v_i by gamma (m_i - c_i)

c_i is the copy of v_i that all neighbours of i hold, since it is the sum of what i sent, and m_i is
kept in place of the copies: m = W c as long as W stays the same. What Q leaves out stays in
v - c, and is sent later.

Every Q is a function of one vector with |Q(d) - d|^2 <= (1 - w) |d|^2 for some w > 0:

- top-k keeps the k entries that are largest in size: w = k/D;
- random-k keeps k entries that a public seed, the round and the agent's number choose: w = k/D in
  the mean over the seed;
- quantised rounds each entry to the nearest of 2^bits - 1 even steps from -max|d| to max|d|. No
  entry is farther from 0 than from its step, and the largest is kept, so w = 1/D at least.

Q gets a difference that counts as seen by every adversary, so it costs nothing more and hides
nothing. There is no compression of a secret: a sparse vector that is scaled up, or a rounded one,
can be longer than the bound that it was clipped to, so nothing may come between clip and noise.
"""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...privacy.errors import InputError, within
from ..graphs.graph import Topology

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.handles import Agents
    from ..step.round import Round


_MOST_BITS = 16
_WORD = 0xFFFFFFFF


class Compressor(enum.StrEnum):
    """What is sent of a difference."""

    NONE = "none"
    TOP_K = "top-k"
    RANDOM_K = "random-k"
    QUANTISED = "quantised"


_DEFAULTS: dict[str, tuple[float, tuple[Compressor, ...]]] = {  # and which compressors use each
    "kept": (0.1, (Compressor.TOP_K, Compressor.RANDOM_K)),
    "bits": (8, (Compressor.QUANTISED,)),
    "mask_seed": (0, (Compressor.RANDOM_K,)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters of compressed gossip.

    Attributes:
        compressor: what is sent of a difference.
        kept: of top-k and random-k the share of entries that is sent, in (0, 1]; by default .1.
        bits: of quantised the bits of an entry, 2 to 16; by default 8.
        mask_seed: of random-k the public seed of what is sent, below 2^32; by default 0.
        consensus_step: gamma in (0, 1], how far a model moves to its neighbours' copies. The
            coarser the compression, the smaller it has to be; 1 fits none alone.

    Raises:
        ValueError: a number out of range, or one that the compressor does not use.
    """

    compressor: Compressor = Compressor.TOP_K
    kept: float | None = None
    bits: int | None = None
    mask_seed: int | None = None
    consensus_step: float = 0.2

    def __post_init__(self) -> None:
        """Check the ranges, and that no number stays without effect; fill in what is used."""
        if self.kept is not None:
            within("kept", self.kept, "(0, 1]", ", the share of entries that is sent")
        if self.bits is not None:
            within(
                "bits", self.bits, f"[2, {_MOST_BITS}]", 'compressor = "none" sends whole numbers'
            )
        if self.mask_seed is not None and not 0 <= self.mask_seed <= _WORD:
            raise InputError(f"mask_seed={self.mask_seed} must lie in 0 to {_WORD}")
        if not 0 < self.consensus_step <= 1:
            raise InputError(
                f"consensus_step={self.consensus_step} must lie in (0, 1]; 1 is plain mixing, for "
                'compressor = "none"'
            )
        for name, (default, users) in _DEFAULTS.items():
            if self.compressor in users and getattr(self, name) is None:
                object.__setattr__(self, name, default)
            if getattr(self, name) is not None and self.compressor not in users:
                raise InputError(
                    f"{name}={getattr(self, name)} has no effect with compressor = "
                    f'"{self.compressor}"; leave it out'
                )


class Compression(NamedTuple):
    """A compressor and its numbers, of which it uses some."""

    compressor: Compressor
    kept: float
    bits: int
    mask_seed: int


class Copies(NamedTuple):
    """The copy that an agent's neighbours hold, and the mixture of copies that it holds, (A, D)."""

    own: Agents
    mixed: Agents


def prepare(
    *,
    graph: Topology,
    compressor: Compressor,
    kept: float | None,
    bits: int | None,
    mask_seed: int | None,
) -> dict[str, object]:
    """Give the step its compression, where the graph lets an agent keep mixed copies.

    Raises:
        ValueError: the graph changes, so that what was sent under other weights is no mixture.
    """
    if len(set(graph.graphs)) > 1:
        raise InputError(
            f"graph {graph.name!r} changes from round to round, as any does from which agents are "
            "absent in some rounds: an agent holds the sum of its neighbours' compressed "
            "differences, which is of use under one set of weights alone; give one graph, such as "
            "ring or erdos-renyi, and let the same agents take part in every round"
        )
    return {"compression": Compression(compressor, kept or 1.0, bits or 0, mask_seed or 0)}


def first_copies(value: Agents) -> Copies:
    """Copies of a public value that is equal on all agents, which need not be sent.

    The weights of an agent sum to 1, so that the mixture of equal copies is the copy.
    """
    return Copies(value, value)


def send_difference(
    value: Agents,
    copies: Copies,
    round: Round,
    *,
    kind: str,
    compression: Compression,
    turn: Agents,
    stream: int = 0,
) -> Copies:
    """Steps 1 and 2: send Q(value - copy), and add it to the copies.

    Args:
        value: (A, D); unless nothing is compressed its distance from the copy counts as seen.
        kind: of the message.
        compression: Q.
        turn: (A, D) how many rounds there were, as `next_turn` counts; random-k alone uses it.
        stream: a number of its own for each of the values of a round; likewise.
    """
    import torch

    compressor, kept, bits, seed = compression
    sent = value - copies.own
    if compressor is Compressor.TOP_K:
        sent = round.postprocess(functools.partial(top_k, kept=kept), sent)
    elif compressor is Compressor.QUANTISED:
        sent = round.postprocess(functools.partial(quantised, bits=bits), sent)
    elif compressor is Compressor.RANDOM_K:
        number = round.of_agents(torch.arange(round.agents, dtype=torch.float64)[:, None])
        chosen = functools.partial(random_k, kept=kept, seed=(seed, stream))
        sent = round.postprocess(chosen, sent, turn, number)
    return Copies(copies.own + sent, copies.mixed + round.mix(sent, kind=kind))


def next_turn(turn: Agents, round: Round, *, compression: Compression) -> Agents:
    """Count the rounds in the state, where random-k needs them; the step stays the same each round.

    A step that read `round.index` would be traced in every round by itself.
    """
    if compression.compressor is not Compressor.RANDOM_K:
        return turn
    return round.postprocess(_plus_one, turn)


def _plus_one(turn: Tensor) -> Tensor:
    return turn + 1.0


def top_k(row: Tensor, *, kept: float) -> Tensor:
    """The share `kept` of entries that is largest in size, and 0 elsewhere: (D,) -> (D,)."""
    return _only(row, row.abs().topk(_count(row, kept)).indices)


def random_k(
    row: Tensor, turn: Tensor, agent: Tensor, *, kept: float, seed: tuple[int, int]
) -> Tensor:
    """A share of entries that public numbers choose: (D,), (D,), (1,) -> (D,).

    Args:
        row: (D,).
        turn: (D,) the number of the round in every entry.
        agent: (1,) the number of the agent.
        kept: share of entries.
        seed: two numbers below 2^32.
    """
    import torch

    chosen = _hashed(
        _hashed(_hashed(_hashed(turn[0].long()) ^ agent[0].long()) ^ seed[0]) ^ seed[1]
    )
    at = torch.arange(row.shape[0], device=row.device)
    drawn = _hashed(_hashed(at) ^ chosen) * 2**31 + at  # no two are equal
    return _only(row, drawn.topk(_count(row, kept)).indices)


def quantised(row: Tensor, *, bits: int) -> Tensor:
    """Every entry at the nearest of 2^bits - 1 even steps between +-max|row|: (D,) -> (D,)."""
    import torch

    steps = 2 ** (bits - 1) - 1
    size = row.abs().max()
    share = torch.where(size > 0, row / size.clamp_min(math.ulp(0.0)), 0.0)
    return (share * steps).round() * (size / steps)


def _count(row: Tensor, kept: float) -> int:
    return min(max(1, round(kept * row.shape[0])), row.shape[0])


def _only(row: Tensor, at: Tensor) -> Tensor:
    import torch

    return torch.zeros_like(row).scatter(0, at, row.gather(0, at))


def _hashed(word: Tensor) -> Tensor:
    """Mix the 32 bits of a word: two products of odd numbers, and shifts."""
    word = (word ^ (word >> 16)) * 0x7FEB352D & _WORD
    word = (word ^ (word >> 15)) * 0x846CA68B & _WORD
    return word ^ (word >> 16)
