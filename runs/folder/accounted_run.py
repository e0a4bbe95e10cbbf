"""A run folder as its files say it is, each held against the others, with the plan of its run file.

Report, check, comparison and total read a run by `read_run`, and take what may be signed of it from
`epsilon_of_ledger`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ...privacy.errors import InputError
from ...privacy.ledgers.ledger import Spent
from ...training.exposure.events import accounted
from ...training.exposure.guarantees import run_epsilon
from ...training.exposure.sensitivity import JointSensitivity
from ..plan.plan import Plan, make_plan
from ..run_file.build import Built, build
from ..run_file.run_file import ForeignFolder, RunFile
from . import folder as run_folder
from .records import LedgerHeader, header_of
from .released import read_released
from .resume import check_exposures, check_nothing_released
from .same_records import check_records_file
from .sums import check_sums

__all__ = [
    "AccountedRun",
    "check_ledger",
    "epsilon_of_ledger",
    "read_run",
    "released_sensitivities",
    "released_sensitivity",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountedRun:
    """A run that released something, finished or not.

    Attributes:
        config: its run file.
        built: the objects that it names.
        plan: what was planned.
        spent: what was released.
    """

    config: RunFile
    built: Built
    plan: Plan
    spent: Spent

    @property
    def header(self) -> LedgerHeader:
        """What the ledger says of every release."""
        return header_of(self.spent)


def read_run(folder: Path) -> AccountedRun:
    """Read a run folder.

    Raises:
        FileNotFoundError: no run is in it, or one that released nothing.
        ValueError: its files were changed, do not belong together, or cannot be read.
    """
    opened = ForeignFolder(folder)
    check_sums(folder)
    run_folder.require(folder, run_folder.RUN)
    config = opened.run_file()
    spent = _spent(folder)
    check_records_file(folder, header_of(spent))
    built = build(config, device=torch.device("cpu"))  # where the run's own may not be there
    plan = make_plan(config, graph=built.setting.graph, batch_size=built.batch_size, begun=True)
    check_ledger(folder, spent, plan)
    return AccountedRun(config=config, built=built, plan=plan, spent=spent)


def _spent(folder: Path) -> Spent:
    """The ledger of a run that released something."""
    if (folder / run_folder.LEDGER).exists():
        return read_released(folder)
    check_nothing_released(folder)
    raise FileNotFoundError(
        f"{folder} has no {run_folder.LEDGER}, so nothing was released and there is nothing to "
        f"report; `overhear train {folder / run_folder.RUN} --out {folder} --resume` begins the run"
    )


def check_ledger(folder: Path, spent: Spent, plan: Plan) -> None:
    """Refuse a ledger of another run: what was released is what it says, at what its header says.

    Args:
        plan: of its run file, with the graph and the data as they are today.

    Raises:
        ValueError: they do not belong together.
    """
    header = header_of(spent)
    if header.run_file != run_folder.digest(folder / run_folder.RUN):
        raise InputError(
            "run.toml is not the run file that the ledger was written for; the folder's files do "
            "not belong together"
        )
    for name, planned, released in (
        ("noise_multiplier", plan.noise_multiplier, header.noise_multiplier),
        ("sampling_rate", plan.sampling_rate, header.sampling_rate),
    ):
        if abs(released - planned) > 1e-9 * max(1.0, abs(planned)):
            raise InputError(
                f"the ledger was written with {name}={released:g}, but run.toml gives "
                f"{planned:g}; the folder's files do not belong together"
            )
    check_exposures(header, plan)


def released_sensitivity(plan: Plan, spent: Spent, name: str) -> JointSensitivity:
    """The joint sensitivity to an adversary of every planned round, or of more that were released.

    Args:
        spent: its ledger.

    Raises:
        UnsupportedView: a round was released again where none may repeat.
    """
    return accounted(plan.exposures[name], spent.numbers, torn=spent.torn)


def released_sensitivities(plan: Plan, spent: Spent) -> dict[str, JointSensitivity]:
    """By adversary the releases that may be signed for."""
    return {name: released_sensitivity(plan, spent, name) for name in plan.exposures}


def epsilon_of_ledger(plan: Plan, spent: Spent) -> dict[str, float]:
    """What may be signed, by adversary: epsilon of every planned round, or of more.

    Raises:
        UnsupportedView: a round was released again where none may repeat.
    """
    return {
        name: run_epsilon(
            released_sensitivity(plan, spent, name),
            statement=plan.statement,
            noise_multiplier=plan.noise_multiplier,
        )
        for name in plan.exposures
    }
