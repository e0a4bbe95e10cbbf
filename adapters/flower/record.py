"""A client mod of Flower: the line of a reply is on the disk before the reply leaves.

    message -> record -> my_noise -> fixedclipping_mod -> the app
    reply   <- record <- my_noise <- fixedclipping_mod <- the app

It stands first in `mods`, so that nothing changes a reply after it. A reply to "train" is one
release, of kind "model" to the server: what the client received, plus its clipped update, plus
noise. Whatever else a reply holds leaves without noise, and is refused unless it is allowed by
name.

Flower may handle each message in another process. So the mod holds no file: for each reply it opens
the log, which is verified, writes, and closes it.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...privacy.errors import InputError, InputTypeError
from ...privacy.guarantee import Unit
from ...privacy.missing import needs
from ...privacy.releases.lines import MOST_AGENTS, integer, number, positive
from ...runs.recorder.record import record as open_log
from ...runs.recorder.record import rounds_to_keep
from .change import check_clip_of_server, check_noise, flat
from .reply import check_reply

_LOG = logging.getLogger(__name__)
_UNSAID = "the client sends no reply; why stands in the client's log"
_PARTITION, _PARTITIONS, _ROUND = "partition-id", "num-partitions", "server-round"


def record(
    folder: str | Path,
    *,
    unit: str,
    clip: float,
    noise_std: float,
    allow: Collection[str] = (),
    agent: int | None = None,
    agents: int | None = None,
    keep: Sequence[int] | Literal["all"] = (),
    noise_first: bool = False,
) -> RecordedReplies:
    """A client mod, to stand first in `ClientApp(mods=[...])`.

    A client's log is `agent-K.jsonl` in the folder. K and the number of agents are the node's
    "partition-id" and "num-partitions", as simulations set them and `flower-supernode
    --node-config` does, unless they are given here. Node ids do not serve: they are others after a
    restart.

    Args:
        folder: of the logs, on the client's machine.
        unit: "client" where the whole update is clipped to `clip`; "record" where one record
            changes it by at most `clip`.
        clip: bound on the L2 norm of the update, or of what a record changes in it.
        noise_std: deviation of the noise on each number of the reply.
        allow: names of records in a reply, or of their entries as "metrics.num-examples", that
            depend on no data. The log's system is named after them, so that a report shows them.
        agent: the client's number, from 0.
        agents: how many clients there are, in all.
        keep: rounds, or "all", whose transcripts are kept beside the log for `conformance`, where
            the unit is a client; they are private.
        noise_first: whether the noise is added to the clipped update before that is added to the
            model, which the lines then say and the account assumes. Mods behind Flower's clipping
            add it to the sum of both, in whose rounding noise that is small may be lost; then the
            reply is refused.

    Raises:
        ImportError: flwr is not installed.
        ValueError: a value out of range.
    """
    if importlib.util.find_spec("flwr") is None:
        raise ImportError(needs("overhear.adapters.flower", "flwr"))
    kept = rounds_to_keep(keep)
    return RecordedReplies(
        folder=Path(folder).absolute(),
        unit=Unit(unit),
        clip=clip,
        noise_std=noise_std,
        allow=_names(allow),
        agent=agent,
        agents=agents,
        keep=kept if isinstance(kept, str) else tuple(sorted(kept)),
        noise_first=noise_first,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedReplies:
    """The mod; made by `record`. It holds settings alone, and may be pickled.

    Attributes:
        folder: of the logs.
        unit: a record or a client.
        clip: of the update.
        noise_std: of each number.
        allow: what may leave without noise.
        agent: the client's number, None for its partition.
        agents: how many there are, None for the number of partitions.
        keep: rounds whose transcripts are kept.
        noise_first: whether the noise meets the update before the model does.
    """

    folder: Path
    unit: Unit
    clip: float
    noise_std: float
    allow: tuple[str, ...]
    agent: int | None
    agents: int | None
    keep: tuple[int, ...] | Literal["all"] = ()
    noise_first: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that no line could hold, before any client trains."""
        positive(self.clip, "clip")
        if not isinstance(self.noise_first, bool):
            raise InputTypeError(f"noise_first={self.noise_first!r:.40} must be True or False")
        if number(self.noise_std, "noise_std") < 0:
            raise InputError(f"noise_std={self.noise_std:g} must be at least 0")
        if self.agents is not None:
            integer(self.agents, "agents", least=1, most=MOST_AGENTS)
        if self.agent is not None:
            integer(self.agent, "agent", least=0, most=(self.agents or MOST_AGENTS) - 1)
        if self.keep and self.unit is not Unit.CLIENT:
            raise InputError(
                "keep cannot be used with unit='record': a mod does not know of which records a "
                "reply is made; leave it out, or record the training itself by overhear.record"
            )

    def __call__(self, msg: Any, ctxt: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """Let the app answer, and write the line of its answer.

        Raises:
            RuntimeError: the app failed, or its reply is not what its line would declare; nothing
                leaves. Why stands in the client's own log, since the server reads the text of an
                exception, and even the name of a metric may tell of the records.
            ValueError: the message or the node allows no line; the app was not asked.
            OSError: the line may not be on the disk, so nothing leaves.
        """
        at = _round_of(msg)
        agent, agents = self._who(ctxt)
        if self.unit is Unit.CLIENT:
            check_clip_of_server(msg.content, clip=self.clip)
        try:
            reply = call_next(msg, ctxt)
        except Exception:  # noqa: BLE001 its text would be sent to the server
            _LOG.exception("the client app failed; the server learns no more than that")
            raise RuntimeError(_UNSAID) from None
        if reply.has_error():
            _LOG.error("a mod or the client app replied with an error: %s", reply.error.reason)
            raise RuntimeError(_UNSAID)
        try:
            sent = self._declared(reply.content, msg)
        except InputError as error:
            _LOG.error("%s", error)
            raise RuntimeError(_UNSAID) from None
        if sent is not None:
            try:
                self._write(at, sent, msg.content, agent=agent, agents=agents)
            except InputError as error:  # of what leaves
                _LOG.error("%s", error)
                raise RuntimeError(_UNSAID) from None
        return reply

    def _declared(self, content: Any, msg: Any) -> Any:
        """The arrays of a reply that a line declares, None where it says nothing."""
        kind = msg.metadata.message_type
        name = check_reply(content, msg.content, message_type=kind, allow=self.allow)
        if name is None:
            return None
        sent = content.array_records[name]
        check_noise(sent, msg.content, unit=self.unit, clip=self.clip, noise_std=self.noise_std)
        return sent

    def _write(self, at: int | None, sent: Any, received: Any, *, agent: int, agents: int) -> None:
        path = self.folder / f"agent-{agent}.jsonl"
        with open_log(
            path,
            agent=agent,
            agents=agents,
            clip=self.clip,
            unit=self.unit,
            system=self._system,
            keep=self.keep,
            resume=path.exists(),
        ) as log:
            at = log.next_round if at is None else at
            before = flat(received, sent)
            of: dict[str, Any] = {"value": flat(sent, sent), "known": before}
            of["noise_first"] = self.noise_first
            if log.keeps(at):
                of["point"] = before
            log.release(at, kind="model", to="server", noise=self.noise_std, **of)

    @property
    def _system(self) -> str:
        if not self.allow:
            return "flower"
        return f"flower; without noise: {', '.join(self.allow)}"

    def _who(self, ctxt: Any) -> tuple[int, int]:
        """The client's number, and how many there are."""
        node = ctxt.node_config
        agent = node.get(_PARTITION) if self.agent is None else self.agent
        agents = node.get(_PARTITIONS) if self.agents is None else self.agents
        if agent is None or agents is None:
            name = "agent" if agent is None else "agents"
            key = _PARTITION if agent is None else _PARTITIONS
            raise InputError(
                f"{name} is not known: start the node with --node-config "
                f"'{_PARTITION}=0 {_PARTITIONS}=10', or give record(..., {name}=...); the node has "
                f"no {key!r}"
            )
        agents = integer(agents, "agents", least=1, most=MOST_AGENTS)
        return integer(agent, "agent", least=0, most=agents - 1), agents


def _round_of(msg: Any) -> int | None:
    """The server's round, where the message says it."""
    for config in msg.content.config_records.values():
        found = config.get(_ROUND)
        if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
            return found
    return None


def _names(allow: Collection[str]) -> tuple[str, ...]:
    if isinstance(allow, str) or not all(isinstance(one, str) for one in allow):
        raise InputTypeError(f"allow={allow!r:.60} must be a list of names of records")
    return tuple(sorted(set(allow)))
