"""What an attack writes of a point: its rows, pictures, conclusion, and what the proof allows."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ...attacks.interception.replay import ReplayedRun
from ...attacks.posterior import Denoiser
from ...attacks.scoring.columns import column_gains
from ...attacks.scoring.conclusion import conclusion
from ...attacks.scoring.evaluation import Row, score_each
from ...attacks.scoring.metrics import Scores, bootstrap_interval, conventions_for
from ...attacks.scoring.reconstruction_bound import LineupBound, ReconstructionBound
from ...privacy.errors import InputError
from ...privacy.files import lock, make_folder, sync_folder
from ...training.data.load import Dataset
from ...training.own.names import found_object
from ..audit import evidence_schema
from ..audit.evidence import read_evidence
from ..described import Described
from ..folder import folder as run_folder
from ..folder.folder import forget_sums, is_listed, write_sums
from ..run_file.run_file import RunFile
from ..run_file.trust import digest_of_sources
from .planted import DISTANCE, HELD_OUT, Public, row_fields, save_gallery, save_picture, values_of
from .points import Point
from .prior_records import KEY, digest_of

# Where an attack on a run lies, what is kept of it while it goes on, and how it is closed.
#
# The first attack of a run lies in attacks/ itself, and each other in a folder of its own below it:
#
#     attacks/attack.json             the first attack, once it is finished
#     attacks/NAME/attack.json        another, named by the user or by the keys that differ
#     .../asked.json                  its keys of [attack], written before anything else
#     .../point-*.json                of an attack that is not finished: its points that are done
#
# A process that is killed loses at most one point: asked.json comes first, a point is written
# whole, attack.json is written while the points are still there, and they go once SHA256SUMS names
# it. An attack.json that no sum names and beside which points lie is written again from them.

_ASKED = "asked.json"
_LATER = ("prior", "prior_only", "denoiser")
_DIGESTS = ("prior_sha256", "denoiser_sha256")  # of what [attack] names
_LONGEST = 60  # letters of a name
_NAME = re.compile(rf"[a-z0-9][a-z0-9._+-]{{0,{_LONGEST - 1}}}")


class AttackRequest(Described):
    """The object of asked.json."""

    version: Annotated[Literal[1], Field(alias="schema")]
    attack: dict[str, object]
    """[attack] of the run file, with what was given in place of its keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The folder of one attack.

    Attributes:
        folder: of the run.
        name: of the attack; empty of the first.
    """

    folder: Path
    name: str = ""

    @property
    def held(self) -> str:
        """Path of the attack's folder within the run.

        >>> Place(folder=Path("run"), name="idlg").held
        'attacks/idlg'
        """
        return f"{run_folder.ATTACKS}/{self.name}" if self.name else run_folder.ATTACKS

    @property
    def path(self) -> Path:
        """The attack's folder."""
        return self.folder / self.held

    @property
    def attack(self) -> Path:
        """Its attack.json."""
        return self.folder / run_folder.attack_file(self.name)

    def point(self, point: Point) -> Path:
        """What is kept of a point until all are done."""
        return self.path / f"point-{point.name}.json"

    def begin(self, asked: Mapping[str, object]) -> None:
        """Make the folder of an attack, or go on with it; its files are written anew."""
        forget_sums(self.folder, within=self.held)
        make_folder(self.path)
        sync_folder(self.path.parent)
        if not (self.path / _ASKED).exists():
            AttackRequest(version=1, attack=dict(asked)).write(self.path / _ASKED)

    def read(self, point: Point) -> evidence_schema.Scenario | None:
        """What an earlier process found of a point; None where it is yet to be attacked."""
        remedy = "remove it, and the point is attacked again"
        return evidence_schema.Scenario.read_if_there(self.point(point), remedy=remedy)

    def finish(self, result: evidence_schema.Attack) -> None:
        """Write attack.json and the sums, and drop what was kept of single points."""
        result.write(self.attack)
        write_sums(self.folder)
        for path in self._points():
            path.unlink(missing_ok=True)

    def _points(self) -> list[Path]:
        return sorted(self.path.glob("point-*.json"))

    @property
    def is_free(self) -> bool:
        """Whether no attack was begun here."""
        return not (self.attack.exists() or (self.path / _ASKED).exists() or self._points())

    @property
    def is_finished(self) -> bool:
        """Whether an attack was finished here."""
        return self.attack.exists()

    def reopen(self) -> None:
        """Take away an attack.json that no sum names and whose points are still there."""
        if self._points() and not is_listed(self.folder, run_folder.attack_file(self.name)):
            self.attack.unlink()

    def asked(self) -> dict[str, object] | None:
        """What an attack here was asked to do; None where an older version did not write it."""
        remedy = f"move {self.path} away and attack again"
        found = AttackRequest.read_if_there(self.path / _ASKED, remedy=remedy)
        return None if found is None else found.attack


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let no other process attack a run meanwhile: one would write over what the other found.

    Args:
        folder: of the run. It is locked itself, so that nothing is left in it; where the system
            locks no folders, nobody is kept out.

    Raises:
        InputError: another process attacks it.
    """
    with contextlib.ExitStack() as held:
        if sys.platform != "win32" and folder.is_dir():
            file = os.open(folder, os.O_RDONLY)
            held.callback(os.close, file)
            free = True
            with contextlib.suppress(OSError):  # a file system without locks
                free = lock(file)
            if not free:
                raise InputError(
                    f"another process is attacking {folder}; wait until it ends, and then attack "
                    "again"
                )
        yield


def reopen(folder: Path) -> None:
    """Make every attack that was killed in its last step one that goes on."""
    for place in _places(folder):
        place.reopen()


def check_unrepeated(folder: Path) -> None:
    """Refuse to repeat the first attack, without reading the run, if it was the run file's.

    Raises:
        FileExistsError: it is finished.
    """
    first = Place(folder=folder)
    if first.is_finished and first.asked() is None:
        raise _finished(first)


def find_place(
    folder: Path, asked: Mapping[str, object], *, of_run: Mapping[str, object], name: str | None
) -> Place:
    """Where an attack lies: a new folder, or that of the same attack if it was interrupted.

    Args:
        asked: [attack] of the run file with what was given in place of its keys, as JSON holds it.
        of_run: [attack] of the run file.
        name: of the attack; by default the first lies in attacks/, and another is named after the
            keys in which it differs from the run file.

    Raises:
        FileExistsError: an attack is finished there, or one with other keys was begun.
        ValueError: the name is none, or something else lies there.
    """
    attacks = folder / run_folder.ATTACKS
    if attacks.exists() and not attacks.is_dir():
        raise InputError(f"{attacks} is no folder, where an attack is written; move it away")
    if name is not None:
        return _claimed(Place(folder=folder, name=_checked(name)), asked, of_run)
    first = Place(folder=folder)
    if first.is_free or _asked_of(first, of_run) == asked:
        return _claimed(first, asked, of_run)
    return _claimed(Place(folder=folder, name=_named(asked, of_run)), asked, of_run)


def finished_attack(
    folder: Path, asked: Mapping[str, object], *, of_run: Mapping[str, object]
) -> evidence_schema.Attack | None:
    """What the latest finished attack found that was asked the same; None where there is none.

    The arguments are those of `find_place`.

    Raises:
        ValueError: it cannot be read.
    """
    alike = [one for one in _places(folder) if one.is_finished and _asked_of(one, of_run) == asked]
    if not alike:
        return None
    latest = max(alike, key=lambda one: one.attack.stat().st_mtime_ns)
    return read_evidence(latest.attack, evidence_schema.Attack, "overhear attack DIR")


def commands_of(folder: Path, config: RunFile) -> dict[str, str]:
    """The command that makes each finished attack of a run: attack.json -> command."""
    of_run, found = asked_of(config, digested=False), {}
    for place in _places(folder):
        asked = _asked_of(place, of_run)
        words = ["overhear", "attack", "DIR", *(["--name", place.name] if place.name else [])]
        for key, value in asked.items():
            if value != of_run.get(key) and key not in _DIGESTS:
                words += _option(key, value)
        found[run_folder.attack_file(place.name)] = shlex.join(words)
    return found


def _option(key: str, value: Any) -> list[str]:
    """What gives a key of [attack] on the command line."""
    if key == "presets":
        return [word for preset in value for word in ("--preset", preset)]
    if key in ("images", "adversary", "prior", "denoiser"):
        return [f"--{key}", str(value)]
    if key == "prior_only" and value:
        return ["--prior-only"]
    return ["--set", f"attack.{key}={value!r}"]


def asked_of(config: RunFile, *, digested: bool = True) -> dict[str, object]:
    """[attack] of a run file, as JSON holds it, with digests of the records and code it names.

    A key that came later and says nothing is left out, as attacks of before have it not.

    Args:
        digested: whether the records are digested, which have to be there then, and the code, if
            it was imported.
    """
    asked = config.attack.model_dump(mode="json")
    found: dict[str, object] = {
        key: value for key, value in asked.items() if value is not None or key not in _LATER
    }
    if digested and config.attack.prior is not None:
        found[_DIGESTS[0]] = digest_of(Path(config.attack.prior).expanduser())
    name = config.attack.denoiser
    if digested and name is not None and found_object(name) is not None:
        found[_DIGESTS[1]] = digest_of_sources({KEY: name})
    return found


def _places(folder: Path) -> list[Place]:
    """Of the finished attacks of a run."""
    return [
        Place(folder=folder, name="" if name == run_folder.ATTACK else Path(name).parent.name)
        for name in run_folder.attack_files(folder)
    ]


def _claimed(place: Place, asked: Mapping[str, object], of_run: Mapping[str, object]) -> Place:
    """The place, if it is free or holds the same attack unfinished."""
    if place.path.is_symlink() or (place.path.exists() and not place.path.is_dir()):
        raise InputError(
            f"{place.path} is no folder, where an attack is written; give another --name"
        )
    if place.is_finished:
        raise _finished(place)
    if not place.is_free and (held := _asked_of(place, of_run)) != asked:
        raise FileExistsError(
            f"{place.path} holds an unfinished attack with {_differences(held, asked)}; give that "
            "again to go on with it, or another --name"
        )
    return place


def _finished(place: Place) -> FileExistsError:
    return FileExistsError(
        f"{place.attack} exists; attack another run, or move {place.held} away, or attack this "
        "run again beside it: with other keys of [attack] or, with the same, by a --name of its own"
    )


def _asked_of(place: Place, of_run: Mapping[str, object]) -> Mapping[str, object]:
    """What an attack was asked; before it was written down, only the run file could ask."""
    held = place.asked()
    return of_run if held is None else held


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or name.endswith((".json", ".png")):
        raise InputError(
            f"name={name!r} of an attack names its folder below {run_folder.ATTACKS}: give at most "
            f"{_LONGEST} small letters, digits and . _ + -, the first a letter or digit, and no "
            "ending .json or .png"
        )
    return name


def _named(asked: Mapping[str, object], of_run: Mapping[str, object]) -> str:
    """A name made of the keys that differ."""
    parts = []
    for key, value in asked.items():
        if value == of_run.get(key) or key in _DIGESTS:
            continue
        text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
        parts.append(text if key in ("presets", "adversary") else f"{key}-{text}")
    name = re.sub(r"[^a-z0-9._+]+", "-", "-".join(parts).lower()).strip("-") or "run-file"
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def _differences(held: Mapping[str, object], asked: Mapping[str, object]) -> str:
    """The keys of a begun attack that are not those asked for now."""
    keys = [key for key in {**held, **asked} if held.get(key) != asked.get(key)]
    return ", ".join(f"{key}={held.get(key)!r}" for key in keys)


PLANTED = "public test records, planted as the victim's batch of re-enacted rounds"


def shown_pictures(
    folder: Path, scenarios: Sequence[evidence_schema.Scenario], *, show_records: bool = False
) -> dict[str, Path]:
    """The pictures of attacks that lie in a run's folder, by the path that their file names.

    Those of other records than planted public ones are meant, too, where `show_records` is set.
    """
    shown = [of for of in scenarios if show_records or of.records == PLANTED]
    named = {path for of in shown for path in of.originals}
    named |= {path for of in shown for row in of.rows for path in row.images}
    attacks = folder / run_folder.ATTACKS
    found = sorted([*attacks.glob("*.png"), *attacks.glob("*/*.png")])
    paths = {path.relative_to(folder).as_posix(): path for path in found}
    return {name: path for name, path in paths.items() if name in named}


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """A point, the rounds that are re-enacted for it, and mu of what they release."""

    point: Point
    trial: ReplayedRun
    proven: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """The public records, and where they are searched for."""

    data: Dataset
    public: Public
    shown: Tensor  # (N, channels, height, width) pixels, or (N, D) of a table on the unit box
    originals: Sequence[str]  # paths of their pictures
    device: torch.device
    denoiser: Denoiser | None = None


def entry_of(
    place: Place,
    aim: Aim,
    planted: Planted,
    *,
    rows: Sequence[Row],
    bound: ReconstructionBound,
    ranked: Sequence[LineupBound],
    batch: int,
) -> evidence_schema.Scenario:
    """The entry of a point: the four rows and what the proof allows."""
    point, trial, data = aim.point, aim.trial, planted.data
    gallery, told = None, dict[str, Any]()  # what only rows of tables say, by name
    # Rows of tables have values, and pictures a gallery.
    if data.columns:
        values = [] if data.held_out else values_of(data.columns, planted.shown)
        told = {"distance": DISTANCE, "values": values}
    else:
        gallery = f"{place.held}/gallery-{point.name}.png"
        (place.folder / gallery).unlink(missing_ok=True)  # of a point that was interrupted
        save_gallery(
            place.folder / gallery,
            [
                ("original", planted.shown, ()),
                *((of.name, of.images, [f"{v:.1f} dB" for v in of.scores.psnr]) for of in rows),
            ],
        )
    return evidence_schema.Scenario(
        scenario=str(point.scenario),
        adversary=trial.parsed_adversary().name,
        round=point.round,
        model_owner=trial.model_owner if point.scenario == "cross-gradient" else point.victim,
        victim=point.victim,
        preset=point.preset,
        batch=batch,
        together=trial.together,
        rows=[
            _row(place, point.name, row, planted, rows[0], ranked if row is rows[-1] else ())
            for row in rows
        ],
        originals=list(planted.originals),
        gallery=gallery,
        records=HELD_OUT if data.columns and data.held_out else PLANTED,
        known=planted.public.known,
        conclusion=_words(rows, planted, batch=batch),
        bound=_allowed(bound, ranked),
        **told,
    ).with_words()


def save_pictures(place: Place, name: str, images: Tensor) -> list[str]:
    """Write (N, channels, height, width) pixels as PNG files; their paths within the run."""
    paths = [f"{place.held}/{name}-{i}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        save_picture(place.folder / path, image)
    return paths


def _words(rows: Sequence[Row], planted: Planted, *, batch: int) -> str:
    """The conclusion, and whether the gradient stands out of the noise at all."""
    columns = planted.data.columns
    said = conclusion(
        rows,
        threshold=planted.public.threshold,
        guessed=planted.public.guessed,
        near=planted.public.near,
        guessed_label=planted.public.guessed_label,
        table=bool(columns),
        gains=column_gains(columns, planted.shown, rows[-1].images, usual=rows[0].images)
        if columns and batch == 1  # others are paired so that they fit best
        else (),
    )
    return f"{said} {rows[-1].spectral}".strip()


def _allowed(
    bound: ReconstructionBound, ranked: Sequence[LineupBound]
) -> evidence_schema.AllowedByProof:
    """Both kinds of success in one sentence; either may contradict the proof."""
    return evidence_schema.AllowedByProof.from_object(
        bound,
        most=bound.bound,
        rebuilt=bound.hits,
        exceeded=bound.exceeded or any(lineup_bound.limit.exceeded for lineup_bound in ranked),
        sentence=" ".join(
            [bound.sentence(), *(lineup_bound.sentence() for lineup_bound in ranked)]
        ),
    )


def _row(
    place: Place, name: str, row: Row, planted: Planted, blind: Row, ranked: Sequence[LineupBound]
) -> evidence_schema.AttackRow:
    s, shown = row.scores, planted.shown
    limits = {lineup_bound.size: lineup_bound.limit for lineup_bound in ranked}
    # Errors by column, or by each convention of scaling pixels.
    if planted.data.columns:
        more = row_fields(row, planted.data, shown, blind)
    else:
        pictures = f"{name}-{row.name.replace(' ', '-')}"
        more = {
            "conventions": {
                key: _scaled(score_each(shown, row.images, convention=convention))
                for key, convention in conventions_for(shown.shape[1]).items()
            },
            "images": save_pictures(place, pictures, row.images),
        }
    return evidence_schema.AttackRow(
        name=row.name,
        mse=list(s.mse),
        psnr=list(s.psnr),
        ssim=list(s.ssim),
        mean=means(s),
        interval={"mse": bootstrap_interval(s.mse), "psnr": bootstrap_interval(s.psnr)},
        stage=list(row.stages),
        noise_std=row.noise_std,
        intercepts=row.intercepts,
        labels=list(row.labels),
        right_labels=row.right_labels,
        candidates=row.candidates,
        power=list(row.power),
        lineups=[
            evidence_schema.Lineup(
                of=size,
                ranks=list(found),
                first=sum(rank == 1 for rank in found),
                most=limits[size].bound if size in limits else None,
                exceeded=size in limits and limits[size].exceeded,
            )
            for size, found in row.lineups.items()
        ],
        spectral=row.spectral,
        unused=list(row.unused),
        **more,
    )


def _scaled(scores: Scores) -> evidence_schema.ScaledMeans:
    """The means of scores of several images, and how far they are known."""
    every = {"mse": scores.mse, "psnr": scores.psnr, "ssim": scores.ssim}
    known = {name: values for name, values in every.items() if not np.isnan(values).any()}
    return evidence_schema.ScaledMeans(
        mse=scores.mean_mse,
        psnr=scores.mean_psnr,
        ssim=scores.mean_ssim,
        interval={name: bootstrap_interval(values) for name, values in known.items()},
    )


def means(scores: Scores) -> evidence_schema.Means:
    """The means of scores of several images."""
    return evidence_schema.Means(mse=scores.mean_mse, psnr=scores.mean_psnr, ssim=scores.mean_ssim)
