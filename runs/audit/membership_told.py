"""What was found of membership, as the object of membership.json and in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...attacks.membership.against_proof import Measured, ProvenLimit, exceeds, measure
from ...attacks.membership.confidences import AVERAGE, OWNER
from ...attacks.membership.membership import ATTACKED, Attacked, Inference, Played
from ...attacks.membership.pool import Pool
from ...attacks.membership.roc import Rate
from ...privacy.guarantee import WrittenStatus
from ..evidence.membership import (
    ExposedRecord,
    GuessedGames,
    Membership,
    MembershipAgent,
    MembershipCurve,
    MembershipPart,
    MembershipRate,
    MembershipRow,
    MembershipVerdict,
)
from ..numbers import bound, lower_bound, small
from ..run_file.build import statement_of
from ..run_file.run_file import RunFile

RATES = (0.001, 0.01)
_CONFIDENCE = 0.95
_DRAWN = ((OWNER, "LiRA online"), (AVERAGE, "RMIA online"), (AVERAGE, "loss threshold"))
_EXPOSED = 10  # records that are listed
_LIMIT = tuple(float(rate) for rate in np.geomspace(1e-4, 1.0, 41))


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What is proven of holders of the final models; `limit` is None where nothing is.

    `victim` is the agent whose record is worst off.
    """

    limit: ProvenLimit | None
    status: WrittenStatus
    because: str
    victim: int = 0


def told(
    config: RunFile,
    found: Inference,
    pool: Pool,
    proof: Proof,
    *,
    rounds: int,
    multiplier: float,
) -> Membership:
    """The object of membership.json, without records that are listed.

    Args:
        config: the run file.
        found: what the attacks find; in the run itself, too.
        pool: the records at stake.
        proof: what is proven.
        rounds: that the run trained.
        multiplier: noise multiplier of the run.
    """
    assert found.run is not None  # noqa: S101 # final models were given
    limit, games = proof.limit, found.games
    guessed = None
    if limit is not None and games is not None:
        guessed = measure(games.scores, games.included, limit, confidence=_CONFIDENCE)
    run = _part(found.run, limit)
    played = None if games is None else _part(games, limit)
    verdict = _verdict(limit, played, guessed)
    return Membership(
        version=1,
        references=found.references,
        games=0 if games is None else len(games.included) // len(pool.owners),
        records=len(pool.owners),
        rounds=rounds,
        noise_multiplier=multiplier,
        confidence=_CONFIDENCE,
        delta=statement_of(config).delta,
        proven_epsilon=None if limit is None else limit.epsilon,
        status=proof.status,
        because=proof.because,
        limit=[] if limit is None else [(a, limit.true_positive_rate(a)) for a in _LIMIT],
        run=run,
        played=played,
        guessed=None
        if guessed is None
        else GuessedGames(
            model=guessed.guesser[0],
            attack=guessed.guesser[1],
            right=guessed.right,
            guesses=guessed.made,
            coins=guessed.coins,
            epsilon=guessed.epsilon,
        ),
        verdict=verdict,
        words=_words(verdict, limit, guessed, run, because=proof.because),
    )


def _verdict(
    limit: ProvenLimit | None, played: MembershipPart | None, guessed: Measured | None
) -> MembershipVerdict:
    if limit is None:
        return "nothing proven"
    if played is None or guessed is None:
        return "no games"
    if guessed.contradicted:
        return "contradicted"
    return "suspicious" if any(row.above_limit for row in played.rows) else "within the proof"


def _words(
    verdict: MembershipVerdict,
    limit: ProvenLimit | None,
    guessed: Measured | None,
    run: MembershipPart,
    *,
    because: str,
) -> str:
    """What follows, and what does not."""
    if limit is None:
        return (
            f"Nothing is proven of holders of the final models ({because}), so that no success of "
            "an attack is too large"
        )
    proven = f"epsilon {bound(limit.epsilon)} at delta {small(limit.delta)}"
    if guessed is None:
        return f"No games were played, so nothing is checked against the proven {proven}"
    right = (
        f"{guessed.right} of {guessed.made} guesses about {guessed.coins} assignments were right, "
        f"by {guessed.guesser[1]} on the model of {guessed.guesser[0]}: epsilon is at least "
        f"{lower_bound(guessed.epsilon)} at {100 * guessed.confidence:g} % confidence"
    )
    tail = {
        "contradicted": f", more than the proven {proven}: proof, code or this test is wrong",
        "suspicious": f"; a rate lies above what the proven {proven} allows if records were "
        "independent, which one run's are not: play more games",
        "within the proof": f", and {proven} is proven; an attack that fails proves nothing",
    }[verdict]
    if verdict != "contradicted" and any(row.above_limit for row in run.rows):
        tail += (
            "; in the run itself a rate lies above the limit: held-out records may differ from "
            "those of the training set, so compare the games"
        )
    return right + tail


def _part(played: Played, limit: ProvenLimit | None) -> MembershipPart:
    """Of every attack on the average and on the owners' models; of the agents' the worst off."""
    by_agent = [row for row in played.rows if row.model not in (AVERAGE, OWNER)]
    named = [row for row in played.rows if row.model in (OWNER, AVERAGE)]
    named += sorted(by_agent, key=lambda row: -row.roc.auc)[:1]
    tests = len(played.rows) * len(RATES)
    every = {(row.model, row.attack): row for row in played.rows}
    return MembershipPart(
        members=named[0].roc.members,
        others=named[0].roc.others,
        rows=[_row(row, limit, tests=tests) for row in named],
        agents=[
            MembershipAgent(
                agent=int(row.model.removeprefix("agent ")),
                auc=row.roc.auc,
                auc_error=row.roc.auc_error,
            )
            for row in by_agent
            if row.attack == ATTACKED[1]
        ],
        curves=[
            MembershipCurve(model=model, attack=attack, points=every[model, attack].roc.points())
            for model, attack in _DRAWN
        ],
    )


def _row(row: Attacked, limit: ProvenLimit | None, *, tests: int) -> MembershipRow:
    rates = [row.roc.at(rate) for rate in RATES]
    above = None if limit is None else any(exceeds(rate, limit, tests=tests) for rate in rates)
    return MembershipRow(
        model=row.model,
        attack=row.attack,
        auc=row.roc.auc,
        auc_error=row.roc.auc_error,
        rates=[_rate(rate, limit) for rate in rates],
        above_limit=above,
    )


def _rate(rate: Rate, limit: ProvenLimit | None) -> MembershipRate:
    value = low = high = None
    if rate.measured:
        value, low, high = rate.true_positive_rate(confidence=_CONFIDENCE)
    return MembershipRate(
        asked=rate.asked,
        needed=rate.needed,
        true_positive_rate=value,
        low=low,
        high=high,
        allowed=None if limit is None else limit.true_positive_rate(rate.asked),
    )


def exposed(found: Inference, pool: Pool) -> list[ExposedRecord]:
    """The training records that the attack which is named first is surest of."""
    assert found.run is not None  # noqa: S101 # final models were given
    scores = found.run.scores[ATTACKED]
    inside = np.flatnonzero(pool.trained)
    order = inside[np.argsort(-scores[inside], kind="stable")][:_EXPOSED]
    return [
        ExposedRecord(
            record=int(pool.indices[i]), agent=int(pool.owners[i]), score=float(scores[i])
        )
        for i in order
    ]
