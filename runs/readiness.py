"""Whether a run file can be trained: everything is built as `overhear train` builds it.

Data, partition, model, device, layout, plan and engine are those of `train`, by the same functions,
so what it refuses is refused here in the same words. Then one round is rehearsed on a few records
of every agent. Its messages stay in this process, and nothing is written: it is no release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..privacy.errors import InputError
from ..training.data.store import Examples, Held
from ..training.engine.engine import Engine, gradients_of
from ..training.engine.transcript import Transcript
from ..training.models.evaluation import evaluate
from .attack.points import check_attackable
from .audit.audit import check_auditable
from .folder import folder as run_folder
from .folder.records import Items
from .folder.run import Session, engine_of, plan_session
from .plan.plan import Plan
from .run_file.run_file import RunFile
from .run_file.tables import AuditTable

_FEW = 2  # records of an agent, and of the test set, in the rehearsed round


@dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """What is known of a run that `overhear train` would begin.

    Attributes:
        items: how the items of its data were made of records, as train would write it down.
        attack, audit: why `overhear attack` or `overhear audit` would refuse the run, None where
            they would not.
    """

    plan: Plan
    items: Items | None
    attack: str | None
    audit: str | None


def check_ready(
    config: RunFile, *, out: Path | None = None, notice: Callable[[str], None] | None = None
) -> Readiness:
    """Build a run as `overhear train` does, and refuse what it refuses; nothing is written.

    An [attack] or an [audit] that differs from the defaults is asked for, so it is refused where
    the command would refuse it. One that does not is told.

    Args:
        out: the folder that the run would be written to.
        notice: told beforehand what the plan takes, where that is more than some seconds.

    Raises:
        FileExistsError: the folder holds files.
        ValueError: what the run file asks for cannot be done.
        OSError: the system refuses a file.
    """
    if out is not None:
        run_folder.check_claimable(out)
    session = plan_session(config, out or Path(), notice=notice)
    engine_of(session, layout=config.training.layout, transcript=Transcript([], agents=[]))
    _rehearse(session)
    built, plan = session.built, session.plan
    asked = config.attack != config.default_attack()
    attack = _refusal(lambda: check_attackable(config, built=built), asked=asked)
    asked = config.audit != AuditTable()
    audit = _refusal(
        lambda: check_auditable(config, built, multiplier=plan.noise_multiplier), asked=asked
    )
    return Readiness(plan=plan, items=session.items, attack=attack, audit=audit)


def _rehearse(session: Session) -> None:
    """One round of the run on a few records of every agent, and one evaluation."""
    built, config = session.built, session.config
    users = built.setting.users
    setting = replace(
        built.setting,
        users=None if users is None else [of[:_FEW] for of in users],
        shards=[_few(shard) for shard in built.setting.shards],
        sampling_rate=1.0,
        sampler=None,
        turns=None,  # each of the few is in the round that is played
        layout=config.training.layout,
    )
    # A run drops what overflows; here it is told, before anybody could learn of it.
    told = gradients_of(setting, drops=False)
    engine = Engine(setting, built.bound(session.plan.noise_multiplier), gradients=told)
    engine.advance()
    test = Examples(built.data.test_inputs, built.data.test_targets)
    evaluate(setting.model, engine.models()[:1], _few(test), round=0, task=setting.task)


def _few(held: Held) -> Examples:
    return held.take(torch.arange(min(_FEW, held.size)))


def _refusal(check: Callable[[], object], *, asked: bool) -> str | None:
    """Why something would be refused, raised where it is asked for."""
    try:
        check()
    except InputError as error:
        if asked:
            raise
        return str(error)
    return None
