"""How far a picture is trusted whose gradient rests on a prior: rehearsals with public records.

Where an estimate rests on gradients that change slowly (`Drift`), its covariance is a guess, and no
test of residuals holds. So the attack is rehearsed: a public record x takes the victim's place,

    o = sum_t share_t grad_x(point_t) + a sample of what others leave + noise

and is rebuilt as the victim's record is. With u = what came out and v = x, both less the public
guess, the picture with the least expected error among guess + s u is that of

    s = sum <u, v> / sum <u, u>,   between 0 and 1

It is used if it would have left less than three quarters of the public guess's error, each s being
taken from the other rehearsals. Otherwise the public guess stands.

Shape letters: B records, M rehearsals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..posterior.candidates import Candidates
from ..problem.observation import Observation, sent_gradients
from ..problem.problem import Found, Problem

REHEARSALS = 6
_STEPS = 300  # of a search: fewer only make the rehearsal a worse one
_WORTH = 0.75  # share of the public guess's error

Way = Callable[[Problem], Found]
"""How a batch is found."""


def rehearsed_share(
    problem: Problem, candidates: Candidates | None, generator: torch.Generator, *, way: Way
) -> float:
    """How far to go from the public guess to what was found, in [0, 1]; 0 is the public guess.

    Args:
        problem: whose observation has a drift, and a prior image.
        candidates: public records; None where none are known, and then nothing is trusted.
        generator: of which records, and of noise.
        way: how a batch is found; labels of a rehearsal's problem are those of its records, which
            it reads anew unless the attacker knows them.
    """
    drift, prior = problem.observation.drift, problem.prior_image
    records = problem.observation.records
    if candidates is None or drift is None or prior is None or len(candidates) < records:
        return 0.0
    preset = problem.preset
    quick = replace(preset, starts=1, adam_steps=min(preset.adam_steps, _STEPS))
    pairs = []
    for number in range(REHEARSALS):
        chosen = candidates.at(torch.randperm(len(candidates), generator=generator)[:records])
        seen = _rehearsal(problem, chosen, number=number, generator=generator)
        labels = None if problem.labels is None else chosen.labels.to(problem.labels.device)
        found = way(replace(problem, observation=seen, preset=quick, labels=labels))
        truth = problem.box.pixels(chosen.inputs.to(problem.box.span))
        pairs.append(((found.pixels - prior).flatten(1), (truth - prior).flatten(1)))
    moments = torch.tensor([_moments(u, v) for u, v in pairs], dtype=torch.float64)  # (M, 3)
    left = moments.sum(dim=0) - moments
    shares = (left[:, 0] / left[:, 1].clamp_min(1e-300)).clamp(0, 1)
    errors = shares**2 * moments[:, 1] - 2 * shares * moments[:, 0] + moments[:, 2]
    if not float(errors.sum()) < _WORTH * float(moments[:, 2].sum()):
        return 0.0
    whole = moments.sum(dim=0)
    return float((whole[0] / whole[1].clamp_min(1e-300)).clamp(0, 1))


def _rehearsal(
    problem: Problem, chosen: Candidates, *, number: int, generator: torch.Generator
) -> Observation:
    """The observation that public records in the victim's place would have led to."""
    seen, drift = problem.observation, problem.observation.drift
    assert drift is not None  # noqa: S101 # the caller looked
    each = replace(
        seen,
        points=drift.points[:, None],
        gradient=seen.gradient.expand(len(drift.points), -1),
        covariance=torch.zeros(len(drift.points), len(drift.points), dtype=torch.float64),
        drift=None,
    )
    like = seen.gradient
    sent = sent_gradients(
        each, problem.model, inputs=chosen.inputs.to(like), targets=chosen.labels.to(like.device)
    ).detach()  # (T, D)
    noise = torch.randn(like.shape[1], generator=generator, dtype=like.dtype).to(like.device)
    total = like.new_tensor(drift.shares) @ sent + drift.others[number % len(drift.others)]
    return replace(seen, gradient=(total + drift.noise_std * noise)[None])


def _moments(found: Tensor, truth: Tensor) -> tuple[float, float, float]:
    """<u, v>, <u, u> and <v, v> of (B, P) rows, the found ones in the order that suits best."""
    from scipy.optimize import linear_sum_assignment

    _, order = linear_sum_assignment(torch.cdist(truth.double(), found.double()).cpu().numpy())
    found = found[torch.from_numpy(order).to(found.device)]
    return (
        float((found * truth).sum()),
        float(found.square().sum()),
        float(truth.square().sum()),
    )
