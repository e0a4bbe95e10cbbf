"""The public names that are commands, too: invert, design, check, compare, sweep, table, plot."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..reports.requests import PlotRequest
from ..runs.attack.request import GradientRequest
from ..runs.requests import request_of
from .run import Checked, Run
from .shown import in_pyplot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..reports.compare import Comparison
    from ..reports.sweep.table import SweepTable
    from ..runs.attack.gradients_schema import GradientAttack
    from ..runs.plan.design_words import Compared
    from ..runs.run_file.run_file import RunFile
    from ..runs.sweep.sweep import Swept

__all__ = ["check", "compare", "design", "invert", "plot", "sweep", "table"]


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
    from .attack import attack

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
    from .plan import config_of

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
