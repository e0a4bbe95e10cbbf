"""The black-box audit of a run file or of a run: a canary that last models alone are asked of."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import cast

from ...attacks.audit.audited import AGAIN, deciding
from ...attacks.membership import black_box
from ...attacks.membership.black_box import SURE
from ...attacks.membership.roc import ProvenLimit
from ...privacy.accounting.request import Adjacency
from ...privacy.errors import InputError, Progress
from ...privacy.guarantee import Unit
from ...training.data.store import Examples
from ..errors import ContradictedProof
from ..folder import folder as run_folder
from ..numbers import bound, lower_bound, small
from ..plan.plan import make_plan
from ..requests import LastModelRequest
from ..run_file.build import build, check_classes, check_poisson, statement_of
from ..run_file.run_file import RunFile
from ..run_file.tables import find_device
from ..stop import Stop
from . import evidence
from .audit import check_auditable
from .membership import AuditedFolder, proof_of

_CONFIDENCE = 0.95
_SEED_BITS = 53  # so that every reader of JSON keeps the number


def audit_last_model_of_folder(
    folder: Path,
    request: LastModelRequest | None = None,
    *,
    again: bool = False,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> evidence.LastModel:
    """Audit what a folder's run file trains, at the noise of its ledger; write last-model.json.

    Args:
        folder: of `overhear train`.
        again: audit once more; what was found before stays beside it.
        progress: called with (runs done, in all, what comes next).
        stop: asked to stop, the audit ends at once and leaves the folder as it is.

    Raises:
        FileNotFoundError: no run is in the folder.
        FileExistsError: it was audited so already.
        ValueError: nothing is proven, or the price is too high.
        ContradictedProof: more was measured than is proven; last-model.json is written before.
        Interrupted: it was asked to stop.
    """
    opened = AuditedFolder.open(folder, run_folder.LAST_MODEL, again=again, stop=stop)
    noise_multiplier = opened.header.noise_multiplier
    found = audit_last_model(
        opened.config, request, noise_multiplier=noise_multiplier, progress=progress
    )
    earlier = opened.earlier(evidence.read_last_model(folder), evidence.EarlierLastModel)
    # A suspicion stands until a look that is four times as close clears it.
    doubted = any(
        one.verdict == "suspicious"
        and (found.verdict == "not measured" or found.runs < AGAIN * one.runs)
        for one in earlier
    )
    verdict = found.verdict
    if doubted and verdict in ("consistent", "cleared", "not measured"):
        verdict = "suspicious"
    found = opened.keep(found, earlier, verdict=verdict)
    raise_last_model(found)
    return found


def audit_last_model(
    config: RunFile,
    request: LastModelRequest | None = None,
    *,
    noise_multiplier: float | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> evidence.LastModel:
    """Train a run file over and over, with a canary and without, and ask the last models.

    Args:
        noise_multiplier: of the run; that of its plan by default.
        seed: of the coins; from the system's entropy by default.

    Raises:
        ValueError: nothing is proven of holders of the final models, or the price is too high.
    """
    # The run as it is planned; a canary is one record.
    asked = request or LastModelRequest()
    device = None if asked.device is None else find_device(asked.device, rounds=True)
    built = build(config, device=device)
    check_classes(built)
    check_poisson(built, "last models are audited by runs")
    plan = make_plan(
        config,
        graph=built.setting.graph,
        batch_size=built.batch_size,
        begun=noise_multiplier is not None,
    )
    multiplier = plan.noise_multiplier if noise_multiplier is None else noise_multiplier
    check_auditable(config, built, multiplier=multiplier)
    if plan.said_of.unit is Unit.USER:
        raise InputError(
            "[privacy] unit='user': the canary of `overhear audit-last-model` is one record, and "
            "what last models show of all records of a user is not measured; `overhear audit` "
            "plants all records of a user"
        )
    if plan.said_of.unit is Unit.AGENT:
        raise InputError(
            "[privacy] unit='agent': the canary of `overhear audit-last-model` is one record, and "
            "no last models of a run with and without all data of an agent are made here; "
            "`overhear audit` plants all data of an agent"
        )
    # Without a proof about the last models nothing could contradict it.
    proof = proof_of(config, built, multiplier=multiplier)
    if proof.limit is None:
        raise InputError(
            f"nothing is proven of holders of the final models ({proof.because}), so that there is "
            "nothing that last models could contradict; attack the run instead: "
            "`overhear membership`"
        )
    # A canary at the start that shows it best, and the game of runs with it and without.
    records = Examples(built.data.test_inputs, built.data.test_targets)
    replaced = plan.said_of.adjacency is Adjacency.REPLACE_ONE
    setting, canary = black_box.worst_start(built.setting, records, replaced=replaced)
    game = black_box.LastModelGame(
        setting=setting,
        bound=built.bound(multiplier),
        rounds=config.training.rounds,
        victim=proof.victim,
        canary=canary,
        scripts=plan.scripts,
    )
    seed = secrets.randbits(_SEED_BITS) if seed is None else seed
    measured = black_box.measure_last_model(
        game,
        proof.limit,
        runs=asked.runs,
        seed=seed,
        confidence=_CONFIDENCE,
        most_seconds=60.0 * asked.minutes,
        progress=progress,
    )
    first, again, fresh = measured.bound, measured.again, measured.fresh
    second = None
    if again is not None and fresh is not None:
        second = evidence.SecondLastModel(
            epsilon=again.epsilon, confidence=SURE, fresh_epsilon=fresh.epsilon
        )
    verdict, epsilon = measured.verdict, proof.limit.epsilon
    return evidence.LastModel(
        version=1,
        runs=asked.runs,
        rounds=config.training.rounds,
        noise_multiplier=multiplier,
        confidence=_CONFIDENCE,
        delta=statement_of(config).delta,
        seed=seed,
        victim=proof.victim,
        model="victim" if measured.model == "victim" else "average",
        proven_epsilon=epsilon,
        measured_epsilon=deciding(verdict, epsilon, first=first, fresh=fresh, again=again).epsilon,
        ideal_epsilon=measured.ideal,
        guesses=first.guesses,
        false_alarms=first.false_alarms,
        misses=first.misses,
        second=second,
        verdict=cast(evidence.LastModelVerdict, verdict.value),
        words=_words(measured, proof.limit, runs=asked.runs),
    )


def raise_last_model(found: evidence.LastModel) -> None:
    """Raise what was found against a proof, now or before.

    Raises:
        ContradictedProof: more was measured than is proven, twice.
    """
    said = [found.words] if found.verdict == "contradicted" else []
    said += [
        f"{one.file} found: {one.verdict}" for one in found.earlier if one.verdict == "contradicted"
    ]
    if said:
        raise ContradictedProof("; ".join(said))


def _words(found: black_box.LastModelMeasured, limit: ProvenLimit, *, runs: int) -> str:
    """What follows, and what does not."""
    first = found.bound
    proven = f"epsilon {bound(limit.epsilon)} at delta {small(limit.delta)}"
    of = "the victim's last model" if found.model == "victim" else "the average of the last models"
    said = (
        f"{first.guesses - first.errors} of {first.guesses} guesses from {of} were right: epsilon "
        f"is at least {lower_bound(first.epsilon)} at {100 * first.confidence:g} % confidence, and "
        f"{proven} is proven"
    )
    # The second look decides; otherwise what so many runs could have shown.
    if found.again is not None and found.fresh is not None:
        once_more = (
            f"{said}; {runs} fresh runs show {lower_bound(found.fresh.epsilon)} at "
            f"{100 * found.fresh.confidence:g} % and {lower_bound(found.again.epsilon)} at "
            f"{100 * found.again.confidence:g} %"
        )
        return {
            "contradicted": f"{once_more}: proof, code or this test is wrong",
            "suspicious": f"{once_more}, which neither clears nor contradicts: audit again",
        }.get(found.verdict.value, f"{once_more}, which clears it")
    if found.verdict.value == "not measured":
        could = "no number of them would" if found.needed is None else f"about {found.needed} could"
        return (
            f"{said}; {runs} runs show at best {lower_bound(found.ideal)}, less than a tenth of "
            f"it, and {could}"
        )
    return (
        f"{said}; who sees all that the proof counts would show {lower_bound(found.ideal)} in as "
        "many runs"
    )
