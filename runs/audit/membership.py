"""Membership inference on a finished run: its final models, and games that coins decide."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from torch import Tensor

from ...attacks.audit.audit import claim_of
from ...attacks.membership.against_proof import ProvenLimit
from ...attacks.membership.membership import infer_membership
from ...attacks.membership.pool import make_pool
from ...privacy._validate import StatedProgress
from ...privacy.adversary import FINAL_MODELS
from ...privacy.errors import InputError
from ...privacy.guarantee import Status
from ...training.engine.checkpoint import load_checkpoint
from ..errors import ContradictedProof
from ..evidence.membership import EarlierMembership, Membership, read_membership
from ..folder import folder as run_folder
from ..folder.records import LedgerHeader
from ..plan.plan import make_plan
from ..run_file.build import Built, build, check_classes, check_poisson, parts_of, statement_of
from ..run_file.device import find_device
from ..run_file.run_file import RunFile
from ..stop import Stop
from .aside import AuditedFolder
from .membership_told import Proof, exposed, told
from .requests import MembershipRequest


def audit_membership(
    folder: Path,
    request: MembershipRequest | None = None,
    *,
    generator: np.random.Generator | None = None,
    progress: StatedProgress | None = None,
    stop: Stop | None = None,
) -> Membership:
    """Attack the final models of a finished run, and write membership.json.

    Args:
        folder: of `overhear train`.
        request: how much.
        generator: of coins; from the system's entropy by default.
        progress: called with (trainings done, in all, what comes next).
        stop: asked to stop, the audit ends at once and leaves the folder as it is.

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
    last = run_folder.last_round(folder)
    device = None if asked.device is None else find_device(asked.device, rounds=True)
    built = build(config, device=device)
    models = final_models(folder, header, last, field=built.algorithm.model)
    check_classes(built)
    check_poisson(built, "membership is inferred from runs")
    multiplier = header.noise_multiplier
    source = generator or np.random.default_rng()
    pool = make_pool(built.data, parts_of(config, built.data), most=asked.records, generator=source)
    scripts = make_plan(
        config, graph=built.setting.graph, batch_size=built.batch_size, begun=True
    ).scripts
    found = infer_membership(
        built.setting,
        built.bound(multiplier),
        pool,
        models=models,
        rounds=last,
        references=asked.references,
        games=asked.games,
        generator=source,
        scripts=scripts,
        most_seconds=60.0 * asked.minutes,
        progress=progress,
    )
    proof = proof_of(config, built, multiplier=multiplier)
    said = told(config, found, pool, proof, rounds=last, multiplier=multiplier)
    listed = {"exposed": exposed(found, pool)} if asked.show_records else {}
    earlier = opened.earlier(read_membership(folder), EarlierMembership)
    said = opened.keep(said, earlier, **listed)
    raise_membership(said)
    return said


def raise_membership(found: Membership) -> None:
    """Raise what was found against a proof.

    Raises:
        ContradictedProof: right guesses that the proof does not allow.
    """
    if found.verdict == "contradicted":
        raise ContradictedProof(found.words)


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
    """What is proven of holders of the final models about any agent's record.

    Args:
        config: the run file.
        built: its objects.
        multiplier: noise multiplier of the run.
    """
    p = config.privacy
    if p is None or built.clip_norm is None or multiplier == 0:
        return Proof(
            limit=None, status=Status.NO_PROTECTION, because="nothing is clipped or hidden"
        )
    asked = p.with_noise(
        multiplier,
        adversary=FINAL_MODELS.name,
        adversaries=(FINAL_MODELS.name,),
        victim=None,
        holders=None,
        records_held=None,
        unit="record",  # guesses are about records, whatever the run's figures are about
    )
    of_records = config.model_copy(update={"privacy": asked})
    plan = make_plan(
        of_records,
        graph=built.setting.graph,
        batch_size=built.batch_size,
        begun=True,
        notice=lambda _: None,  # its caller planned the same rounds
    )
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
