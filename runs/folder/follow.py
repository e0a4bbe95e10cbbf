"""Another rank than 0: it holds its agents, follows the orders, and ends with rank 0."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from torch._C._distributed_c10d import Store

from ...training.engine.engine import Engine
from ...training.engine.ranks import MissingRank, Ranks
from ..errors import STATED, sentence
from ..run_file.run_file import load_run_file
from .launch import Place
from .ranks import (
    CRASH,
    FAILED,
    POLL,
    another,
    engine_of,
    facts_of,
    form,
    how_to_go_on,
    meet,
    spread,
    take_device,
)
from .run import Session, plan_session

__all__ = ["follow", "plan_rank"]

_NEVER = timedelta(days=365)  # for waiting on rank 0, whose life is watched beside it


def plan_rank(run: Path, out: Path, overrides: Sequence[str], place: Place) -> Session:
    """The run as another rank than 0 plans it; nothing is written."""
    config = load_run_file(run, overrides)
    take_device(config.training.device, place)
    return plan_session(config, out)


class _Watch:
    """Another rank's eyes on rank 0: it ends the process when rank 0 says so, or is gone."""

    def __init__(self, store: Store, place: Place, *, timeout: float) -> None:
        self._store, self._place, self._timeout = another(store), place, timeout
        self._seen, self._leaving = time.monotonic(), threading.Lock()
        self.lead_words = f"rank 0 of {place.size}"
        for look in (self._look, self._guard):
            threading.Thread(target=look, daemon=True).start()

    def _look(self) -> None:
        beat = -1
        try:
            while not self._store.check(["stop"]):
                if (found := self._store.add("beat", 0)) != beat:
                    beat, self._seen = found, time.monotonic()
                time.sleep(POLL)
            self._store.set(f"left/{self._place.rank}", "")
        except RuntimeError:
            self._miss("its process is gone")
        self.leave(0)

    def _guard(self) -> None:
        # Beside `_look`, which waits with rank 0 where rank 0 keeps the store.
        while time.monotonic() - self._seen < self._timeout:
            time.sleep(POLL)
        self._miss(f"did not answer within {self._timeout:g} s")

    def _miss(self, why: str) -> NoReturn:
        self.leave(
            FAILED,
            f"error: {self.lead_words}: {why}, and no round goes on without all of its agents; "
            "what was released is in the ledger: --resume continues the run",
        )

    def leave(self, code: int, said: str = "") -> NoReturn:
        """End the process; whoever comes first says why."""
        self._leaving.acquire()  # for ever: nobody comes second
        if said:
            os.write(2, f"{said}\n".encode())  # at once, so that ranks do not share a line
        # A group that has lost a rank cannot be taken down in order.
        os._exit(code)


def follow(place: Place, plan: Callable[[], Session], *, timeout: float) -> NoReturn:
    """Be another rank than 0 until rank 0 ends it; never returns.

    Args:
        place: which rank.
        plan: gives the run as rank 0 plans it, with nothing written.
        timeout: seconds that a rank may take to answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 hears it, and tells the others
    store = meet(place, timeout=timeout)
    watch = _Watch(store, place, timeout=timeout)
    try:
        session = plan()
        agents = session.built.setting.graph.agents
        ranks = Ranks(agents=agents, rank=place.rank, size=place.size, timeout=timeout)
        watch.lead_words = ranks.names(0)
        store.set(f"ready/{place.rank}", json.dumps(facts_of(session)))
        store.wait(["begin"], _NEVER)
        ranks = form(store, session, place, timeout=timeout)
        _serve(store, session, ranks)
    except MissingRank as error:
        _fail(store, watch, place, FAILED, how_to_go_on(error))
    except Exception as error:  # noqa: BLE001 - it is told to rank 0, which decides
        if isinstance(error, STATED):
            _fail(store, watch, place, FAILED, sentence(error))
        traceback.print_exception(error)
        _fail(store, watch, place, CRASH, f"{type(error).__name__}: {error}")


def _fail(store: Store, watch: _Watch, place: Place, code: int, said: str) -> NoReturn:
    """Tell rank 0, which says it; without rank 0 say it here."""
    try:
        store.set(f"failed/{place.rank}", json.dumps([code, said]))
        store.check(["beat"])  # an answer, so it has arrived
    except RuntimeError:
        watch.leave(code, f"error: {said}")
    watch.leave(code)


def _serve(store: Store, session: Session, ranks: Ranks) -> NoReturn:
    """Follow the orders of rank 0, in their order."""
    engine: Engine | None = None
    number = 0
    while True:
        store.wait([f"order/{number}"], _NEVER)
        order = json.loads(store.get(f"order/{number}"))
        step = order.pop("step")
        number += 1
        if step == "engine":
            engine = engine_of(session, ranks, layout=order["layout"], transcript=None)
        elif engine is None:
            raise RuntimeError(f"order {step!r} before there is an engine")
        elif step == "restore":
            device = session.built.setting.device
            whole = spread(None, order["fields"], ranks, device=device)
            engine.restore(whole, round=order["round"])
        else:
            steps: dict[str, Callable[[], object]] = {
                "start": engine.start,
                "advance": engine.advance,
                "models": engine.models,
                "snapshot": engine.snapshot,
            }
            steps[step]()
