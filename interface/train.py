"""The public names `plan`, `train` and `audit`, which begin with what trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..privacy.errors import InputError, InputTypeError
from ..runs.audit.audit import audit_config
from ..runs.folder.resume import resume_run
from ..runs.folder.run import train_run
from ..runs.plan.plan import Plan, make_plan
from ..runs.run_file.run_file import RunFile, load_run_file, read_tables
from ..runs.stop import tell
from ..training.models.metrics import Metrics
from .run import Run
from .shown import AuditResult, audit_of_folder, overrides_of

if TYPE_CHECKING:
    from ..attacks.foreign.audit_training import TrainingAudit
    from ..attacks.foreign.claimed import Claimed
    from ..attacks.foreign.scores_audit import ScoresAudit

__all__ = ["audit", "config_of", "plan", "train"]

# The public name `audit`: bound epsilon from below by what was measured.


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


OnRound = Callable[[int, int, float | None, Metrics | None], None]

# The public name `train`: a run from Python, into a folder as `overhear train` leaves it.


def train(
    run: str | Path | Mapping[str, Any] | RunFile,
    out: str | Path,
    *,
    set: Mapping[str, Any] | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
) -> Run:
    """Train a run into a folder, with its ledger, and give it back.

    Args:
        run: path of a run file, or its tables as a dict, where a name may be the object itself.
        out: the folder; new, or with `resume` that of an unfinished run.
        set: values by "table.key" that replace those of the run.
        resume: whether to go on with the run in the folder.
        on_round: called with the round, the number of rounds, epsilon of the target adversary so
            far (None where it is not known) and the test metrics (None between evaluations). It
            changes nothing of the training.

    Raises:
        FileExistsError: the folder holds a run.
        FileNotFoundError: no such run file, or nothing to go on with.
        ValueError: with one sentence for each problem.
        OSError: the system refuses a file; what was released is in the ledger.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = train({
    ...         "data": {"name": "digits", "agents": 3}, "model": {"name": "linear"},
    ...         "algorithm": {"name": "dp-dpsgd"}, "privacy": {"epsilon": 3, "delta": 1e-5},
    ...         "training": {"rounds": 2, "sampling_rate": 0.1},
    ...     }, out=f"{folder}/run")
    ...     print(found.ledger.rounds)
    2
    """
    if on_round is not None and not callable(on_round):
        raise InputTypeError(f"on_round={on_round!r:.60} must be a function of four arguments")
    folder, config = Path(out), config_of(run, set, notice=tell)
    if resume:
        resume_run(config, folder, progress=on_round, notice=tell)
    else:
        train_run(config, folder, progress=on_round)
    return Run(folder)


# The public name `plan`: what a run will cost each adversary, before it is trained.


def config_of(
    run: str | Path | Mapping[str, Any] | RunFile,
    set: Mapping[str, Any] | None = None,
    *,
    notice: Callable[[str], None] | None = None,
) -> RunFile:
    """The run file that a path, tables of keys or a run file stand for, with some keys replaced.

    Args:
        run: path of a TOML file; keys by table, where a name may be the object itself; or a
            `RunFile`.
        set: values by "table.key".
        notice: told which files of the user run.

    Raises:
        FileNotFoundError: no such file.
        ValueError: with one sentence for each problem.
        TypeError: something else.
    """
    overrides = overrides_of(set or {})
    if isinstance(run, RunFile):
        return read_tables(run.tables(), overrides, where="run") if overrides else run
    if isinstance(run, Mapping):
        return read_tables(run, overrides)
    if isinstance(run, str | Path):
        return load_run_file(run, overrides, notice=notice)
    raise InputTypeError(
        f"run must be the path of a run file, a dict of its tables or a RunFile, not a "
        f"{type(run).__name__}"
    )


def plan(
    run: str | Path | Mapping[str, Any] | RunFile, *, set: Mapping[str, Any] | None = None
) -> Plan:
    """What a run will cost each adversary, as `overhear plan` says it.

    Args:
        run: path of a run file, or its tables as a dict, where a name may be the object itself.
        set: values by "table.key" that replace those of the run.

    Returns:
        Noise multiplier and a guarantee for each adversary, worst first; a table in a notebook.

    Raises:
        FileNotFoundError: no such file.
        ValueError: with one sentence for each problem; no noise meets the target.

    >>> found = plan({
    ...     "data": {"name": "digits", "agents": 5}, "model": {"name": "linear"},
    ...     "algorithm": {"name": "dp-dpsgd"}, "privacy": {"epsilon": 3, "delta": 1e-5},
    ...     "training": {"rounds": 20, "sampling_rate": 0.1},
    ... })
    >>> found.guarantees[0].epsilon <= 3, round(found.noise_multiplier, 3)
    (True, 1.095)
    """
    return make_plan(config_of(run, set))
