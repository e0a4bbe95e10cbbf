"""The public names that are commands, too, but for `budget`, `report` and `account`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..privacy.errors import InputError, InputTypeError
from ..runs.requests import GradientRequest, PlotRequest, request_of
from ..runs.run_file.run_file import RunFile, load_run_file, read_tables
from ..runs.stop import tell
from ..training.own.objects import lend
from .run import Checked, Run
from .shown import (
    AttackResult,
    AuditResult,
    GradientResult,
    attack_of_folder,
    audit_of_folder,
    gradient_result,
    in_pyplot,
    overrides_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..attacks.foreign.audit_training import TrainingAudit
    from ..attacks.foreign.claimed import Claimed
    from ..attacks.foreign.inference import MembershipResult
    from ..attacks.foreign.scores_audit import ScoresAudit
    from ..privacy._validate import Progress
    from ..reports.compare import Comparison
    from ..reports.sweep.table import SweepTable
    from ..runs.attack.gradients_schema import GradientAttack
    from ..runs.plan.plan import Plan
    from ..runs.plan.schema import Compared
    from ..runs.stop import Stop
    from ..runs.sweep.sweep import Swept
    from ..training.models.metrics import Metrics

    OnRound = Callable[[int, int, float | None, Metrics | None], None]

__all__ = ["attack", "audit", "check", "compare", "config_of", "design", "invert", "plan"]
__all__ += ["plot", "sweep", "table", "train"]

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
    from ..runs.audit.audit import audit_config

    asked = {**(set or {}), **{f"audit.{key}": value for key, value in keys.items()}}
    found = audit_config(config_of(run, asked), noise_multiplier=noise_multiplier, device=device)
    return AuditResult(found)


# The public name `attack`: rebuild records from what was intercepted, or infer membership.


def attack(
    target: Run | str | Path | Callable[..., Any], **options: Any
) -> AttackResult | GradientResult | MembershipResult:
    """Attack a run, intercepted gradients, or models of one's own training.

    Args:
        target: a `Run` or its folder, whose intercepted messages are attacked; a file of gradients,
            as `overhear invert` takes it; or a function ``train(dataset) -> model``,
            on which membership is inferred.
        options: of a run the keys of [attack], such as presets=["matched"] and images=8, device,
            and name, of a further attack; of gradients those of `overhear invert`, model and out
            at least, where model may be a network or a function, too; of a function data, method
            ("lira" or "rmia"), references and records.

    Raises:
        FileNotFoundError: no finished run is in the folder.
        FileExistsError: the run was attacked in this way already.
        ValueError: there is nothing that the attack can be mounted on.
        TypeError: something else, or an option that the target does not take.
    """
    if isinstance(target, Run):
        return attack_of_folder(target.folder, **options)
    if isinstance(target, str | Path):
        path = Path(target)
        if path.is_file():
            return _of_gradients(path, **options)
        return attack_of_folder(path, **options)
    if callable(target):
        from ..attacks.foreign.inference import membership

        return membership(target, **options)
    raise InputTypeError(
        f"target must be a Run, a folder, a file of gradients or a function that trains, not a "
        f"{type(target).__name__}"
    )


def _of_gradients(
    path: Path, *, progress: Progress | None = None, stop: Stop | None = None, **options: Any
) -> GradientResult:
    from ..runs.attack.invert import attack_gradients
    from ..runs.requests import GradientRequest, request_of

    model = options.get("model", "")
    if not isinstance(model, str):
        from torch.nn import Module

        if not isinstance(model, Module) and not callable(model):
            raise InputTypeError(
                f"model must be a network, a function (input_shape, classes) of yours, or the name "
                f'of one, such as "my_model:build", not a {type(model).__name__}'
            )
        builder = (lambda *_: deepcopy(model)) if isinstance(model, Module) else model
        called = getattr(model, "__name__", type(model).__name__)
        options["model"] = lend(builder, called=called, key="model")
    for name in ("out", "weights", "before", "prior", "truth", "vocabulary", "columns"):
        if isinstance(options.get(name), str):
            options[name] = Path(options[name])
    asked = request_of(GradientRequest, {"gradients": path, **options}, of="an attack on gradients")
    return gradient_result(attack_gradients(asked, progress=progress, stop=stop), asked.out)


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
    from ..runs.folder.resume import resume_run
    from ..runs.folder.run import train_run

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
    from ..runs.plan.plan import make_plan

    return make_plan(config_of(run, set))


def invert(gradients: str | Path, **options: Any) -> GradientAttack:
    """Try to rebuild the records behind gradients from elsewhere; see `overhear.attack`.

    Args:
        gradients: path of the file.
        options: those of `overhear invert`, model and out at least.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is nothing that the attack can be mounted on.
        TypeError: an option that it does not take.
    """
    if not Path(gradients).is_file():
        raise FileNotFoundError(f"no file of gradients at {gradients}")

    return cast("GradientAttack", attack(gradients, **options))


invert.__signature__ = inspect.signature(GradientRequest).replace(  # type: ignore[attr-defined]
    return_annotation="GradientAttack"
)


def design(
    run: str | Path | Mapping[str, Any] | RunFile,
    *,
    groups: int | None = None,
    set: Mapping[str, Any] | None = None,
) -> Compared:
    """Compare kinds of noise for a run's graph and rounds, at equal epsilon.

    Args:
        run: path of a run file, or its tables as a dict; with a target epsilon.
        groups: how many of its rounds form a group, as the command takes it.
        set: values by "table.key" that replace those of the run.

    Raises:
        ValueError: with one sentence for each problem.
    """
    from ..runs.plan.design_compare import compare as compare_noise

    return compare_noise(config_of(run, set), groups=groups)


def check(run: Run | str | Path, policy: str | Path | Mapping[str, Any]) -> Checked:
    """Check a run against a policy: true where every requirement is met.

    Args:
        run: a `Run` or its folder.
        policy: path of a policy, or its tables.

    Raises:
        FileNotFoundError: no run or no policy is there.
        ValueError: the policy or the run cannot be read.
    """
    return (run if isinstance(run, Run) else Run(run)).check(policy)


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Say what finished runs have in common and where they differ; a table in a notebook.

    Args:
        runs: two or more, or their folders.

    Raises:
        FileNotFoundError: no run is in a folder.
        ValueError: fewer than two, or a run was changed after it was written.
    """
    from ..reports.compare import compare_runs

    return compare_runs([run.folder if isinstance(run, Run) else Path(run) for run in runs])


def sweep(
    file: str | Path,
    out: str | Path,
    *,
    jobs: int | None = None,
    devices: Sequence[str] = (),
    retry: bool = False,
) -> Swept:
    """Train every combination of a sweep file, each with several seeds.

    Args:
        file: the sweep file.
        out: its folder, which goes on where it stopped.
        jobs: processes at once; by default one for each device, or each core.
        devices: that the runs share, such as "cuda:0"; () as the run file says.
        retry: whether runs that failed are tried again.

    Raises:
        FileExistsError: the folder holds something else, or another sweep.
        ValueError: a key, value or setting that no run can have.
    """
    from ..runs.sweep.engine import Engine
    from ..runs.sweep.sweep import run_sweep
    from ..runs.sweep.sweep_file import read_sweep_file

    found, base = read_sweep_file(Path(file))
    return run_sweep(found, base, Path(out), engine=Engine(jobs=jobs, devices=devices), retry=retry)


def table(
    folder: Swept | str | Path,
    *,
    value: str = "accuracy",
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> SweepTable:
    """Make the table of a sweep: means over its seeds, with errors and epsilon.

    Args:
        folder: of the sweep, or what `sweep` gave back.
        value: accuracy, loss, auroc, rmse, psnr, ...
        rows: swept keys that name a line; by default all that are no columns.
        columns: swept keys whose values are compared apart.

    Raises:
        FileNotFoundError: the folder holds no sweep.
        ValueError: a key that was not swept, or a value that no run has.
    """
    from ..reports.sweep.table import sweep_table

    return sweep_table(_folder(folder), value=value, rows=rows, columns=columns)


def plot(folder: Swept | str | Path, **asked: Any) -> Figure:
    """Draw the curves of a sweep, with bands over its seeds, or its gallery; needs matplotlib.

    Args:
        folder: of the sweep, or what `sweep` gave back.
        asked: as of `overhear plot`, such as y="loss", panel=["data.agents", "privacy.epsilon"].

    Raises:
        FileNotFoundError: the folder holds no sweep.
        ValueError: a name that the sweep has no figure of, or options that contradict each other.
        TypeError: an option that it does not take.
    """
    from ..reports.sweep.plot import figure_of

    return in_pyplot(figure_of(_folder(folder), request_of(PlotRequest, asked, of="a plot")))


def _folder(of: Swept | str | Path) -> Path:
    return Path(of) if isinstance(of, str | Path) else of.out
