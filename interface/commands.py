"""The public names that are commands, too, and begin without torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..privacy.errors import InputTypeError
from ..runs.requests import GradientRequest, PlotRequest, request_of
from ..runs.run_file.run_file import RunFile
from ..training.own.objects import lend
from .run import Checked, Run
from .shown import AttackResult, GradientResult, attack_of_folder, gradient_result, in_pyplot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..attacks.foreign.inference import MembershipResult
    from ..privacy.errors import Progress
    from ..reports.compare import Comparison
    from ..reports.sweep.table import SweepTable
    from ..runs.attack.gradients_schema import GradientAttack
    from ..runs.plan.schema import Compared
    from ..runs.stop import Stop
    from ..runs.sweep.sweep import Swept

__all__ = ["attack", "check", "compare", "design", "invert", "plot", "sweep", "table"]

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
    from .train import config_of

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
