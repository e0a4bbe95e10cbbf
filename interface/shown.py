"""What a call from Python gives back, and how a notebook shows it: reports, audits and attacks.

All are rows, in plain text, in HTML and as a data frame.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from ..privacy.errors import InputError
from ..privacy.files import opened_picture, read_bounded
from ..privacy.formats.codec import as_text as json_text
from ..privacy.formats.toml_text import toml_value
from ..privacy.plain_text import aligned, html_table, in_columns, markdown_text, plain_lines
from ..privacy.releases.log import holds_logs
from ..reports.document.declared import account_of_logs, report_of_logs, write_declared
from ..reports.document.html import columns_of, found_folder, read_found, render_found, write_found
from ..reports.document.markdown import report_markdown
from ..runs.attack.gradients_schema import GradientAttack
from ..runs.audit.evidence import read_audit
from ..runs.audit.evidence_schema import Attack, Audit
from ..runs.errors import ContradictedProof
from ..runs.numbers import bound, figure, lower_bound, score
from ..training.accounts.summary import as_frame
from ..training.engine.tensor_file import read_tensors
from ..training.own.objects import give

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def as_text(head: str, rows: Sequence[Mapping[str, str]], notes: Iterable[str] = ()) -> str:
    """A line, a table of head -> cell, and sentences below it."""
    heads, cells = in_columns(rows)
    lines = aligned([heads, *cells]) if rows else ()
    told = list(notes)
    text = "\n".join([head, "", *lines, *([""] if told else []), *told])
    return plain_lines(text.rstrip("\n"))


def as_html(head: str, rows: Sequence[Mapping[str, str]], notes: Iterable[str] = ()) -> str:
    """The same as a table of HTML; nothing is loaded for it."""
    return html_table([head], *in_columns(rows), notes)


class InRows:
    """What has rows for a data frame."""

    __slots__ = ()

    if TYPE_CHECKING:  # a field or a property

        @property
        def rows(self) -> list[dict[str, Any]]:
            """By name of a column."""

    def to_pandas(self) -> DataFrame:
        """The rows as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        return as_frame(self.rows)


class Shown:
    """What shows itself as a line, a table and sentences, in a notebook as HTML."""

    __slots__ = ()

    @abstractmethod
    def _head(self) -> str:
        """The line above the table."""

    @abstractmethod
    def _cells(self) -> list[dict[str, str]]:
        """The table's rows, by head."""

    def _notes(self) -> list[str]:
        """The sentences below it."""
        return []

    def __repr__(self) -> str:
        """The line, the rows and the sentences."""
        return as_text(self._head(), self._cells(), self._notes())

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return as_html(self._head(), self._cells(), self._notes())


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Overrides in the words of the command line, of values by "table.key" or by table and key.

    Raises:
        ValueError: a key without a table, or a value that a run file cannot hold.

    >>> overrides_of({"privacy.epsilon": 3, "training": {"rounds": 20}})
    ['privacy.epsilon=3', 'training.rounds=20']
    """
    found = []
    for name, value in values.items():
        table, _, key = str(name).partition(".")
        if not key and isinstance(value, Mapping):
            found += overrides_of({f"{table}.{inner}": v for inner, v in value.items()})
            continue
        if not key:
            raise InputError(
                f"set={{{name!r}: ...}} must name a table and a key: 'privacy.epsilon'"
            )
        held = list(value) if isinstance(value, tuple | list | set | frozenset) else value
        try:
            found.append(f"{name}={toml_value(held)}")
        except TypeError as error:
            raise InputError(
                f"set {name}={value!r:.60} is nothing that a run file holds"
            ) from error
    return found


_FORMATS = ("html", "json", "md")


@dataclass(frozen=True, slots=True)
class Report:
    """A report, as text.

    Attributes:
        text: HTML, JSON or Markdown.
        format: which of them.
        path: the page, where one was written.
    """

    text: str
    format: str
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The figures of a report in JSON.

        Raises:
            ValueError: it was made in another format.
        """
        if self.format != "json":
            raise InputError(f'format={self.format!r} holds no figures; report(..., format="json")')
        return dict(json.loads(self.text))

    def __str__(self) -> str:
        """The text; of a page, which is for a browser, where it was written."""
        return f"The report: {self.path}" if self.path is not None else self.text

    def __repr__(self) -> str:
        """The page, or what was made."""
        return self.text if self.format == "md" else f"Report({str(self.path or self.format)!r})"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, which runs nothing and reaches nothing."""
        if self.format != "html":
            return f"<pre>{escape(self.text)}</pre>"
        return (
            '<iframe sandbox="" style="width:100%;height:720px;border:1px solid #999" '
            f'title="privacy report" srcdoc="{escape(self.text)}"></iframe>'
        )


def report_of_folder(folder: Path, format: str = "html", *, show_records: bool = False) -> Report:
    """The report on a folder; see `overhear.report`."""
    if format not in _FORMATS:
        raise InputError(f"format={format!r} must be one of {', '.join(_FORMATS)}")
    if (gradients := found_folder(folder)) is not None:
        if format == "html":
            page = write_found(gradients)
            return Report(page.read_text(encoding="utf-8"), format, page)
        told = read_found(gradients)
        if format == "json":
            return Report(json_text(told.dump()), format)
        from ..runs.attack.words import summary_lines

        lines = "".join(f"- {markdown_text(line)}\n" for line in summary_lines(told, gradients))
        return Report(lines, format)
    declared = holds_logs(folder)
    if not declared:
        from ..reports.document.collect import collect, report_run  # which take torch

    if format == "html":
        page = write_declared(folder) if declared else report_run(folder, show_records=show_records)
        return Report(page.read_text(encoding="utf-8"), format, page)
    report = report_of_logs(account_of_logs([folder])) if declared else collect(folder)
    return Report(report_markdown(report) if format == "md" else json_text(report.dump()), format)


@dataclass(frozen=True, slots=True, repr=False)
class AuditResult(Shown, InRows):
    """What was measured of a run, beside what is proven.

    Attributes:
        found: as audit.json holds it.
    """

    found: Audit

    @property
    def verdict(self) -> str:
        """Of the whole audit: consistent, suspicious, contradicted, and so on."""
        return self.found.verdict

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against what is proven."""
        return self.found.verdict in ("consistent", "cleared")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """By adversary what is proven and what was measured."""
        return [
            {
                "adversary": adversary.name,
                "proven_epsilon": float(adversary.proven_epsilon),
                "status": adversary.status,
                "measured_epsilon": adversary.measured_epsilon,
                "ideal_epsilon": adversary.ideal_epsilon,
                "seen_epsilon": adversary.seen_epsilon,
                "canaries": adversary.canaries,
                "verdict": adversary.verdict,
            }
            for adversary in self.found.adversaries
        ]

    def statement(self) -> str:
        """What was measured of each adversary and what was checked, in sentences to paste."""
        said = [one.words for one in self.found.adversaries]
        return " ".join(f"{one.rstrip('.')}." for one in (self._head(), *said, *self._notes()))

    def to_json(self) -> dict[str, Any]:
        """The object that audit.json holds; infinite figures are "inf"."""
        return self.found.dump()

    def _head(self) -> str:
        return f"Audit with {self.found.canaries} canaries: {self.found.verdict}"

    def _cells(self) -> list[dict[str, str]]:
        return [
            {
                "adversary": one.name,
                "at most": f"{bound(one.proven_epsilon, one.digits)} ({one.status})",
                "measured": "at least " + lower_bound(one.measured_epsilon, one.digits)
                if one.measured_epsilon is not None
                else "nothing",
                "verdict": one.verdict,
            }
            for one in self.found.adversaries
        ]

    def _notes(self) -> list[str]:
        return [
            f"{check.name}: {'passed' if check.passed else 'FAILED'}: {check.words}"
            for check in self.found.checks
        ]


def audit_of_folder(
    folder: Path, *, again: bool = False, device: str | None = None, **keys: Any
) -> AuditResult:
    """Audit the run of a folder, with keys of [audit] in place of those of its run file."""
    from ..runs.audit.audit import audit_folder

    overrides = overrides_of({f"audit.{key}": value for key, value in keys.items()})
    try:
        found = audit_folder(folder, overrides=overrides, device=device, again=again)
    except ContradictedProof:
        audit = read_audit(folder)
        if audit is None:
            raise
        found = audit
    return AuditResult(found)


_LARGEST_PICTURE = 64 << 20  # bytes
_MOST_SHOWN = 40  # pictures of a gallery in a notebook


@dataclass(frozen=True, slots=True, repr=False)
class AttackResult(Shown, InRows):
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
                "found": row.found_in_all,
            }
            for one in self.found.scenarios
            for row in one.rows
        ]

    def statement(self) -> str:
        """What each scenario comes to, in sentences to paste."""
        return " ".join(f"{one.rstrip('.')}." for one in self._notes())

    def to_json(self) -> dict[str, Any]:
        """The object that attack.json holds; infinite figures are "inf"."""
        return self.found.dump()

    def _repr_html_(self) -> str:
        """The rows, and the pictures that were rebuilt."""
        return as_html(self._head(), self._cells(), self._notes()) + self._gallery()

    def _head(self) -> str:
        return "Reconstruction"

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
                "found": str(row["found"]),
            }
            for row in self.rows
        ]

    def _notes(self) -> list[str]:
        told = [text for s in self.found.scenarios for text in (s.conclusion, s.bound.sentence)]
        return [*dict.fromkeys(told), *([self.contradicts] if self.contradicts else [])]

    def plot(self) -> Figure:
        """The pictures of every scenario, by matplotlib: a row each of planted, rebuilt, and so on.

        Raises:
            ValueError: the records are no pictures.
            ImportError: matplotlib is not installed.
        """
        return _drawn(self._pictures(), self.folder)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By scenario, attack and what is attacked its pictures, (N, height, width, 3) levels."""
        found = {}
        for name, files in self._pictures():
            levels = []
            for file in files:
                with opened_picture(self.folder / file) as image:
                    levels.append(np.array(image.convert("RGB")))
            found[name] = np.stack(levels)
        return found

    def _pictures(self) -> list[tuple[str, list[str]]]:
        """Rows of pictures by their names."""
        named = [
            (f"{one.scenario}, {one.preset}: {name}", list(files))
            for one in self.found.scenarios
            for name, files in (
                ("planted", one.originals),
                *((row.name, row.images) for row in one.rows),
            )
        ]
        return [(name, files) for name, files in named if files]

    def _gallery(self) -> str:
        parts, left = [], _MOST_SHOWN
        for name, images in self._pictures():
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
        style = 'style="image-rendering:pixelated" width="96"'
        return f'<img alt="{escape(name)}" {style} src="data:image/png;base64,{data}">'


class GradientResult(GradientAttack, InRows):
    """What was rebuilt from gradients, beside what attack.json holds of it."""

    _folder: Path = PrivateAttr()

    @property
    def folder(self) -> Path:
        """Where the pictures and tensors are."""
        return self._folder

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What was rebuilt.

        Returns:
            `inputs` (B, *input_shape) as the network is fed, `pixels` the same in [0, 1], and
            `labels` (B,); of text `tokens` (B, length) and `labels`, -1 where one is not known.
        """
        held = read_tensors(self.folder / self.reconstruction).tensors
        return {name: tensor.numpy() for name, tensor in held.items()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each record that was found; psnr beside the truth is None without it."""
        scores, near = self.scores, dict[int, float]()
        if scores is not None:
            near = dict(zip(scores.order, scores.psnr, strict=True))
        each = zip(self.labels, self.stage, self.supported, strict=True)
        return [
            {"label": label, "stage": stage, "supported": held, "psnr": near.get(at)}
            for at, (label, stage, held) in enumerate(each)
        ]

    def to_json(self) -> dict[str, Any]:
        """The object of attack.json."""
        return self.dump()

    def plot(self) -> Figure:
        """The pictures of the report, by matplotlib: a row each of true, rebuilt, and so on.

        Raises:
            ValueError: the records are no pictures.
            ImportError: matplotlib is not installed.
        """
        return _drawn([(head, files) for head, _, files, _ in columns_of(self)], self.folder)

    def __repr__(self) -> str:
        """The lines that `overhear invert` prints."""
        from ..runs.attack.words import summary_lines

        return plain_lines("\n".join(summary_lines(self, self.folder)))

    def __str__(self) -> str:
        """The same."""
        return repr(self)

    def _repr_html_(self) -> str:
        """The page of `overhear report`, in a frame that runs nothing and reaches nothing."""
        return Report(render_found(self.folder, self), "html")._repr_html_()


def gradient_result(found: GradientAttack, folder: Path) -> GradientResult:
    """What was found, with the folder where it lies."""
    given = {name: getattr(found, name) for name in found.model_fields_set}
    result = GradientResult(**given)
    result._folder = folder
    return result


def _drawn(rows: Sequence[tuple[str, Sequence[str]]], folder: Path) -> Figure:
    """Rows of pictures, none of them smoothed."""
    shown = [(name, list(files)[:_MOST_SHOWN]) for name, files in rows]
    if not any(files for _, files in shown):
        raise InputError(f"what is in {folder} are no pictures; see arrays() or rows")
    found = [
        (name, [(folder / one, "") if (folder / one).is_file() else None for one in files])
        for name, files in shown
    ]
    from ..reports.sweep.plot import Pictures, drawn_pictures

    figure = drawn_pictures([[Pictures(found)]])
    width, height = figure.get_size_inches()
    figure.set_size_inches(2 * width, 2 * height)  # for a screen
    return in_pyplot(figure)


def in_pyplot(figure: Figure) -> Figure:
    """The same figure as one of pyplot's, which a notebook and `pyplot.show` show."""
    from matplotlib import pyplot as plt

    return plt.figure(FigureClass=lambda **_: figure)  # type: ignore[arg-type]


def attack_of_folder(
    folder: Path, *, name: str | None = None, device: str | None = None, **keys: Any
) -> AttackResult:
    """Attack the run of a folder, with keys of [attack] in place of those of its run file."""
    from ..runs.attack.attack import attack_as_asked, attack_run

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
