"""What crossed each link: messages as they were sent, and which of them are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.files import make_file, make_folder
from .tensor_file import read_tensors, round_files, round_name


class MissingMessage(InputError, LookupError):
    """A message was asked for that was not kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One sending operation of a round: a row for each sender or each link.

    Attributes:
        round: the number of the round; 0 is the start.
        call: the number of the sending operation within the round.
        kind: what is sent, such as "model" or "cross-gradient".
        senders: (M,) the agent that sends each row; -1 is the server.
        links: (L, 2) pairs (row, receiver) that cross a link; receiver -1 is the server.
        rows: (M, D) what is sent; a row in no link stays with its agent.
    """

    round: int
    call: int
    kind: str
    senders: Tensor
    links: Tensor
    rows: Tensor


class Tap(Protocol):
    """Called with every message before it is delivered."""

    def __call__(self, message: Message) -> None:
        """Take note of a message."""


class Transcript:
    """The messages of chosen rounds.

    Args:
        rounds: the rounds to keep; None keeps every one.
        agents: keep only what these agents send or receive; None keeps all.
    """

    def __init__(
        self, rounds: Sequence[int] | None = None, *, agents: Sequence[int] | None = None
    ) -> None:
        self._rounds = None if rounds is None else frozenset(rounds)
        self._agents = None if agents is None else torch.tensor(sorted(set(agents)))
        self._messages: list[Message] = []

    def __call__(self, message: Message) -> None:
        """Keep the message if its round is wanted; copies, so the run may go on in place."""
        if self._rounds is not None and message.round not in self._rounds:
            return
        senders, links = message.senders.cpu(), message.links.cpu()
        kept = torch.arange(len(senders))
        if self._agents is not None:
            touched = torch.isin(links[:, 1], self._agents)
            mine = torch.isin(senders, self._agents)
            mine[links[touched, 0]] = True
            kept = torch.nonzero(mine).flatten()
            links = links[mine[links[:, 0]]]
            links = torch.stack(
                [torch.searchsorted(kept, links[:, 0].contiguous()), links[:, 1]], 1
            )
        rows = message.rows.detach()[kept.to(message.rows.device)].to("cpu", copy=True)
        self._messages.append(replace(message, senders=senders[kept], links=links, rows=rows))

    def clear(self) -> None:
        """Forget what was kept, once it is saved."""
        self._messages.clear()

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def of(self, *, round: int, kind: str | None = None) -> list[Message]:
        """The messages of a round, in the order of sending."""
        return [m for m in self._messages if m.round == round and kind in (None, m.kind)]

    def sent(self, *, round: int, kind: str, sender: int, receiver: int) -> Tensor:
        """(D,) what one agent sent another in a round.

        Raises:
            LookupError: nothing of the kind was kept for that link and round.
        """
        for message in self.of(round=round, kind=kind):
            rows, receivers = message.links.T
            hit = (receivers == receiver) & (message.senders[rows] == sender)
            if bool(hit.any()):
                return message.rows[rows[hit][0]]
        raise MissingMessage(
            f"no {kind!r} from agent {sender} to {receiver} was kept in round {round}"
        )

    def save(self, folder: Path) -> list[Path]:
        """Write one safetensors file a round; never overwrites."""
        from safetensors.torch import save_file

        make_folder(folder)
        written = []
        for number in sorted({m.round for m in self._messages}):
            path = folder / round_name(number)
            if path.exists():
                raise FileExistsError(f"{path} exists; a transcript is never overwritten")
            tensors: dict[str, Tensor] = {}
            for m in self.of(round=number):
                for name in ("senders", "links", "rows"):
                    tensors[f"{m.call:03d}.{m.kind}.{name}"] = getattr(m, name).contiguous()
            make_file(path)
            save_file(tensors, path, metadata={"round": str(number)})
            written.append(path)
        return written

    @classmethod
    def load(cls, folder: Path) -> Transcript:
        """Read what `save` wrote.

        Raises:
            ValueError: a file is none that it wrote.
        """
        transcript = cls()
        for number, path in round_files(folder):
            transcript._take(number, path)
        return transcript

    def _take(self, number: int, path: Path) -> None:
        """Add the messages of one file."""
        try:
            tensor_file = read_tensors(path)
            if int(tensor_file.metadata.get("round", "")) != number:
                raise InputError(f"it is of another round than {number}")
            for key in sorted(name for name in tensor_file.tensors if name.endswith(".rows")):
                call, kind, _ = key.split(".")
                base = key.removesuffix(".rows")
                self(
                    _message(
                        *(
                            tensor_file.tensors[f"{base}.{part}"]
                            for part in ("senders", "links", "rows")
                        ),
                        round=number,
                        call=int(call),
                        kind=kind,
                    )
                )
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{path} is no transcript of a round ({error}); it is cut off or damaged; "
                "put it back as it was written"
            ) from error


def _message(
    senders: Tensor, links: Tensor, rows: Tensor, *, round: int, call: int, kind: str
) -> Message:
    """A message whose parts fit together.

    Raises:
        ValueError: they do not.
    """
    whole = (
        senders.dtype == links.dtype == torch.int64
        and senders.ndim == 1
        and links.ndim == 2
        and links.shape[1] == 2
        and rows.ndim == 2
        and len(rows) == len(senders)
        and bool(((links[:, 0] >= 0) & (links[:, 0] < len(rows))).all())
    )
    if not whole:
        raise InputError(
            f"{kind!r:.40} of call {call} has senders {tuple(senders.shape)}, links "
            f"{tuple(links.shape)} and rows {tuple(rows.shape)}, which do not fit together"
        )
    return Message(round=round, call=call, kind=kind, senders=senders, links=links, rows=rows)
