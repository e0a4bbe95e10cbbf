"""A report as text, and how it is shown in a notebook."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..privacy.errors import InputError
from ..privacy.formats.codec import finite
from ..privacy.releases.log import holds_logs
from ..reports.document.collect import collect, report_run
from ..reports.document.declared import declared_markdown, declared_report, write_declared
from ..reports.document.markdown import report_markdown

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
    if holds_logs(folder):
        if format == "html":
            page = write_declared(folder)
            return Report(page.read_text(encoding="utf-8"), format, page)
        found = declared_report([folder])
        text = declared_markdown(found) if format == "md" else _json(found.dump())
        return Report(text, format)
    if format == "html":
        page = report_run(folder, show_records=show_records)
        return Report(page.read_text(encoding="utf-8"), format, page)
    report = collect(folder)
    return Report(report_markdown(report) if format == "md" else _json(report.dump()), format)


def _json(value: Any) -> str:
    return json.dumps(finite(value), indent=2, allow_nan=False) + "\n"
