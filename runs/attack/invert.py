"""Attack gradients that were intercepted anywhere, of a model that anybody wrote.

The file is that of `file`, what is known of the batch that of `batch`. No run
is needed, and nothing is known of the truth unless a file of it is given to score against.

Shape letters: K intercepts, B records, D parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...attacks.exact.stages import count_proven
from ...attacks.inversion.inversion import Reconstruction, reconstruct
from ...attacks.posterior import Candidates, Denoiser
from ...attacks.problem.objective import Preset, preset_of
from ...attacks.problem.observation import HOST, computed_once, observe
from ...attacks.problem.problem import home_of
from ...attacks.scoring.columns import column_scores, decoded
from ...attacks.scoring.metrics import match
from ...attacks.tokens.certificate import TokenReconstruction
from ...privacy.accounting.gaussian import epsilon_from_mu
from ...privacy.errors import InputError, Progress
from ...privacy.files import PART, write_durably
from ...privacy.formats.toml_text import read_toml
from ...training.data.columns import Declared, declared
from ...training.data.load import TableColumn
from ...training.data.table import columns_of
from ...training.models.parameters import with_batch_statistics
from ..folder import folder as run_folder
from ..requests import GradientRequest
from ..run_file.tables import find_device
from ..stop import Stop, tell
from . import planted, prior_records
from .gradients_schema import Defended, GradientAttack, TruthScores
from .layouts import BatchFacts, between, facts_of, told_apart
from .model import Posed, build_problem, residual_of, residual_of_noise
from .scenario import means
from .tokens import check_token_facts, describe_tokens, read_vocabulary, rebuild
from .tokens import read_records as read_records_of_tokens
from .words import conclusion, doubts

# Rows of a table among gradients: their columns, from a run file, and what was rebuilt of each.


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientTable:
    """The columns of the records behind gradients.

    Attributes:
        declaration: as a run file has it.
        columns: what the numbers of a record stand for.
        separator: of csv files.
    """

    declaration: Declared
    columns: tuple[TableColumn, ...]
    separator: str

    def check(self, input_shape: tuple[int, ...]) -> None:
        """Refuse records of another number of numbers.

        Raises:
            ValueError: the shape is not that of the columns.
        """
        width = self.declaration.width
        if input_shape != (width,):
            raise InputError(
                f"input_shape={input_shape} must be ({width},), as many numbers as the declared "
                "columns have; leave it out"
            )

    def told(self, found: Tensor, truth: Tensor | None, *, guess: Tensor) -> dict[str, object]:
        """What a `GradientAttack` says of rows: values, and with the truth scores by column.

        The rows and the truth, each beside its match, are (N, D) on the unit box; the guess is
        (D,).
        """
        said: dict[str, object] = {"values": planted.values_of(self.columns, found)}
        if truth is not None:
            matched = found[list(match(truth, found).order)]
            said["whole"] = planted.whole_rows(self.columns, truth, decoded(matched, self.columns))
            blind = guess.expand_as(truth)
            said["columns"] = column_scores(self.columns, truth, matched, blind=blind)
        return said


def read_columns(path: Path) -> GradientTable:
    """The columns that a run file declares.

    Args:
        path: a TOML file whose [data] has columns and target.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is no TOML, or declares no columns.
    """
    if not path.exists():
        raise FileNotFoundError(f"no file of columns at {path}")
    data = read_toml(path).get("data")
    known = data.get("columns") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(known, dict) or not _are_lists(known):
        raise InputError(
            f'{path} must declare [data.columns], by name [low, high] or ["f", "m"], as the run '
            "file of a table does"
        )
    target, separator = data.get("target", ""), data.get("separator", ",")
    if not isinstance(target, str) or not isinstance(separator, str):
        raise InputError(f"{path}: [data] target and separator must be text")
    declaration = declared(known, target=target, outputs=0, clamp=data.get("outside") == "clamp")
    return GradientTable(
        declaration=declaration, columns=columns_of(declaration), separator=separator
    )


def _are_lists(columns: dict[str, object]) -> bool:
    return all(isinstance(of, Sequence) and not isinstance(of, str) for of in columns.values())


# What an attacker of gradients is taken to know of the record: public ones, and a denoiser.


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known before the gradient is looked at.

    Attributes:
        guess: (*input_shape) pixels, to which falls back what the gradient does not speak for.
        candidates: several public records, to weigh where one record is observed.
        denoiser: of the user's.
    """

    guess: Tensor
    candidates: Candidates | None
    denoiser: Denoiser | None


def pixels_of(
    path: Path, facts: BatchFacts, *, classes: int, table: GradientTable | None = None
) -> Tensor:
    """(N, *input_shape) pixels in [0, 1] of the records of a file.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: `read_records` refuses it.
    """
    return prior_records.read_records(path, _form(facts, classes=classes, table=table)).pixels


def known_of(
    prior: Path | None,
    denoiser: str | None,
    facts: BatchFacts,
    *,
    settings: Preset,
    truth: Tensor | None,
    classes: int,
    seed: int,
    table: GradientTable | None = None,
) -> Known:
    """What the options say, mid-grey where they say nothing.

    Args:
        prior: file of public records.
        denoiser: "module:NAME".
        settings: of the attack.
        truth: (records, *input_shape) pixels to score against, none of which may be in the file.
        seed: decides which of many records are weighed.
        table: the columns of a record, if it is a row of a table.

    Raises:
        ValueError: something cannot be read, holds the truth, has no effect, or is missing.
    """
    # The guess is the mean of public records, or grey; one record is weighed against them.
    guess, candidates = torch.full(facts.input_shape, 0.5, dtype=torch.float64), None
    if prior is not None:
        known = prior_records.read_records(prior, _form(facts, classes=classes, table=table))
        guess = known.pixels.mean(dim=0)
        if len(known.pixels) > 1 and facts.records == 1:
            if truth is not None:
                prior_records.check_unplanted(prior, known, truth)
            low, high = facts.bounds()
            candidates = prior_records.candidates_of(
                known,
                to_inputs=lambda units: low + (high - low) * units,
                classes=classes,
                seed=seed,
            )
    # Denoiser and preset have an effect on such a batch.
    own = prior_records.own_denoiser(denoiser, folder=None, notice=tell).denoiser
    if own is not None and not (settings.posterior and facts.records == 1 and facts.noise_std > 0):
        raise InputError(
            f"denoiser has no effect with records={facts.records} and noise_std="
            f"{facts.noise_std:g}: it is a prior of one record under noise, by matched or "
            "posterior; leave it out"
        )
    if not settings.searches and candidates is None and own is None:
        raise InputError(
            "preset='posterior' weighs public records against one record: give several by --prior, "
            "and records=1; or use matched"
        )
    return Known(guess=guess, candidates=candidates, denoiser=own)


def _form(
    facts: BatchFacts, *, classes: int, table: GradientTable | None
) -> prior_records.RecordForm:
    """What a record of a file has to be."""
    low, high = facts.bounds()
    return prior_records.RecordForm(
        shape=facts.input_shape,
        classes=classes,
        to_unit=lambda inputs: (inputs - low) / (high - low),
        said="mean and std (or low and high)",
        table=None if table is None else table.declaration,
        separator="," if table is None else table.separator,
    )


_UNEXPLAINED = 0.1
"""Relative residual above which BatchNorm's statistics of the batch are tried."""

ATTACK, RECONSTRUCTION = "attack.json", "reconstruction.safetensors"
SEARCH = "search.safetensors"


@computed_once()
def attack_gradients(
    request: GradientRequest, *, progress: Progress | None = None, stop: Stop | None = None
) -> GradientAttack:
    """Rebuild the batch whose gradients are in a file.

    Args:
        request: the file, what is known of its batch, and how it is searched for.
        progress: called with (step, total, words).
        stop: asked to stop, the search ends at once; its last state is kept.

    Returns:
        What is written to attack.json in `out`, beside reconstruction.safetensors (`inputs`,
        `pixels`, `labels`) and one PNG per record where it is a picture.

    Raises:
        FileNotFoundError: A file is missing.
        FileExistsError: `out` holds files.
        ValueError: What is given does not fit together; see the message.
        TypeError: A gradient holds integers, or the function returns no network.
        Interrupted: It was asked to stop.
    """
    stop = stop or Stop()
    out, preset, seed, prior = request.out, request.preset, request.seed, request.prior
    truth, vocabulary = request.truth, request.vocabulary
    # What is known: of the attack, of the batch, and of the model at the gradients.
    settings, where = preset_of(preset, request.restarts), find_device(request.device)
    interrupted = _is_interrupted(out)
    if not interrupted:
        run_folder.check_unused(out)
    file, request, notes = between(
        told_apart(prior_records.read_tensors(request.gradients)), request
    )
    table = None if request.columns is None else read_columns(request.columns)
    if table is not None and request.input_shape is None:
        request = replace(request, input_shape=(table.declaration.width,))
    facts, unread = facts_of(file.metadata, request)
    if table is not None:
        table.check(facts.input_shape)
    posed = build_problem(file, facts, model=request.model, weights=request.weights)
    facts = posed.facts
    if table is not None and posed.table is not None:
        raise InputError(
            f"{request.columns} names columns, but the model looks tokens up; leave it out"
        )
    if vocabulary is not None and posed.table is None:
        raise InputError(f"{vocabulary} names tokens, but the model looks none up; leave it out")
    notes += [f"metadata {name!r} of {request.gradients} is not read" for name in unread]
    if posed.table is not None:
        notes += doubts(posed)
        # Tokens are rebuilt at once, and leave neither pictures nor a search to go on with.
        if request.denoiser is not None:
            raise InputError(f"denoiser={request.denoiser!r} has no effect on tokens; leave it out")
        check_token_facts(posed, preset=preset)
        public = None if prior is None else read_records_of_tokens(prior, posed)
        true_tokens = (
            None if truth is None else _whole(read_records_of_tokens(truth, posed), truth, facts)
        )
        words = None if vocabulary is None else read_vocabulary(vocabulary, posed)
        rebuilt = rebuild(posed, seed=seed, public=public, progress=progress)
        stop.finish()
        if not interrupted:
            run_folder.claim(out)
        notes += rebuilt.notes
        said = describe_tokens(rebuilt, posed, truth=true_tokens, public=public, words=words)
        result = _result(posed, rebuilt, model=request.model, preset=preset, notes=notes)
        result = result.model_copy(
            update={"device": str(HOST), "exact_device": str(HOST), "tokens": said}
        )
        return _finished(out, result, {"tokens": rebuilt.tokens, "labels": rebuilt.labels})
    # Records of numbers: the truth where it is given, and what is known of others.
    classes = posed.classes
    true_pixels = None
    if truth is not None:
        true_pixels = _whole(pixels_of(truth, facts, classes=classes, table=table), truth, facts)
    known = known_of(
        prior, request.denoiser, facts,
        settings=settings, truth=true_pixels, classes=classes, seed=seed, table=table,
    )  # fmt: skip
    # The search, in a folder that is claimed now that nothing is left to refuse.
    with stop.held():
        if not interrupted:
            run_folder.claim(out)
        stop.note(f"the same command goes on from the last state of the search in {out}, if any")
    search = functools.partial(
        _search, facts=facts, known=known, seed=seed, device=where, out=out, progress=progress
    )
    posed, found = _by_batch(posed, search(posed, settings=settings), settings, search)
    # What was found, in words, tensors and pictures.
    stop.finish()
    notes += doubts(posed)
    if facts.local_steps > 1:
        notes.append(
            f"the gradients are taken for the mean of {facts.local_steps} local steps of size "
            f"{facts.local_rate:g}, each with the whole batch"
        )
    pixels = facts.pixels(found.inputs)
    notes += [found.reason] if found.reason else []
    notes += [] if found.loss is None else [found.loss.words]
    notes += facts.beyond(found.inputs)
    proven = count_proven([found.stage]) > 0
    notes += planted.smoother(pixels) if proven else []
    result = _result(posed, found, model=request.model, preset=preset, notes=notes).model_copy(
        update={
            "device": str(where),
            "exact_device": str(home_of(where)),
            "scores": None
            if true_pixels is None
            else _scores(true_pixels, pixels, known.guess, proven=proven),
            "images": _save_pictures(out, "image", pixels),
            "originals": []
            if true_pixels is None
            else _save_pictures(out, "original", true_pixels),
            "guess": _save_pictures(out, "guess", known.guess[None]),
        }
    )
    if table is not None:
        result = result.model_copy(update=table.told(pixels, true_pixels, guess=known.guess))
    tensors = {"inputs": found.inputs, "pixels": pixels, "labels": found.labels}
    result = _finished(out, result, tensors)  # whole, whatever ends the short search that follows
    left = _defended(
        posed, known, found, true_pixels, settings=settings, seed=seed, device=where, out=out
    )
    if left is not None:
        result = result.model_copy(update={"defended": left})
        result.write(out / ATTACK)
    return result


def _finished(out: Path, result: GradientAttack, tensors: Mapping[str, Tensor]) -> GradientAttack:
    """Write what was found, with its conclusion."""
    result = result.model_copy(update={"conclusion": conclusion(result)})
    _save_tensors(out / RECONSTRUCTION, tensors)
    for part in out.glob(f"{SEARCH}*{PART}"):  # of a process that was killed
        part.unlink()
    result.write(out / ATTACK)
    return result


def _result(
    posed: Posed,
    found: Reconstruction | TokenReconstruction,
    *,
    model: str,
    preset: str,
    notes: Sequence[str],
) -> GradientAttack:
    """What was found, without the truth, the pictures and the conclusion."""
    facts, gradient = posed.facts, posed.observation.gradient  # (K, D)
    labels, opened = found.labels.tolist(), 0
    # What is left of the gradient, and the stage that each record stands on.
    if isinstance(found, TokenReconstruction):
        left, stage, iterations = found.residual, list(found.stage), 0
        objective, of_noise = left, residual_of_noise(posed)
    else:
        weighed = found.stage == "posterior"
        stage = [found.stage if held or weighed else "prior" for held in found.supported]
        objective, iterations, loss = found.objective, found.iterations, found.loss
        (left, factor), of_noise = residual_of(posed, found), residual_of_noise(posed)
        if factor is not None and loss is None:
            notes = [*notes, f"the gradient is {factor:.3g} times that of the declared loss"]
        if loss is not None:
            left = left if loss.left is None else loss.left
            told = len(labels) - loss.rest if loss.labelled else 0
            labels = labels[:told] + [-1] * (len(labels) - told)
            opened = loss.open[0]
        elif posed.classes == 1:
            labels = [-1] * len(labels)
    return GradientAttack.from_object(
        facts,
        version=1,
        model=model,
        parameters_from=posed.parameters_from,
        parameters=gradient.shape[1],
        open=opened,
        held=1.0 if (of := posed.observation.uncut().shown) is None else float(of.double().mean()),
        intercepts=len(gradient),
        preset=preset,
        input_shape=list(facts.input_shape),
        classes=posed.classes,
        labels=labels,
        labels_given=facts.labels is not None,
        stage=stage,
        supported=list(found.supported),
        objective=objective,
        iterations=iterations,
        relative_residual=left,
        residual_of_noise=of_noise,
        scores=None,
        images=[],
        originals=[],
        reconstruction=RECONSTRUCTION,
        notes=list(notes),
        conclusion="",
    )


def _whole(found: Tensor, truth: Path, facts: BatchFacts) -> Tensor:
    """The true batch (records, *input_shape), all of it."""
    if len(found) != facts.records:
        raise InputError(
            f"{truth} holds {len(found)} records, but records={facts.records}; give the whole batch"
        )
    return found


def _by_batch(
    posed: Posed, found: Reconstruction, settings: Preset, search: Callable[..., Reconstruction]
) -> tuple[Posed, Reconstruction]:
    """What was found, or what is by BatchNorm's statistics of the batch, if that explains more.

    No gradient is one record's then, so that no stage of a single one applies.
    """
    seen, model = posed.observation, with_batch_statistics(posed.model)
    plain = seen.is_plain and not seen.is_noisy and seen.clip_norm is None
    plain = plain and not (found.loss is not None and any(found.supported))
    if model is None or not plain or (left := residual_of(posed, found)[0]) <= _UNEXPLAINED:
        return posed, found
    other = replace(posed, model=model, by_batch=True)
    try:
        again = search(other, settings=replace(settings, exact=False))
    except ValueError:  # a record alone may have no statistics
        return posed, found
    return (other, again) if residual_of(other, again)[0] < left / 2 else (posed, found)


def _search(
    posed: Posed,
    *,
    settings: Preset,
    facts: BatchFacts,
    known: Known,
    seed: int,
    device: torch.device,
    out: Path,
    progress: Progress | None,
) -> Reconstruction:
    """Rebuild the batch, going on from the state of a search that was interrupted."""
    bounds, seen = facts.bounds(), posed.observation
    return reconstruct(
        seen, posed.model, preset=settings, input_shape=facts.input_shape, classes=posed.classes,
        bounds=bounds, generator=torch.Generator().manual_seed(seed),
        labels=None if facts.labels is None else torch.tensor(facts.labels),
        prior_image=(bounds[0] + (bounds[1] - bounds[0]) * known.guess).to(seen.gradient.dtype),
        candidates=known.candidates, denoiser=known.denoiser, progress=progress,
        checkpoint=None if posed.by_batch else out / SEARCH, device=device,
    )  # fmt: skip


CLIP, MULTIPLIER, DELTA, STEPS = 1.0, 1.0, 1e-5, 100


def _defended(
    posed: Posed,
    known: Known,
    found: Reconstruction,
    truth: Tensor | None,
    *,
    settings: Preset,
    seed: int,
    device: torch.device,
    out: Path,
) -> Defended | None:
    """What a clip norm and noise of its size leave of the records of an undefended gradient."""
    facts = posed.facts
    if facts.clip_norm is not None or facts.noise_std or facts.local_steps > 1 or posed.by_batch:
        return None
    if posed.classes == 1:  # whose loss nobody declares
        return None
    if truth is None and not all(found.supported):
        return None
    of, labels = facts.pixels(found.inputs), found.labels
    if truth is not None:
        labels, of = labels[list(match(truth, of).order)], truth
    low, high = facts.bounds()
    kind = posed.observation.gradient.dtype
    seen = observe(
        posed.model,
        posed.observation.points[0, 0],
        inputs=(low + (high - low) * of).to(kind),
        targets=labels,
        clip_norm=CLIP,
        noise_std=MULTIPLIER * CLIP / facts.records,
        generator=torch.Generator().manual_seed(seed),
    )
    short = replace(
        settings, starts=1, newton_steps=0, adam_steps=min(settings.adam_steps or STEPS, STEPS)
    )
    left = facts.pixels(
        reconstruct(
            seen,
            posed.model,
            preset=short,
            input_shape=facts.input_shape,
            classes=posed.classes,
            bounds=(low, high),
            generator=torch.Generator().manual_seed(seed),
            prior_image=(low + (high - low) * known.guess).to(kind),
            device=device,
        ).inputs
    )
    held, blind = match(of, left), match(of, known.guess.expand_as(of))
    return Defended(
        clip_norm=CLIP,
        noise_multiplier=MULTIPLIER,
        epsilon=epsilon_from_mu(1 / MULTIPLIER, DELTA),
        delta=DELTA,
        steps=short.adam_steps,
        psnr=list(held.psnr),
        better=[one < other for one, other in zip(held.mse, blind.mse, strict=True)],
        images=_save_pictures(out, "defended", left[list(held.order)]),
    )


def _is_interrupted(out: Path) -> bool:
    """Whether a folder holds the state of a search, or a part of it, and nothing else."""
    held = {path.name for path in out.iterdir()} if out.is_dir() else set()
    return bool(held) and all(
        name == SEARCH or (name.startswith(SEARCH) and name.endswith(PART)) for name in held
    )


def _scores(truth: Tensor, pixels: Tensor, guess: Tensor, *, proven: bool) -> TruthScores:
    held, blind = match(truth, pixels), match(truth, guess.expand_as(truth))
    axes = ""
    if proven and means(held).mse > planted.AS_THE_TRUTH * means(blind).mse:
        errors = {
            name: means(match(truth, of)).mse for name, of in planted.orders_of(pixels).items()
        }
        axes = min(errors, key=errors.__getitem__, default="")
        axes = axes if axes and errors[axes] <= planted.AS_THE_TRUTH * means(blind).mse else ""
    return TruthScores(
        mse=list(held.mse),
        psnr=list(held.psnr),
        ssim=list(held.ssim),
        order=list(held.order),
        mean=means(held),
        blind=means(blind),
        axes=axes,
    )


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save

    kept = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_durably(path, save(kept))


def _save_pictures(out: Path, name: str, pixels: Tensor) -> list[str]:
    """Write a PNG per record where it is grey or in colour; their names in the folder."""
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
        return []
    names = [f"{name}-{index}.png" for index in range(len(pixels))]
    for file, image in zip(names, pixels, strict=True):
        planted.save_picture(out / file, image)
    return names
