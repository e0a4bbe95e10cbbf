"""What attacks on a run rebuilt: rows, pictures, and how they are shown."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..privacy.bounded import read_bounded
from ..runs.attack.attack import attack_as_asked, attack_run
from ..runs.audit.evidence_schema import Attack
from ..runs.errors import ContradictedProof
from ..runs.numbers import figure, score
from ..training.own.objects import give
from .shown import as_frame, as_html, as_text, overrides_of

if TYPE_CHECKING:
    from pandas import DataFrame


_LARGEST_PICTURE = 64 << 20  # bytes
_MOST_SHOWN = 40  # pictures of a gallery in a notebook


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What attacks on a run rebuilt, beside three references.

    Attributes:
        found: scenarios with their rows, as attack.json holds them.
        folder: of the run, where the pictures are.
        contradicts: what contradicts a proof, in a sentence; None where nothing does.
    """

    found: Attack
    folder: Path
    contradicts: str | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Mean scores: a row for each scenario and protection."""
        return [
            {
                "scenario": one.scenario,
                "preset": one.preset,
                "round": one.round,
                "victim": one.victim,
                "attacked": row.name,
                "mse": row.mean.mse,
                "psnr": row.mean.psnr,
                "ssim": row.mean.ssim,
            }
            for one in self.found.scenarios
            for row in one.rows
        ]

    def to_pandas(self) -> DataFrame:
        """The rows as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        return as_frame(self.rows)

    def __repr__(self) -> str:
        """The rows, and what each scenario comes to."""
        return as_text("Reconstruction", self._cells(), self._notes())

    def _repr_html_(self) -> str:
        """The rows, and the pictures that were rebuilt."""
        return as_html("Reconstruction", self._cells(), self._notes()) + self._gallery()

    def _cells(self) -> list[dict[str, str]]:
        return [
            {
                "scenario": str(row["scenario"]),
                "preset": str(row["preset"]),
                "round": str(row["round"]),
                "what is attacked": str(row["attacked"]),
                "MSE": figure(row["mse"]),
                "PSNR (dB)": figure(row["psnr"]),
                "SSIM": score(row["ssim"]),
            }
            for row in self.rows
        ]

    def _notes(self) -> list[str]:
        told = [text for s in self.found.scenarios for text in (s.conclusion, s.bound.sentence)]
        return [*dict.fromkeys(told), *([self.contradicts] if self.contradicts else [])]

    def _gallery(self) -> str:
        parts, left = [], _MOST_SHOWN
        for scenario in self.found.scenarios:
            named = [
                ("original", scenario.originals),
                *((row.name, row.images) for row in scenario.rows),
            ]
            for name, images in named:
                shown = [self._picture(path, name) for path in images[:left]]
                left -= len(shown)
                if shown:
                    parts.append(f"<p>{escape(name)}<br>{''.join(shown)}</p>")
        return "".join(parts)

    def _picture(self, path: str, name: str) -> str:
        held = self.folder / path
        if not held.is_file():
            return ""
        data = b64encode(read_bounded(held, _LARGEST_PICTURE)).decode("ascii")
        return f'<img alt="{escape(name)}" width="72" src="data:image/png;base64,{data}">'


def attack_of_folder(
    folder: Path, *, name: str | None = None, device: str | None = None, **keys: Any
) -> AttackResult:
    """Attack the run of a folder, with keys of [attack] in place of those of its run file."""
    if keys.get("denoiser") is not None:
        keys["denoiser"] = give(keys["denoiser"], key="[attack] denoiser")
    given = overrides_of({f"attack.{key}": value for key, value in keys.items()})
    try:
        found = attack_run(folder, overrides=given, name=name, device=device)
        return AttackResult(found, folder)
    except ContradictedProof as error:
        if (held := attack_as_asked(folder, given)) is None:
            raise
        return AttackResult(held, folder, str(error))
