"""Membership inference on a finished run: its final models, and games that coins decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from ...attacks.audit.audit import claim_of
from ...attacks.membership.roc import ATTACKED, Measured, ProvenLimit, Rate, exceeds, measure
from ...attacks.membership.scores import (
    AVERAGE,
    OWNER,
    Attacked,
    Inference,
    Played,
    Pool,
    Trainer,
    infer_membership,
    make_pool,
)
from ...privacy.errors import InputError, Progress
from ...privacy.files import read_bounded, write_durably
from ...privacy.guarantee import FINAL_MODELS, Status, WrittenStatus
from ...training.engine.tensor_file import load_checkpoint
from ..described import LARGEST_OBJECT, Described
from ..errors import ContradictedProof
from ..folder import folder as run_folder
from ..folder.folder import check_sums, write_sums
from ..folder.records import LedgerHeader, header_of
from ..folder.released import read_released
from ..numbers import bound, lower_bound, small
from ..plan.plan import make_plan
from ..requests import MembershipRequest
from ..run_file.build import Built, build, check_classes, check_poisson, parts_of, statement_of
from ..run_file.run_file import ForeignFolder, RunFile
from ..run_file.tables import find_device
from ..stop import NOTHING_KEPT, Stop
from . import evidence

# What was found of membership, as the object of membership.json and in words.

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


def describe_membership(
    config: RunFile, found: Inference, pool: Pool, proof: Proof, *, rounds: int, multiplier: float
) -> evidence.Membership:
    """The object of membership.json, without records that are listed."""
    assert found.run is not None  # noqa: S101 # final models were given
    # Games bound epsilon, since a coin decides their records; the run's own had none.
    limit, games = proof.limit, found.games
    guessed = None
    if limit is not None and games is not None:
        guessed = measure(games.scores, games.included, limit, confidence=_CONFIDENCE)
    run = _part(found.run, limit)
    played = None if games is None else _part(games, limit)
    verdict = _verdict(limit, played, guessed)
    return evidence.Membership(
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
        else evidence.GuessedGames(
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
    limit: ProvenLimit | None, played: evidence.MembershipPart | None, guessed: Measured | None
) -> evidence.MembershipVerdict:
    if limit is None:
        return "nothing proven"
    if played is None or guessed is None:
        return "no games"
    if guessed.contradicted:
        return "contradicted"
    return "suspicious" if any(row.above_limit for row in played.rows) else "within the proof"


def _words(
    verdict: evidence.MembershipVerdict,
    limit: ProvenLimit | None,
    guessed: Measured | None,
    run: evidence.MembershipPart,
    *,
    because: str,
) -> str:
    """What follows, and what does not."""
    # Without a proof or a game nothing is checked.
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
    # What the games say of the proof, and then what the run's own rates do.
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


def _part(played: Played, limit: ProvenLimit | None) -> evidence.MembershipPart:
    """Of every attack on the average and on the owners' models; of the agents' the worst off."""
    by_agent = [row for row in played.rows if row.model not in (AVERAGE, OWNER)]
    named = [row for row in played.rows if row.model in (OWNER, AVERAGE)]
    named += sorted(by_agent, key=lambda row: -row.roc.auc)[:1]
    tests = len(played.rows) * len(RATES)
    every = {(row.model, row.attack): row for row in played.rows}
    return evidence.MembershipPart(
        members=named[0].roc.members,
        others=named[0].roc.others,
        rows=[_row(row, limit, tests=tests) for row in named],
        agents=[
            evidence.MembershipAgent.from_object(
                row.roc, agent=int(row.model.removeprefix("agent "))
            )
            for row in by_agent
            if row.attack == ATTACKED[1]
        ],
        curves=[
            evidence.MembershipCurve(
                model=model, attack=attack, points=every[model, attack].roc.points()
            )
            for model, attack in _DRAWN
        ],
    )


def _row(row: Attacked, limit: ProvenLimit | None, *, tests: int) -> evidence.MembershipRow:
    rates = [row.roc.at(rate) for rate in RATES]
    above = None if limit is None else any(exceeds(rate, limit, tests=tests) for rate in rates)
    return evidence.MembershipRow(
        model=row.model,
        attack=row.attack,
        auc=row.roc.auc,
        auc_error=row.roc.auc_error,
        rates=[_rate(rate, limit) for rate in rates],
        above_limit=above,
    )


def _rate(rate: Rate, limit: ProvenLimit | None) -> evidence.MembershipRate:
    value = low = high = None
    if rate.measured:
        value, low, high = rate.true_positive_rate(confidence=_CONFIDENCE)
    return evidence.MembershipRate(
        asked=rate.asked,
        needed=rate.needed,
        true_positive_rate=value,
        low=low,
        high=high,
        allowed=None if limit is None else limit.true_positive_rate(rate.asked),
    )


def exposed(found: Inference, pool: Pool) -> list[evidence.ExposedRecord]:
    """The training records that the attack which is named first is surest of."""
    assert found.run is not None  # noqa: S101 # final models were given
    scores = found.run.scores[ATTACKED]
    inside = np.flatnonzero(pool.trained)
    order = inside[np.argsort(-scores[inside], kind="stable")][:_EXPOSED]
    return [
        evidence.ExposedRecord(
            record=int(pool.indices[i]), agent=int(pool.owners[i]), score=float(scores[i])
        )
        for i in order
    ]


# A run folder that is audited: what is in it, and the result beside what was found before.

_Found = TypeVar("_Found", bound=Described)
_Earlier = TypeVar("_Earlier", bound=Described)


@dataclass(frozen=True, kw_only=True)
class AuditedFolder:
    """What an audit of a run folder begins with, and where its result goes.

    Attributes:
        folder: of `overhear train`.
        held: the result's place.
        stop: asked to stop, the audit ends at once and leaves the folder as it is.
    """

    folder: Path
    config: RunFile
    header: LedgerHeader
    held: Path
    stop: Stop

    @classmethod
    def open(
        cls,
        folder: Path,
        name: str,
        *,
        again: bool,
        stop: Stop | None,
        overrides: Sequence[str] = (),
        does: str = "audits",
    ) -> AuditedFolder:
        """Read it.

        Args:
            folder: of `overhear train`.
            again: whether a result that is there is no reason to stop.
            does: what --again does once more.

        Raises:
            FileNotFoundError: no finished run is in the folder.
            FileExistsError: the run was audited already.
            ValueError: the folder is not as it was written.
        """
        stop = stop or Stop()
        stop.note(NOTHING_KEPT)
        opened = ForeignFolder(folder)
        check_sums(folder)
        run_folder.require(folder, run_folder.RUN)
        config = opened.run_file(overrides)
        run_folder.require(folder, run_folder.LEDGER)
        header, held = header_of(read_released(folder)), folder / name
        if held.exists() and not again:
            raise FileExistsError(f"{held} exists; --again {does} once more and keeps it beside")
        return cls(folder=folder, config=config, header=header, held=held, stop=stop)

    def earlier(self, before: Any, kind: type[_Earlier], **others: Any) -> list[_Earlier]:
        """What is there already and those before it found, under the name that it gets.

        Args:
            before: what is there; None where nothing is.
            kind: of a summary, whose fields are those of `before`.
        """
        if before is None:
            return []
        count = 1
        while self._aside(count).exists():
            count += 1
        return [*before.earlier, kind.from_object(before, file=self._aside(count).name, **others)]

    def keep(self, found: _Found, earlier: Sequence[Any], **others: Any) -> _Found:
        """Write a result, and keep the one that was there; where it cannot be, leave all as it was.

        Raises:
            OSError: the system refuses.
        """
        digest = run_folder.digest(self.folder / run_folder.RUN)
        found = found.model_copy(update={"run_file": digest, "earlier": earlier} | others)
        self.stop.note(
            f"the audit was done, and is in {self.held} unless that was just being written"
        )
        self.stop.finish()
        kept = self.held.with_name(earlier[-1].file) if earlier else None
        try:
            if kept is not None:
                write_durably(kept, read_bounded(self.held, LARGEST_OBJECT))
            found.write(self.held)
        except OSError:
            if kept is not None:
                kept.unlink(missing_ok=True)
            raise
        if (self.folder / run_folder.SUMS).exists():
            write_sums(self.folder)
        return found

    def _aside(self, count: int) -> Path:
        """Where a result is kept once there are newer ones: audit-1.json, and so on."""
        return self.held.with_name(f"{self.held.stem}-{count}.json")


def audit_membership(
    folder: Path,
    request: MembershipRequest | None = None,
    *,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> evidence.Membership:
    """Attack the final models of a finished run, and write membership.json.

    Args:
        progress: called with (trainings done, in all, what comes next).

    Raises:
        FileNotFoundError: no finished run with final models is in the folder.
        FileExistsError: it was attacked already.
        ValueError: too few records or references, or a price above `minutes`.
        ContradictedProof: guesses contradict what is proven; membership.json is written before.
        Interrupted: it was asked to stop.
    """
    asked, name = request or MembershipRequest(), run_folder.MEMBERSHIP
    opened = AuditedFolder.open(folder, name, again=asked.again, stop=stop, does="attacks")
    config, header = opened.config, opened.header
    if not run_folder.has_ended(folder):
        raise InputError(
            f"{folder} holds a run that is not finished, and membership is inferred from final "
            f"models; `overhear train {folder / run_folder.RUN} --out {folder} --resume` finishes "
            "it"
        )
    # The final models, and records that were trained on or held out.
    last = run_folder.last_round(folder)
    device = None if asked.device is None else find_device(asked.device, rounds=True)
    built = build(config, device=device)
    models = final_models(folder, header, last, field=built.algorithm.model)
    check_classes(built)
    check_poisson(built, "membership is inferred from runs")
    multiplier = header.noise_multiplier
    source = np.random.default_rng()  # of coins: the system's entropy
    pool = make_pool(built.data, parts_of(config, built.data), most=asked.records, generator=source)
    scripts = make_plan(
        config, graph=built.setting.graph, batch_size=built.batch_size, begun=True
    ).scripts
    bound = built.bound(multiplier)
    inference = infer_membership(
        Trainer(setting=built.setting, bound=bound, pool=pool, rounds=last, scripts=scripts),
        models=models,
        references=asked.references,
        games=asked.games,
        generator=source,
        most_seconds=60.0 * asked.minutes,
        progress=progress,
    )
    # What was found beside what is proven, and after what was found before.
    proof = proof_of(config, built, multiplier=multiplier)
    said = describe_membership(config, inference, pool, proof, rounds=last, multiplier=multiplier)
    listed = {"exposed": exposed(inference, pool)} if asked.show_records else {}
    earlier = opened.earlier(evidence.read_membership(folder), evidence.EarlierMembership)
    said = opened.keep(said, earlier, **listed)
    if said.verdict == "contradicted":
        raise ContradictedProof(said.words)
    return said


def final_models(folder: Path, header: LedgerHeader, last: int, *, field: str) -> Tensor:
    """(A, D) that the run ended with, in the field of its state that holds the models."""
    path = run_folder.checkpoint(folder, last)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: the final models of the run are what membership is inferred from; "
            "put the file back from a copy of the run"
        )
    held = load_checkpoint(path)
    if held.facts.get("run") != header.run or field not in held.state:
        raise InputError(f"{path} is of another run than the ledger; put the run's own file back")
    return held.state[field]


def proof_of(config: RunFile, built: Built, *, multiplier: float) -> Proof:
    """What is proven of holders of the final models about any agent's record."""
    p = config.privacy
    if p is None or built.clip_norm is None or multiplier == 0:
        return Proof(
            limit=None, status=Status.NO_PROTECTION, because="nothing is clipped or hidden"
        )
    # The run as planned for holders of the final models, about single records.
    privacy_table = p.with_noise(
        multiplier,
        adversary=FINAL_MODELS.name,
        adversaries=(FINAL_MODELS.name,),
        victim=None,
        holders=None,
        records_held=None,
        unit="record",  # guesses are about records, whatever the run's figures are about
    )
    of_records = config.model_copy(update={"privacy": privacy_table})
    plan = make_plan(
        of_records,
        graph=built.setting.graph,
        batch_size=built.batch_size,
        begun=True,
        notice=lambda _: None,  # its caller planned the same rounds
    )
    # Only a proven and finite figure can be contradicted.
    stated = plan.guarantee(FINAL_MODELS.name)
    if stated.status is not Status.PROVEN or not math.isfinite(stated.epsilon):
        because = stated.because or "the figure is infinite"
        return Proof(limit=None, status=stated.status, because=because)
    claim = claim_of(
        plan.exposures[FINAL_MODELS.name],
        statement=statement_of(of_records),
        noise_multiplier=multiplier,
        rounds=plan.rounds,
    )
    limit = ProvenLimit(claim=claim, epsilon=stated.epsilon, delta=stated.delta)
    victim = plan.exposures[FINAL_MODELS.name].victim
    return Proof(limit=limit, status=Status.PROVEN, because="", victim=victim)
