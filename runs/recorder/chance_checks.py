"""Checks by exact tests: what is left is the declared noise, and batches are Poisson.

Beside what the audit's own checks of noise test, what is left of a release is held against the sum
that it should have nothing of any more, and against what clipping took off:

    <left, S> / sd, <left, E> / sd        standard normal for any fixed S and E, and for

    sum_i w_i <left_i, E_i> / sd          all releases together, w_i = 1 / std_i^2

since the noise was drawn after batch and point were fixed. A sum with another weight, or gradients
that are not clipped, leave a part along them, which shows long before the whole is too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import chdtr

from ...attacks.checks.noise_residuals import residual_check
from ...attacks.checks.result import TOTAL_FALSE_ALARM, Check, Finding
from ...attacks.checks.sampler import Batches, test_batches
from ...attacks.checks.schemes import test_pairs
from ...privacy.releases.lines import party_name
from ...privacy.releases.values import Clip
from ...training.noise_tests import laws
from .left_over import KeptRounds, LeftOver, Row

_NEEDED = 7.5  # deviations by which a fault must show, so that it is missed once in 100 or less
_SEEN = 2.0  # times what rounding accounts for


def check_residuals(of: LeftOver) -> Check:
    """What is left of releases is N(0, B B^T), by the tests of an audit."""
    name = "residuals"
    values = sum(len(row.left) for row in of.rows if row.deviation > 0)
    if not values:
        applies = any(one.noise for one in (row.at.release for row in of.rows))
        return Check.not_run(name, "no release of these rounds declares noise", applies=applies)
    found = residual_check(of)
    # If half of the noise were missing, this is what the variance of all would be.
    halved = float(chdtr(values, values / 4)) * max(found.tests, 1)
    if found.passed and halved >= TOTAL_FALSE_ALARM:
        return Check.not_run(
            name, f"{values} values are too few to see that half of the noise is missing"
        )
    return found


def check_sums(of: LeftOver) -> Check:
    """What is left has no part along the declared sums, nor along what clipping took off."""
    name = "sums"
    # Releases that hold a clipped vector, and of these what is tested for leftovers.
    bounded = [row for row in of.rows if any(math.isfinite(v.clip) for v in row.at.release.of)]
    if not bounded:
        return Check.not_run(
            name, "no release of these rounds holds a clipped vector", applies=False
        )
    noisy = [row for row in bounded if row.deviation > 0]
    # A rule of the system's own is in the oracle, too, so that nothing is left for clipping.
    clips = [v.clip for row in bounded for v in row.at.release.of]
    own = all(isinstance(clip, Clip) and not clip.parts for clip in clips)
    found, cut = Finding(), sum(row.clipped for row in bounded)
    along = _note(found, noisy, [row.total for row in noisy], "the sum of its gradients")
    beyond = _note(found, noisy, [row.cut_off for row in noisy], "what clipping took off")
    gradients = sum(row.gradients for row in bounded)
    words = (
        f"{len(bounded)} releases, {cut} of whose {gradients} gradients are longer than the clip "
        f"norm, were tested for parts along their sums and along what clipping took off "
        f"({found.counted})"
    )
    outcome = found.outcome
    # A test that passes says something only where a fault would have shown.
    if found.passed:
        exact = [row for row in bounded if row.is_drawn]
        seen = any(float(row.cut_off.norm()) > _SEEN * row.rounding for row in exact)
        why = ""
        needed = f"deviations of the noise, and {_NEEDED} are needed; keep more rounds, or let the "
        needed += "recorder draw the noise"
        if own and not cut:
            beyond = math.inf
        elif not cut:
            why = (
                f"none of {gradients} gradients is longer than the clip norm, so nothing tells "
                "whether longer ones would be clipped"
            )
        elif not seen and beyond < _NEEDED:
            why = f"if nothing were clipped it would show by {beyond:.1f} {needed}"
        if not why and len(exact) < len(bounded) and along < _NEEDED:
            why = f"a sum of twice the weight would show by {along:.1f} {needed}"
        if why:
            return Check.not_run(name, why)
        outcome = f"none fails, and a sum of twice the weight would show by {along:.1f} deviations"
        rule = "and vectors are bounded as the oracle bounds them"
        outcome += f", {rule if own else f'one without clipping by {beyond:.1f}'}"
    words += f"; {outcome}."
    return Check(name=name, passed=found.passed, p=found.p, tests=found.tests, words=words)


def _note(found: Finding, rows: Sequence[Row], along: Sequence[torch.Tensor], what: str) -> float:
    """Note each row's test and that of all; by how many deviations the whole direction shows."""
    shown = 0.0
    for width in sorted({len(row.left) for row in rows}):
        every = [(r, a) for r, a in zip(rows, along, strict=True) if len(a) == width]
        every = [(r, a) for r, a in every if float(a.norm()) > _SEEN * r.rounding]
        if not every:
            continue
        # The part of what is left along each direction, less what rounding may be.
        directions = torch.stack([a / r.deviation**2 for r, a in every]).numpy()
        left = torch.stack([r.left for r, _ in every]).numpy()
        lost = np.array([r.resolution for r, _ in every]) * np.linalg.norm(directions, axis=1)
        parts, noise = (left * directions).sum(axis=1), _covariance([r for r, _ in every])
        variance = noise * (directions @ directions.T)
        for i, (row, _) in enumerate(every):
            z = max(abs(parts[i]) - lost[i], 0.0) / math.sqrt(variance[i, i])
            words = f"{row.at.where} has a part along {what}, {z:.3g} deviations long"
            found.note(laws.beyond(z), what=words)
        # All releases together, and how far a fault of the whole size would stand out.
        total = float(variance.sum())
        if total <= 0:
            continue
        z = max(abs(float(parts.sum())) - float(lost.sum()), 0.0) / math.sqrt(total)
        words = f"{len(every)} releases together have a part along {what}, {z:.3g} deviations long"
        found.note(laws.beyond(z), what=words)
        power = sum(float(a.square().sum()) / r.deviation**2 for r, a in every)
        shown = max(shown, power / math.sqrt(total))
    return shown


def _covariance(rows: Sequence[Row]) -> np.ndarray:
    """(R, R) of a coordinate of the rows' declared noise."""
    found = np.zeros((len(rows), len(rows)))
    for i, row in enumerate(rows):
        for j, other in enumerate(rows):
            shared = {s.id: s.std for s in other.at.release.noise if s.id is not None}
            found[i, j] = (
                row.deviation**2
                if i == j
                else sum(s.std * shared.get(s.id, 0.0) for s in row.at.release.noise if s.id)
            )
    return found


def check_sampler(rounds: KeptRounds, records: dict[int, int]) -> Check:
    """Kept batches are Poisson at their declared rates.

    Args:
        records: by agent how many it holds, where the recorder did not draw its batches.
    """
    name = "sampler"
    sampled = any(v.rate < 1 for at in rounds.releases for v in at.release.of)
    if not sampled:
        return Check.not_run(name, "every record counts as taking part each time", applies=False)
    every, missing, fault = _batches(rounds, records)
    if fault:
        return Check.exact(name, f"{fault}.", tests=1, passed=False)
    if missing:
        return Check.not_run(name, missing)
    found, planted = Finding(), Finding()
    test_batches(found, every)
    test_batches(planted, [_shuffled(one) for one in every])
    pairs, by_pair = test_pairs([one.drawn for one in every])
    count = sum(len(of) for one in every for of in one.members)
    words = (
        f"{count} batches at the declared sampling rates "
        f"({', '.join(sorted({f'{one.rate:.4g}' for one in every}))}) were tested for "
        f"participations, sizes and what they have in common{by_pair}"
    )
    if found.passed and pairs.passed and planted.passed:
        return Check.not_run(
            name, f"{count} batches are too few to tell a shuffled epoch from Poisson's"
        )
    return Finding.of([found, pairs]).check(name, words)


def _batches(rounds: KeptRounds, records: dict[int, int]) -> tuple[list[Batches], str, str]:
    """Batches by name and rate, of the rounds in which the same agents have them.

    Returns:
        The batches; what is missing to test them; what is wrong with one.
    """
    # Batches by name, rate and round; each agent's is the same in all releases of a round.
    drawn: dict[tuple[str, float], dict[tuple[int, int], dict[int, tuple[int, np.ndarray]]]] = {}
    missing = ""
    for at in rounds.releases:
        who = party_name(at.release.sender, rounds.log.header)
        for j, vector in enumerate(at.release.of):
            if vector.rate >= 1 or vector.round is not None:
                continue
            count = at.kept.records.get(j, records.get(vector.owner))
            positions = at.kept.batches.get(j)
            if positions is None or count is None:
                if vector.owner == at.release.sender:
                    missing = missing or (
                        f"the batch of {at.where} was not kept" if positions is None else
                        f"how many records {who} holds is not declared; give "
                        f"records={{{vector.owner}: N}} or --holds {vector.owner}:N, or "
                        "release(..., records=N), which its transcript keeps and no line tells"
                    )  # fmt: skip
                continue
            held = positions.numpy()
            if len(held) and held[-1] >= count:
                why = f"holds position {held[-1]} of {count} records"
                return [], "", f"the batch of {at.where} {why}"
            by_round = drawn.setdefault((vector.batch, vector.rate), {})
            mine = by_round.setdefault((at.played.round, at.played.again), {})
            before = mine.setdefault(vector.owner, (count, held))
            if not np.array_equal(before[1], held):
                return [], "", f"the batch of {at.where} is another than in an earlier release"
    # Rounds in which the same agents drew from as many records are tested together.
    every = []
    for (batch, rate), by_round in drawn.items():
        alike: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
        for played, of in by_round.items():
            shape = tuple(sorted((agent, n) for agent, (n, _) in of.items()))
            alike.setdefault(shape, []).append(played)
        for shape, times in alike.items():
            members = [np.zeros((len(times), n), dtype=bool) for _, n in shape]
            for t, once in enumerate(times):
                for place, (agent, _) in enumerate(shape):
                    members[place][t, by_round[once][agent][1]] = True
            numbers, agents = [number for number, _ in times], [agent for agent, _ in shape]
            every.append(Batches(batch, rate, members, numbers, agents))
    return every, missing, ""


def _shuffled(of: Batches) -> Batches:
    """As many batches, of a sampler that goes through shuffled epochs in batches of one size."""
    chance = np.random.default_rng(0)
    members = []
    for member in of.members:
        rounds, n = member.shape
        size, found = round(of.rate * n), np.zeros_like(member)
        needed = -(-rounds * size // max(n, 1))
        order = np.concatenate([chance.permutation(n) for _ in range(max(needed, 1))])
        for t in range(rounds):
            found[t, order[t * size : (t + 1) * size]] = True
        members.append(found)
    return of._replace(members=members)
