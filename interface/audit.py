"""The public name `audit`: bound epsilon from below by what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..privacy.errors import InputError, InputTypeError
from ..runs.audit.audit import audit_config
from ..runs.run_file.run_file import RunFile
from .plan import config_of
from .run import Run
from .shown import AuditResult, audit_of_folder

if TYPE_CHECKING:
    from ..attacks.foreign.audit_training import TrainingAudit
    from ..attacks.foreign.claimed import Claimed
    from ..attacks.foreign.scores_audit import ScoresAudit

__all__ = ["audit"]


def audit(
    target: Run | str | Path | RunFile | Mapping[str, Any] | Callable[..., Any] | Any = None,
    data: Any = None,
    *,
    scores: Any = None,
    **options: Any,
) -> AuditResult | ScoresAudit | TrainingAudit:
    """Bound epsilon from below by what an adversary could measure.

    Args:
        target: a `Run` or its folder; the path or the tables of a run file, which is played anew;
            a function ``train(dataset)`` of one's own training, or ``train(X, y)`` where data are
            arrays; or an estimator with ``fit(X, y)``, such as those of scikit-learn.
        data: of a function or an estimator the (n) records: a data set of torch, or (X, y).
        scores: in place of a target the scores of canaries that somebody else computed, as
            `Planted.score` gives them; with a claim: epsilon= and delta=, or more.
        options: of a run the keys of [audit], such as canaries=500, and device; of a folder again
            as well; of a run file set and noise_multiplier.

    Raises:
        FileNotFoundError: no finished run is in the folder.
        FileExistsError: the run was audited already; again=True keeps that beside.
        ValueError: there is nothing that can be audited.
        TypeError: something else.
    """
    if data is not None:
        options["data"] = data
    if scores is not None:
        if target is not None:
            raise InputError("target and scores exclude each other; give one of them")
        return _of_scores(scores, **options)
    if target is None:
        raise InputError("audit needs a run, a function that trains, or scores=...")
    if isinstance(target, Run):
        return audit_of_folder(target.folder, **options)
    if isinstance(target, str | Path) and Path(target).suffix != ".toml":
        return audit_of_folder(Path(target), **options)
    if isinstance(target, str | Path | RunFile | Mapping):
        return _of_run_file(target, **options)
    if callable(target) or hasattr(target, "fit"):
        from ..attacks.foreign.audit_training import audit_training

        return audit_training(target, **options)
    raise InputTypeError(
        "target must be a Run, a folder, a run file, a function that trains or an estimator, "
        f"not a {type(target).__name__}"
    )


def _of_scores(
    scores: Any,
    *,
    included: Any = None,
    claim: Claimed | None = None,
    confidence: float = 0.95,
    ratios: bool = False,
    **of_claim: Any,
) -> ScoresAudit:
    from ..attacks.foreign.claimed import claimed
    from ..attacks.foreign.scores_audit import audit_scores

    if (claim is None) == (not of_claim):
        found = "neither" if claim is None else "both"
        raise InputError(f"give claim, or epsilon and delta, exactly one of them; {found} given")
    return audit_scores(
        scores,
        included,
        claim=claimed(**of_claim) if claim is None else claim,
        confidence=confidence,
        ratios=ratios,
    )


def _of_run_file(
    run: str | Path | RunFile | Mapping[str, Any],
    *,
    set: Mapping[str, Any] | None = None,
    noise_multiplier: float | None = None,
    device: str | None = None,
    **keys: Any,
) -> AuditResult:
    asked = {**(set or {}), **{f"audit.{key}": value for key, value in keys.items()}}
    found = audit_config(config_of(run, asked), noise_multiplier=noise_multiplier, device=device)
    return AuditResult(found)
