"""Rank 0 among the ranks: it tells the others each step, and makes it with them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import Store

from ...privacy.errors import InputError
from ...training.engine.engine import Engine
from ...training.engine.ranks import MissingRank, Ranks
from ...training.engine.transcript import Transcript
from .launch import Place
from .ranks import (
    CRASH,
    GATHERING,
    POLL,
    another,
    engine_of,
    facts_of,
    form,
    how_to_go_on,
    meet,
    spread,
)
from .run import Session

__all__ = ["Lead", "LedEngine", "lead"]

_BEAT = 1.0  # seconds between two signs of life, or less where the time limit is short
_FAREWELL = 3.0  # seconds for the others to end
_LAST_WORDS = 1.0  # seconds in which a rank that is gone may have said why


class Lead:
    """Rank 0 among the ranks; made by `lead`."""

    def __init__(self, store: Store, place: Place, *, timeout: float) -> None:
        self._store, self.place, self._timeout = store, place, timeout
        self._orders, self._forgotten = 0, 0
        self._complete = True  # no rank is missing
        self.ranks: Ranks | None = None
        beats = another(store)
        threading.Thread(target=self._beat, args=(beats,), daemon=True).start()

    def _beat(self, store: Store) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone
            while True:
                store.add("beat", 1)
                time.sleep(min(_BEAT, self._timeout / 8))

    def agree(self, session: Session) -> None:
        """Wait until all ranks have planned the run, and make them one group.

        Raises:
            ValueError: a rank would compute something else, or there are more ranks than agents.
            ConnectionError: a rank failed, or did not come.
        """
        agents = session.built.setting.graph.agents
        ranks = Ranks(agents=agents, rank=0, size=self.place.size, timeout=self._timeout)
        mine, until = facts_of(session), time.monotonic() + max(self._timeout, GATHERING)
        for rank in ranks.peers:
            while not self._store.check([f"ready/{rank}"]):
                self._check_failed(ranks)
                if time.monotonic() > until:
                    raise ConnectionError(
                        f"{ranks.names(rank)} did not come; start all ranks again"
                    )
                time.sleep(POLL)
            theirs = json.loads(self._store.get(f"ready/{rank}"))
            for name, held in mine.items():
                if theirs[name] != held:
                    raise InputError(
                        f"{ranks.names(rank)} has another {name} than rank 0 ({theirs[name]}, not "
                        f"{held}), so they would not compute one run; give all ranks the same"
                    )
        self._store.set("begin", "")
        self.ranks = form(self._store, session, self.place, timeout=self._timeout)

    def make_engine(self, session: Session, *, layout: str, transcript: Transcript) -> LedEngine:
        """The engine of rank 0, in step with those of the others.

        Args:
            session: which all ranks have agreed on.
            layout: of the gradients.
            transcript: hears the whole messages of the intercepted rounds.
        """
        if self.ranks is None:
            raise RuntimeError("the ranks have not agreed on the run")
        with self.together("engine", layout=layout):
            engine = engine_of(session, self.ranks, layout=layout, transcript=transcript)
        return LedEngine(engine, self)

    @contextlib.contextmanager
    def together(self, step: str, **details: Any) -> Iterator[None]:
        """Tell the others to make a step, and make it.

        Raises:
            ConnectionError: a rank failed, or did not answer in time.
        """
        self._store.set(f"order/{self._orders}", json.dumps({"step": step, **details}))
        self._orders += 1
        try:
            yield
        except MissingRank as error:
            self._complete = False
            until = time.monotonic() + _LAST_WORDS
            while self.ranks is not None and time.monotonic() < until:
                self._check_failed(self.ranks)
                time.sleep(POLL)
            raise ConnectionError(how_to_go_on(error)) from error

    def forget(self) -> None:
        """Drop the orders that every rank has followed: all of them, after rows of all came in."""
        for number in range(self._forgotten, self._orders):
            self._store.delete_key(f"order/{number}")
        self._forgotten = self._orders

    def _check_failed(self, ranks: Ranks) -> None:
        """Raise what another rank failed with."""
        for rank in ranks.peers:
            if self._store.check([f"failed/{rank}"]):
                code, said = json.loads(self._store.get(f"failed/{rank}"))
                if code == CRASH:
                    raise RuntimeError(f"{ranks.names(rank)} crashed: {said}")
                raise ConnectionError(said)

    def stop(self) -> None:
        """Let the other ranks end, wherever they are."""
        with contextlib.suppress(RuntimeError):
            self._store.set("stop", "")
            until = time.monotonic() + (_FAREWELL if self._complete else _LAST_WORDS)
            for rank in range(1, self.place.size):
                ends = [f"left/{rank}"], [f"failed/{rank}"]
                while not any(map(self._store.check, ends)) and time.monotonic() < until:
                    time.sleep(POLL)


class LedEngine:
    """The engine of rank 0: what takes all ranks is told to the others first."""

    def __init__(self, engine: Engine, lead: Lead) -> None:
        self._engine, self._lead = engine, lead

    @property
    def round(self) -> int:
        """The number of the last round."""
        return self._engine.round

    @property
    def settled(self) -> bool:
        """Whether the layout of rank 0 is final."""
        return self._engine.settled

    @property
    def layout(self) -> str:
        """The gradient layout in use on rank 0."""
        return self._engine.layout

    def start(self) -> None:
        """See `Engine.start`."""
        with self._lead.together("start"):
            self._engine.start()

    def advance(self) -> None:
        """See `Engine.advance`."""
        with self._lead.together("advance"):
            self._engine.advance()

    def models(self) -> Tensor:
        """See `Engine.models`."""
        with self._lead.together("models"):
            found = self._engine.models()
        self._lead.forget()
        return found

    def snapshot(self) -> dict[str, Tensor]:
        """See `Engine.snapshot`."""
        with self._lead.together("snapshot"):
            return self._engine.snapshot()

    def restore(self, snapshot: Mapping[str, Tensor], *, round: int) -> None:
        """See `Engine.restore`; the others get the snapshot from here, not from the folder."""
        fields = {
            name: (str(value.dtype).removeprefix("torch."), list(value.shape))
            for name, value in snapshot.items()
        }
        ranks, device = self._lead.ranks, self._engine.setting.device
        if ranks is None:
            raise RuntimeError("the ranks have not agreed on the run")
        with self._lead.together("restore", round=round, fields=fields):
            whole = spread(snapshot, fields, ranks, device=device)
            self._engine.restore(whole, round=round)


@contextlib.contextmanager
def lead(place: Place, *, timeout: float) -> Iterator[Lead]:
    """Lead the other ranks; however the block ends, they are told to end too.

    Args:
        place: rank 0.
        timeout: seconds that a rank may take to answer.
    """
    found = Lead(meet(place, timeout=timeout), place, timeout=timeout)
    try:
        yield found
    finally:
        found.stop()
