"""The rounds of a log whose transcripts were kept, and those of them that are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....privacy._validate import within
from ....privacy.errors import InputError
from ....privacy.ledgers.ledger_lines import round_number
from ....privacy.releases.fields import shown
from ....privacy.releases.lines import Release
from ....privacy.releases.log import Played, ReleaseLog, party_name
from .keeping import Kept, kept_folder, read_kept


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KeptRelease:
    """A release with its transcript.

    Attributes:
        played: its round.
        release: what its line says.
        kept: what it was made of.
        name: in words, such as "model of agent 0".
    """

    played: Played
    release: Release
    kept: Kept
    name: str


class KeptRounds:
    """The transcripts of a log.

    Args:
        log: as it was read.
        rounds: which to look at: numbers, how many to draw by chance, or None for all.
        seed: of the drawing; the system's entropy when None.

    Attributes:
        log: as given.
        numbers: of the rounds that are looked at, in order.
        unkept: how many releases of these rounds were not kept.

    Raises:
        FileNotFoundError: a transcript that the log names is missing.
        ValueError: a transcript that is not what the log names, or a round that was not kept.
    """

    def __init__(
        self, log: ReleaseLog, *, rounds: Sequence[int] | int | None, seed: int | None
    ) -> None:
        self.log = log
        held = {played for played, of in log.rounds.items() if any(r.kept for r in of)}
        if not held:
            raise InputError(
                f"{log.paths[0]} names no kept transcript, so nothing of it can be checked; record "
                'with keep="all", or with the rounds to keep'
            )
        self.numbers = _chosen(sorted({played.round for played in held}), rounds, seed)
        self._read: dict[Played, list[KeptRelease]] = {}
        self.unkept = sum(
            release.kept is None
            for played, of in log.rounds.items()
            if played.round in self.numbers
            for release in of
        )
        self.releases = [one for number in self.numbers for one in self.of_round(number)]

    def of_round(self, number: int) -> list[KeptRelease]:
        """The kept releases of a round, each time that it was played."""
        return [
            one for played in self.log.rounds if played.round == number for one in self._of(played)
        ]

    def is_whole(self, number: int) -> bool:
        """Whether every release of a round was kept."""
        every = [of for played, of in self.log.rounds.items() if played.round == number]
        return all(release.kept is not None for of in every for release in of)

    def before(self, number: int) -> list[int]:
        """The numbers of the rounds before one."""
        return sorted({played.round for played in self.log.rounds if played.round < number})

    def _of(self, played: Played) -> list[KeptRelease]:
        if played not in self._read:
            of = self.log.rounds[played]
            names = [_named(release, of, self.log) for release in of]
            self._read[played] = [
                KeptRelease(
                    played=played,
                    release=release,
                    kept=read_kept(self._file(played, release.kept), release.kept, played.round),
                    name=name,
                )
                for release, name in zip(of, names, strict=True)
                if release.kept is not None
            ]
        return self._read[played]

    def _file(self, played: Played, digest: str) -> Path:
        """The log beside which a transcript lies; the first where none does."""
        found = f"round-{played.round}-{digest[:32]}.safetensors"
        there = [p for p in self.log.paths if (kept_folder(p) / found).exists()]
        return (there or list(self.log.paths))[0]


def _named(release: Release, of: Sequence[Release], log: ReleaseLog) -> str:
    name = f"{release.kind} of {party_name(release.sender, log.header)}"
    alike = [one for one in of if (one.kind, one.sender) == (release.kind, release.sender)]
    if len(alike) > 1 and release.to is not None:
        name += f" to {', '.join(party_name(k, log.header) for k in sorted(release.to))}"
    return name


def _chosen(kept: list[int], rounds: Any, seed: int | None) -> list[int]:
    if rounds is None:
        return kept
    if isinstance(rounds, int) and not isinstance(rounds, bool):
        within("rounds", rounds, f"[1, {len(kept)}]", ", as many as were kept")
        chance = np.random.default_rng(seed)
        return sorted(chance.choice(kept, size=rounds, replace=False).tolist())
    if isinstance(rounds, str) or not isinstance(rounds, Sequence | set | range) or not rounds:
        raise InputError(f"rounds={shown(rounds)} must be numbers of rounds, or how many to draw")
    for number in rounds:
        if round_number(number, least=0) is None or number not in kept:
            raise InputError(
                f"round {shown(number)} was not kept; {_some(kept)} were: name some of these"
            )
    return sorted(set(rounds))


def _some(kept: Sequence[int]) -> str:
    return ", ".join(map(str, kept[:8])) + (f" and {len(kept) - 8} more" if len(kept) > 8 else "")
