"""The report as one page: no script, nothing from outside, its own data inside.

The template escapes everything that is not markup of ours, and fails on a name that the report does
not have.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from ...privacy.errors import InputError
from ...privacy.files import read_bounded, write_durably
from ...privacy.formats.codec import as_text
from ...privacy.guarantee import SINGLE_MESSAGE, Status, Unit
from ...runs.attack.gradients_schema import GradientAttack
from ...runs.folder.folder import REPORT
from ...runs.numbers import bound, figure, is_infinite
from ..figures import plots
from ..figures.chart import both, graph_figure, key, network, network_key
from ..judgement.facts import facts_of_report
from ..judgement.findings import PARTS, Figure, Sentence
from ..judgement.wording import Outcome, verdict, who
from ..references import HEURISTIC, References, kind_of, sign_of, template
from ..schema import Report, Total
from .summary import summary_of

_SEES = {
    "eavesdropper": "reads every message on every link",
    "neighbour": "the single agent that learns most: what is sent to it or by it",
    "all-others": "everybody but the victim, pooling what they see and the noise they know",
    "final-models": "holds the models that the agents end with, and nothing else",
    "single-message": "one message alone, as papers often count; every adversary sees more",
    "server": "the server: what is sent to it or by it",
    "agent": "one agent: what is sent to it or by it, and its own noise",
    "coalition": "agents that pool what they see and the noise they know",
}
_ENCRYPTED = "cannot read the links; sees the released models alone"
_BADGES = {"verified": "✔ verified", "assumed": "○ assumed", "gap": "▲ gap"}
_ROWS = {
    "blind guess": "uses nothing that was sent",
    "no defence": "no clipping, no noise",
    "clipping only": "clipped, no noise",
    "defended": "the run as it was",
}
# What each check of an audit looked at, as a reader would call it.
_CHECKS = {
    "messages": "Messages are what the account says",
    "residuals": "Noise has the declared size",
    "streams": "Noise is new in every draw",
    "secrecy": "No one else can draw noise, batches and cohorts",
    "sampler": "Batches are drawn as declared",
    "knowledge": "An agent that makes noise is taken to know it",
    "functions": "Functions of a step return the same again",
    "values": "Values that count as known can be formed again",
    "records": "No record is stored or drawn twice",
    "sensitivity": "A record moves a message no further than clipped",
    "transcript": "The run's own messages fit its ledger",
    "absent canaries": "Who took no part leaves noise alone",
    "clipping": "Gradients of canaries are clipped",
    "independence": "Scores of canaries do not go together",
    "layout": "The run's way of clipping clips",
}
_MOST_COLUMNS = 40  # of a table
_MOST_SHOWN = 4  # records of a scenario
_MOST_BYTES = 115_000  # of pictures, before they are written as text


def render(report: Report, *, images: Mapping[str, bytes] | None = None) -> str:
    """Render a report.

    Args:
        images: PNG files by the path that the report names; one that is missing is said to be.

    Returns:
        The page, complete in itself. Its embedded data and its digest are those of the file that
        `Report.write` writes.
    """
    # Figures are cited by their places in the file; a template may ask for what is not set there.
    held: Any = report.model_dump(mode="json", by_alias=True)
    facts, text = facts_of_report(report), as_text(report.dump())
    # The verdict, and claims by adversary as the page words them.
    found, head, cited = verdict(facts), facts.head, References(held)
    series = plots.epsilon_series(report)
    claims = {claim.adversary: claim for claim in facts.claims}
    phrases = {claim.adversary: who(claim, facts) for claim in facts.claims}
    return template(__package__ or "overhear.reports", "report.html").render(
        report=held,
        run=held["run"],
        plan=held["plan"],
        spent=held["ledger"]["epsilon"],
        head=held["plan"]["adversaries"][facts.place(head)[-1]],
        subject=facts.whose or f"one {head.unit_name}",
        named=lambda row: Unit(row["unit"]).name_with(row.get("records_per_person")),
        parts=_parts(report),
        verdict=found,
        officer=summary_of(report, facts, found),
        gaps=sum(one.status == "gap" for one in report.assumptions),
        yardstick=_yardstick(),
        check_names=_CHECKS,
        scale=_twice(functools.partial(plots.scale_figure, report, cited, name=head.adversary)),
        within=found.outcome is not Outcome.NOT_MET,
        cite=cited,
        markup=functools.partial(_markup, cited=cited),
        sees=functools.partial(_sees, links=report.run.links),
        image=Pictures(images or {}),
        phrase=lambda name: phrases.get(name, name),
        upper=_is_bound,
        kind=lambda row: kind_of(upper=_is_bound(row)),
        sign=lambda row, epsilon: sign_of(epsilon, upper=_is_bound(row)),
        proven="proven" if report.declared is None else "declared",
        bounded=next(
            (n for n, c in enumerate(facts.claims) if c.is_bound and math.isfinite(c.epsilon)), None
        ),
        strongest=_strongest(report),
        badges=_BADGES,
        doubt=found.doubt,
        heuristic=HEURISTIC,
        standing=lambda row: str(claims[row["name"]].status),
        rows_words=_ROWS,
        shown=_MOST_SHOWN,
        most_columns=_MOST_COLUMNS,
        unused=_unused(report),
        graph=graph_figure(report),
        network=network(report),
        network_key=network_key,
        odds=plots.odds_figure(report, cited, name=head.adversary),
        epsilon_figure=_twice(functools.partial(plots.epsilon_figure, report, cited))
        if series
        else None,
        series=series,
        undrawn=[
            name
            for name, line in report.epsilon_by_round.items()
            if any(is_infinite(epsilon) for _, epsilon in line)
        ],
        key=key,
        partial=_partial(report),
        estimators=_estimators(report),
        measured_figure=_twice(functools.partial(plots.measured_figure, report, cited)),
        roc_figure=_twice(functools.partial(plots.roc_figure, report.membership)),
        recognised=None if (told := report.membership) is None else (told.played or told.run).plain,
        utility_figure=(
            _twice(functools.partial(plots.utility_figure, report, cited))
            if report.utility.consensus_accuracy
            else None
        ),
        recipient_notes=report.recipients.sentences() if report.recipients else [],
        total_notes=_notes(report.total) if report.total else [],
        environment=_flat(report.reproduce.environment.dump()),
        data=text,
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


def _notes(total: Total) -> list[str]:
    """What stands below the total of several runs, whose module takes torch."""
    from ..total.total import notes

    return list(notes(total))


@functools.cache
def _yardstick() -> list[dict[str, str]]:
    """What published deployments state: who, what it protects, epsilon, delta, source."""
    table = tomllib.loads(Path(__file__).with_name("yardstick.toml").read_text(encoding="utf-8"))
    return list(table["deployment"])


def _is_bound(row: Mapping[str, Any]) -> bool:
    """Whether the epsilon of a row is an upper bound."""
    return Status(row["status"]).is_bound


def _parts(report: Report) -> list[dict[str, Any]]:
    """The rows of real adversaries, and apart from them how papers count; by their places."""
    single = SINGLE_MESSAGE.name
    names = [row.adversary for row in report.plan.adversaries]
    return [
        {"title": "", "rows": [at for at, name in enumerate(names) if name != single]},
        {
            "title": PARTS["how_papers_count"],
            "rows": [at for at, name in enumerate(names) if name == single],
        },
    ]


def _twice(draw: Callable[..., Markup | None]) -> Markup | None:
    """A drawing for wide pages and for narrow ones, where there is anything to draw."""
    wide, narrow = draw(), draw(narrow=True)
    return None if wide is None or narrow is None else both(wide, narrow)


def _sees(name: str, *, links: str) -> str:
    """What an adversary sees, in words."""
    if name == "eavesdropper" and links == "encrypted":
        return _ENCRYPTED
    kind = name.partition(":")[0]
    return _SEES["agent" if name.startswith("neighbour:") else kind] if kind in _SEES else ""


def _markup(sentence: Sentence, *, cited: References) -> Markup:
    """A sentence with its figures cited and its code marked."""
    inside, found = False, []
    for piece in sentence:
        if isinstance(piece, Figure):
            found.append(cited(piece.kind, *piece.path) if piece.path else escape(piece.text))
        elif isinstance(piece, str):
            for number, part in enumerate(piece.split("`")):
                if number:
                    inside = not inside
                    found.append(Markup("<code>") if inside else Markup("</code>"))
                found.append(escape(part))
        else:
            found.append(escape(piece.text))
    return Markup("").join(found)


def _strongest(report: Report) -> int | None:
    """Index of the attack whose reconstructions from the run's own messages are best."""
    found = []
    for number, scenario in enumerate(report.attack.scenarios if report.attack else ()):
        near = {
            row.name: -float(row.mean.mse) if row.columns else float(row.mean.ssim)
            for row in scenario.rows
        }
        if {"defended", "blind guess"} <= near.keys() and not math.isnan(near["defended"]):
            found.append((near["defended"], number))
    return max(found)[1] if found else None


def _unused(report: Report) -> list[list[str]]:
    """By scenario what of the victim the attack on the run's own messages does not use."""
    return [
        [name for row in scenario.rows if row.name == "defended" for name in row.unused]
        for scenario in (report.attack.scenarios if report.attack else ())
    ]


def _partial(report: Report) -> bool:
    """Whether the audit ran fewer rounds than the run."""
    rounds = report.audit.rounds if report.audit else None
    return rounds is not None and rounds < report.run.rounds


def _estimators(report: Report) -> dict[str, str]:
    """What each estimator of the audit rests on, once for all adversaries."""
    return {
        estimator.name: estimator.assumptions.rstrip(".")
        for row in (report.audit.adversaries if report.audit else ())
        for estimator in row.estimators
    }


class Pictures:
    """Pictures inside the page, their pixels kept apart, until the page would grow too large."""

    def __init__(self, images: Mapping[str, bytes]) -> None:
        self._images = images
        self._left = _MOST_BYTES

    def __call__(self, path: str, *, alt: str) -> Markup:
        """The picture of a path, or words in its place."""
        held = self._images.get(path)
        if held is None:
            return Markup('<span class="noimage">not shown</span>')
        if len(held) > self._left:
            return Markup('<span class="noimage">see the run folder</span>')
        self._left -= len(held)
        data = base64.b64encode(held).decode("ascii")
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(alt, data)


def _flat(value: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Entries of nested objects, one line each."""
    lines: list[tuple[str, str]] = []
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            lines += _flat(entry, f"{prefix}{name} ")
        else:
            lines.append((prefix + name, str(entry)))
    return lines


ATTACK = "attack.json"
_LARGEST_PICTURE = 8 << 20  # bytes
_MOST_FOUND = 32  # records


def found_folder(target: Path) -> Path | None:
    """The folder that `overhear invert` wrote, of it or of its attack.json; None where it is none.

    Raises:
        ValueError: it is what `overhear attack` wrote of a run, whose report shows it.
    """
    folder = target.parent if target.name == ATTACK else target
    if not (folder / ATTACK).is_file():
        return None
    for run in folder.parents[:2]:
        if (run / "run.toml").is_file():
            raise InputError(f"{target} is of the run in {run}, whose report shows it; give {run}")
    return folder


def read_found(folder: Path) -> GradientAttack:
    """What `overhear invert` wrote.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it cannot be read, contradicts itself, or names pictures elsewhere.
    """
    path = folder / ATTACK
    found = GradientAttack.read(
        path,
        refusal=lambda at, what: (
            f"{path} cannot be read at {at}: {what}; make it again by overhear invert"
        ),
    )
    shown, order = len(found.images), [] if found.scores is None else found.scores.order
    least = min(len(found.labels), len(found.stage), len(found.supported))
    if shown > least or (shown and max(order, default=0) >= shown):
        raise InputError(
            f"{path} names {shown} pictures of {least} records; make it again by overhear invert"
        )
    left = [] if found.defended is None else found.defended.images
    for name in (*found.images, *found.originals, *found.guess, *left):
        if Path(name).name != name or Path(name).suffix != ".png" or (folder / name).is_symlink():
            raise InputError(f"{path} names the picture {name!r:.80}, which is none of its folder")
    return found


def picture(folder: Path, name: str) -> bytes | None:
    """The PNG file of a picture; None where it is not there."""
    path = folder / name
    return read_bounded(path, _LARGEST_PICTURE) if path.is_file() else None


def columns_of(found: GradientAttack) -> list[tuple[str, str, list[str], list[list[str]]]]:
    """Columns of pictures: head, what it is, files, and what stands below each of them."""
    records = range(len(found.images))
    order = found.scores.order if found.scores is not None else list(records)
    given = " (given)" if found.labels_given else ""
    told = []
    for true, at in enumerate(order[: len(found.images)]):
        label = f"label {found.labels[at]}{given}"
        way = f"rebuilt: {found.stage[at]}" if found.supported[at] else "the blind guess"
        values = [] if found.scores is None else found.scores.psnr[true : true + 1]
        near = [f"PSNR {figure(value)} dB" for value in values]
        told.append([label, way, *near])
    columns: list[tuple[str, str, list[str], list[list[str]]]] = []
    if found.originals:
        columns.append(("True record", "what the attack did not see", found.originals, []))
    rebuilt = [found.images[at] for at in order[: len(found.images)]]
    columns.append(("Rebuilt", "from the gradient", rebuilt, told))
    columns.append(("Blind guess", "uses no gradient", found.guess * len(rebuilt), []))
    if (left := found.defended) is not None:
        below = [
            [
                f"PSNR {figure(value)} dB",
                "nearer than the blind guess" if better else "no better than the blind guess",
            ]
            for value, better in zip(left.psnr, left.better, strict=False)
        ]
        head = f"Clip norm {left.clip_norm:g}, noise multiplier {left.noise_multiplier:g}"
        columns.append((head, "what these would leave", left.images, below))
    return columns


def render_found(folder: Path, found: GradientAttack) -> str:
    """The page, complete in itself."""
    columns = columns_of(found)
    images = {name: picture(folder, name) for *_, files, _ in columns for name in files}
    held = {name: data for name, data in images.items() if data is not None}
    facts: dict[str, Any] = {
        "model": found.model,
        "parameters": f"{found.parameters:,}, from the {found.parameters_from}",
        "records": found.records,
        "gradients": found.intercepts,
        "shape of a record": ", ".join(map(str, found.input_shape)),
        "attack": found.preset,
        "clip norm": "none" if found.clip_norm is None else figure(found.clip_norm),
        "noise on each coordinate": figure(found.noise_std),
        "unexplained of the gradient": figure(found.relative_residual, 2),
    }
    left = found.defended
    return template(__package__ or "overhear.reports", "found.html").render(
        found=found,
        facts=facts,
        columns=columns if found.images else [],
        shown=_MOST_FOUND,
        image=Pictures(held),
        epsilon="" if left is None else bound(left.epsilon),
    )


def write_found(folder: Path) -> Path:
    """Write report.html beside an attack on gradients, readable by its user alone.

    Raises:
        FileNotFoundError: there is none.
        ValueError: as of `read_found`.
    """
    page = render_found(folder, read_found(folder))
    write_durably(folder / REPORT, page.encode())
    return folder / REPORT
