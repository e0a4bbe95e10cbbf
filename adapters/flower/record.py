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
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, gammaincinv

from ...privacy.errors import InputError, InputTypeError, needs
from ...privacy.files import make_folder, read_bounded, write_durably
from ...privacy.guarantee import Unit
from ...privacy.plain_text import plain
from ...privacy.releases.lines import MOST_AGENTS
from ...privacy.releases.log import WITHHELD
from ...privacy.releases.values import integer, number, positive
from ...runs.recorder.record import record as open_log
from ...runs.recorder.record import rounds_to_keep

# What a client's reply holds: the one declared array record, and everything else by name.

_SHOWN = 6
TRAIN = "train"
_WEIGHT = "num-examples"  # by which Flower's strategies weight a reply: how many records there are


def check_reply(
    content: Any, received: Any, *, message_type: str, allow: Collection[str]
) -> str | None:
    """Refuse a reply that holds more than is declared.

    Args:
        content: the `RecordDict` of the reply.
        received: that of the message, whose model the reply has again.
        message_type: of the message that it answers, "train", "evaluate" or one of one's own.
        allow: names of records, or of a record's entries as "record.key", that depend on no data.

    Returns:
        The name of the declared array record, which the reply to "train" has, else None.

    Raises:
        ValueError: it holds anything else, no array record, or numbers that are not finite.
    """
    train = message_type == TRAIN or message_type.startswith(f"{TRAIN}.")
    arrays = [name for name in content.array_records if name not in allow]
    declared = arrays[:1] if train else []
    beside = [*arrays[len(declared) :], *_entries(content, allow)]
    if beside:
        names = ", ".join(beside[:_SHOWN]) + (", ..." if len(beside) > _SHOWN else "")
        verb = "is" if len(beside) == 1 else "are"
        raise InputError(
            f"the reply to {message_type!r} holds {names}, which {verb} sent without noise, and no "
            f"line declares it; {_remedy(beside)}"
        )
    if train and not declared:
        raise InputError(
            "the reply to 'train' holds no ArrayRecord that could be declared; let the client "
            "return its model"
        )
    for name in declared:
        _check_arrays(content.array_records[name], name, received)
    return declared[0] if declared else None


def _remedy(beside: Sequence[str]) -> str:
    """What to leave out of a reply, and what to send alike from everybody, by which FedAvg adds."""
    counts = [name for name in beside if name.endswith(f".{_WEIGHT}")]
    others = [name for name in beside if name not in counts]
    said = []
    if others:
        shown = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
        said.append(
            f"leave {shown} out of the reply, or, only where it depends on no record, say "
            f"record(..., allow=[{others[0]!r}])"
        )
    if counts:
        said.append(
            f"let every client send {counts[0]} as 1, which tells nothing, and say "
            f"record(..., allow=[{counts[0]!r}])"
        )
    return "; ".join(said)


def _entries(content: Any, allow: Collection[str]) -> Iterator[str]:
    """The entries of metrics and configurations that nobody allowed, as "record.key"."""
    for records in (content.metric_records, content.config_records):
        for name, record in records.items():
            if name in allow:
                continue
            yield from (f"{name}.{key}" for key in record if f"{name}.{key}" not in allow)


def _check_arrays(record: Any, name: str, received: Any) -> None:
    """Refuse arrays of other than finite floats, and those that the message had not."""
    try:
        arrays = record.to_numpy_ndarrays()
    except (TypeError, ValueError):  # its text may quote what it read
        raise InputError(
            f"{name} holds an array that is none of numpy's, so that its noise cannot be "
            "judged; make each by Array(ndarray)"
        ) from None
    for array in arrays:
        if array.dtype.kind != "f":
            raise InputError(
                f"{name} holds an array of {array.dtype}, to which no Gaussian noise was added; "
                "send arrays of floating-point numbers alone"
            )
        if not np.isfinite(array).all():
            raise InputError(
                f"{name} holds a number that is not finite, which shows that a sum overflowed, and "
                "that depends on the records; send nothing in this round"
            )
    known = _by_name(received)  # a layer's statistics may be others
    if more := [key for key in record if key not in known]:
        raise InputError(
            f"{name} holds the array {more[0]!r}, which the message had not, so that it is no "
            "update of what was received; send the model's own arrays alone"
        )


# How much a reply changed what was received: at least its noise, at most its bound and noise.
#
# The noise z on n numbers is Gaussian and knows nothing of what it is added to, so of all that it
# may be added to, nothing makes the change more often short than 0 does:
#
#     P(|v + z| < s sqrt(q)) <= P(chi2_n < q),        |v + z| <= |v| + |z|
#
# A reply that is as declared is refused once in 10**12 arrays.

_FALSE_ALARM = 1e-12
_CLIPPING_NORM = "clipping_norm"  # by which Flower's strategies tell clients their bound


def check_clip_of_server(received: Any, *, clip: float) -> None:
    """Refuse a message whose server sets a bound above the declared one: mods clip to the server's.

    Raises:
        ValueError: it does; the client has not trained.
    """
    for name, config in received.config_records.items():
        said = config.get(_CLIPPING_NORM)
        if said is not None and not (isinstance(said, int | float) and said <= clip):
            raise InputError(
                f"the server says {name}.{_CLIPPING_NORM}={said!r:.40}, to which Flower's mods "
                f"clip the update, and clip={clip:g} is declared; let the server ask for at most "
                "that, or declare its bound from the first round on"
            )


def check_noise(sent: Any, received: Any, *, unit: Unit, clip: float, noise_std: float) -> None:
    """Refuse a reply that shows that the declared noise, or the declared bound, is not there.

    Args:
        sent: the array record of the reply.
        received: the content of the message, which has arrays of these names.
        unit: of the bound; where it is a record, it does not bound the update.
        clip: of the update.
        noise_std: of each number.

    Raises:
        ValueError: an array of another shape, one that noise would have changed by more, or an
            update that is longer than bound and noise together.
    """
    known = _by_name(received)
    length = change = rounding = 0.0
    numbers = 0
    for name, array in sent.items():
        now, before = _numbers(array), _numbers(known[name])
        if now.shape != before.shape:
            raise InputError(
                f"the array {name!r} has the shape {now.shape}, and that of the message has "
                f"{before.shape}; send the model's own arrays alone"
            )
        # Noise alone moves an array by more than this, but once in 1e12.
        here = _squared(now.astype(np.float64) - before)
        if now.size and here < noise_std**2 * 2 * gammaincinv(now.size / 2, _FALSE_ALARM):
            raise InputError(
                f"the array {name!r} of the reply is closer to that of the message than noise of "
                f"noise_std={noise_std:g} on each of its {now.size} numbers leaves it, but once in "
                "1e12; add that noise to every array, in a mod after `record`, or declare the "
                "noise that there is"
            )
        change, length = change + here, length + _squared(now)
        rounding += float(np.finfo(now.dtype).eps) * (_squared(now) + _squared(before)) ** 0.5
        numbers += now.size
    # Bound, noise and rounding together move the reply by no more than this.
    most = clip + noise_std * float(chdtri(max(numbers, 1), _FALSE_ALARM)) ** 0.5 + rounding
    if unit is Unit.CLIENT and min(change, length) ** 0.5 > most * (1 + 1e-6):
        raise InputError(
            f"the reply is further from the message than clip={clip:g} and noise of "
            f"noise_std={noise_std:g} on each of {numbers} numbers allow, but once in 1e12; clip "
            "the update to that before noise is added"
        )


def flat(record: Any, names: Any) -> NDArray[Any]:
    """(D,) the named arrays of a record, or of all records of a message, end to end."""
    known = _by_name(record) if hasattr(record, "array_records") else record
    return np.concatenate([_numbers(known[name]).ravel() for name in names])


def _by_name(content: Any) -> dict[str, Any]:
    """The arrays of a message; of two of one name the first."""
    found: dict[str, Any] = {}
    for record in content.array_records.values():
        for name, array in record.items():
            found.setdefault(name, array)
    return found


def _numbers(array: Any) -> NDArray[Any]:
    return np.asarray(array.numpy() if hasattr(array, "numpy") else array)


def _squared(of: NDArray[Any]) -> float:
    with np.errstate(over="ignore"):
        return float(np.square(of.astype(np.float64)).sum())


_LOG = logging.getLogger(__name__)
_UNSAID = "the client sends no reply; why stands in the client's log"
_REFUSED = 6  # Flower's code of a mod whose precondition does not hold
_MOST_REASONS = 20  # that are kept of one client
_MOST_TOLD = 1 << 20  # bytes of them
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
    rounds: int | None = None,
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
        rounds: the number of the last round, where it is known before the first; later replies are
            refused.

    Raises:
        ImportError: flwr is not installed.
        ValueError: a value out of range.
    """
    if importlib.util.find_spec("flwr") is None:
        raise needs("overhear.adapters.flower", "flwr")
    kept = rounds_to_keep(keep)
    if isinstance(allow, str) or not all(isinstance(one, str) for one in allow):
        raise InputTypeError(f"allow={allow!r:.60} must be a list of names of records")
    return RecordedReplies(
        folder=Path(folder).absolute(),
        unit=Unit(unit),
        clip=clip,
        noise_std=noise_std,
        allow=tuple(sorted(set(allow))),
        agent=agent,
        agents=agents,
        keep=kept if isinstance(kept, str) else tuple(sorted(kept)),
        noise_first=noise_first,
        rounds=rounds,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedReplies:
    """The mod; made by `record`. It holds its settings alone, and may be pickled."""

    folder: Path
    unit: Unit
    clip: float
    noise_std: float
    allow: tuple[str, ...]
    agent: int | None
    agents: int | None
    keep: tuple[int, ...] | Literal["all"] = ()
    noise_first: bool = False
    rounds: int | None = None

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

        Where the app failed, or its reply is not what its line would declare, the reply is an error
        that says nothing. Why stands in the client's own log, since the server reads the text of an
        error, and even the name of a metric may tell of the records.

        Raises:
            RuntimeError: the message is none of Flower's, and the reply is withheld.
            ValueError: the message or the node allows no line; the app was not asked.
            OSError: the line may not be on the disk, so nothing leaves.
        """
        at = _round_of(msg)
        agent, agents = self._who(ctxt)
        if self.unit is Unit.CLIENT:
            check_clip_of_server(msg.content, clip=self.clip)
        # The server reads the text of exceptions, which may tell of records.
        try:
            reply = call_next(msg, ctxt)
        except Exception:  # noqa: BLE001 its text would be sent to the server
            _LOG.exception("the client app failed; the server learns no more than that")
            return self._withheld(msg, agent, "the client app failed, as its own log tells")
        if reply.has_error():
            _LOG.error("a mod or the client app replied with an error: %s", reply.error.reason)
            return self._withheld(msg, agent, "the client app or a mod replied with an error")
        # The line is on the disk before the reply leaves.
        try:
            sent = self._declared(reply.content, msg)
            if sent is not None:
                self._write(at, sent, msg.content, agent=agent, agents=agents)
        except InputError as error:  # of what leaves
            return self._withheld(msg, agent, str(error))
        return reply

    def _withheld(self, msg: Any, agent: int, why: str) -> Any:
        """A reply that says nothing. Why is told once, in the client's log and beside its lines."""
        path = self.folder / f"agent-{agent}{WITHHELD}"
        told = list[str]()
        if path.exists():
            told = read_bounded(path, _MOST_TOLD).decode(errors="replace").splitlines()
        said = plain(why, most=None)
        if said not in told:
            _LOG.error("no reply is sent: %s", said)
            make_folder(self.folder)
            last = (*told, said)[-_MOST_REASONS:]
            write_durably(path, "".join(f"{one}\n" for one in last).encode())
        if importlib.util.find_spec("flwr") is not None:
            from flwr.app import Error, Message

            if isinstance(msg, Message):  # an exception would be told with a traceback each time
                return Message(Error(code=_REFUSED, reason=_UNSAID), reply_to=msg)
        raise RuntimeError(_UNSAID) from None

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
        more = f"; without noise: {', '.join(self.allow)}" if self.allow else ""
        with open_log(
            path,
            agent=agent,
            agents=agents,
            clip=self.clip,
            unit=self.unit,
            system=f"flower{more}",
            noise=self.noise_std or None,
            rounds=self.rounds,
            keep=self.keep,
            resume=path.exists(),
        ) as log:
            at = log.next_round if at is None else at
            before = flat(received, sent)
            of: dict[str, Any] = {"point": before} if log.keeps(at) else {}
            of |= {"value": flat(sent, sent), "known": before, "noise_first": self.noise_first}
            log.release(at, kind="model", to="server", noise=self.noise_std, **of)

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
