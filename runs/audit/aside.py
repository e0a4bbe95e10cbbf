"""A run folder that is audited: what is in it, and the result beside what was found before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...privacy.bounded import read_bounded
from ...privacy.durable import write_durably
from ..described import LARGEST_OBJECT, Described
from ..folder import folder as run_folder
from ..folder.records import LedgerHeader, header_of
from ..folder.released import read_released
from ..folder.sums import check_sums, write_sums
from ..run_file.run_file import ForeignFolder, RunFile
from ..stop import NOTHING_KEPT, Stop

_Found = TypeVar("_Found", bound=Described)
_Earlier = TypeVar("_Earlier", bound=Described)


@dataclass(frozen=True, kw_only=True)
class AuditedFolder:
    """What an audit of a run folder begins with, and where its result goes.

    Attributes:
        folder: of `overhear train`.
        config: its run file.
        header: of its ledger.
        held: the result's place.
        stop: asked to stop, the audit ends at once and leaves the folder as it is.
    """

    folder: Path
    config: RunFile
    header: LedgerHeader
    held: Path
    stop: Stop

    @classmethod
    def open(
        cls,
        folder: Path,
        name: str,
        *,
        again: bool,
        stop: Stop | None,
        overrides: Sequence[str] = (),
        does: str = "audits",
    ) -> AuditedFolder:
        """Read it.

        Args:
            folder: of `overhear train`.
            name: of the result.
            again: whether a result that is there is no reason to stop.
            stop: as above.
            overrides: of the run file.
            does: what --again does once more.

        Raises:
            FileNotFoundError: no finished run is in the folder.
            FileExistsError: the run was audited already.
            ValueError: the folder is not as it was written.
        """
        stop = stop or Stop()
        stop.note(NOTHING_KEPT)
        opened = ForeignFolder(folder)
        check_sums(folder)
        run_folder.require(folder, run_folder.RUN)
        config = opened.run_file(overrides)
        run_folder.require(folder, run_folder.LEDGER)
        header, held = header_of(read_released(folder)), folder / name
        if held.exists() and not again:
            raise FileExistsError(f"{held} exists; --again {does} once more and keeps it beside")
        return cls(folder=folder, config=config, header=header, held=held, stop=stop)

    def earlier(self, before: Any, kind: type[_Earlier], **others: Any) -> list[_Earlier]:
        """What is there already and those before it found, under the name that it gets.

        Args:
            before: what is there; None where nothing is.
            kind: of a summary, whose fields are those of `before`.
            others: its other fields.
        """
        if before is None:
            return []
        count = 1
        while self._aside(count).exists():
            count += 1
        return [*before.earlier, kind.from_object(before, file=self._aside(count).name, **others)]

    def keep(self, found: _Found, earlier: Sequence[Any], **others: Any) -> _Found:
        """Write a result, and keep the one that was there; where it cannot be, leave all as it was.

        Args:
            found: the new one.
            earlier: as `earlier` gives it.
            others: fields of it that are changed.

        Raises:
            OSError: the system refuses.
        """
        digest = run_folder.digest(self.folder / run_folder.RUN)
        found = found.model_copy(update={"run_file": digest, "earlier": earlier} | others)
        self.stop.note(
            f"the audit was done, and is in {self.held} unless that was just being written"
        )
        self.stop.finish()
        kept = self.held.with_name(earlier[-1].file) if earlier else None
        try:
            if kept is not None:
                write_durably(kept, read_bounded(self.held, LARGEST_OBJECT))
            found.write(self.held)
        except OSError:
            if kept is not None:
                kept.unlink(missing_ok=True)
            raise
        if (self.folder / run_folder.SUMS).exists():
            write_sums(self.folder)
        return found

    def _aside(self, count: int) -> Path:
        """Where a result is kept once there are newer ones: audit-1.json, and so on."""
        return self.held.with_name(f"{self.held.stem}-{count}.json")
