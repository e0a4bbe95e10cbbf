"""The search for a batch whose gradient is the observed one: signed Adam, L-BFGS, several starts.

    minimise  distance(clip(grad(x)), o) + weight * mean variation(x)     x on the unit box

Starts run side by side under Adam (`restarts`), batched or one by one, whichever a trial step finds
faster; they are drawn on the CPU, and are the same on every device. L-BFGS then takes them one by
one, best first, and stops at the first that solves. Where a single record's label is optimised,
too, and none solves, each label is tried. The start with the least objective is kept; the
truth is never consulted. Under noise, where every start ends at its own mode, their mean is one
more candidate.

L-BFGS forgets its curvature every `_REFRESHED` outer steps, so that its position is all that a
checkpoint needs.

Shape letters: B records, C classes, D parameters, R starts.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ...privacy.errors import InputError, Progress
from ...privacy.files import write_durably
from ...training.engine.tensor_file import read_tensors
from ..exact.first_layer import first_linear_input
from ..problem.labels import last_layer
from ..problem.objective import Preset, squared_distance
from ..problem.observation import Observation
from ..problem.problem import Found, OtherLoss, Problem, gradients_of, scores, squared_size
from .fallback import normalises_places
from .restarts import Search, descend

# Where a long search writes down how far it is, so that it can go on after an interruption.


def digest(*facts: object) -> str:
    """A name for a problem: equal facts have equal digests.

    Args:
        facts: tensors, numbers, strings, functions by name, None, and tuples or dataclasses of
            these; of anything else its type alone.

    Returns:
        64 hexadecimal digits.
    """
    hashed = hashlib.sha256()
    for fact in facts:
        for part in _parts(fact):
            hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A file and the digest of the problem that it belongs to.

    Attributes:
        path: of the file, which need not exist; its folder must.
        problem: the digest.
    """

    path: Path
    problem: str

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Put the tensors in the place of what the file held.

        Raises:
            OSError: the system refuses; the error names the file, which is as it was.
        """
        kept = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        write_durably(self.path, save(kept, metadata={"problem": self.problem}))

    def load(self) -> dict[str, Tensor] | None:
        """The tensors last saved, or None where there is no file.

        Raises:
            ValueError: the file belongs to another problem or is no checkpoint.
        """
        if not self.path.exists():
            return None
        try:
            tensor_file = read_tensors(self.path)
        except InputError as error:
            raise InputError(
                f"checkpoint={str(self.path)!r} is no checkpoint ({error}); delete it or name "
                "another file"
            ) from error
        if tensor_file.metadata.get("problem") != self.problem:
            raise InputError(
                f"checkpoint={str(self.path)!r} belongs to another observation, preset or prior "
                "knowledge; delete it or name another file"
            )
        return dict(tensor_file.tensors)

    def remove(self) -> None:
        """Delete the file, if there is one."""
        self.path.unlink(missing_ok=True)


def name_of(problem: Problem) -> str:
    """A name for everything that decides the result but the generator."""
    seen, box = problem.observation, problem.box
    return digest(
        seen, problem.preset, box, problem.shape, problem.classes, problem.labels,
        problem.prior_image, repr(problem.model),
    )  # fmt: skip


def _parts(fact: object) -> list[bytes]:
    if isinstance(fact, Tensor):
        values = fact.detach().cpu().contiguous()
        head = f"{values.dtype} {tuple(values.shape)}".encode()
        return [head, values.reshape(-1).view(torch.uint8).numpy().tobytes()]
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        named = [(f.name, getattr(fact, f.name)) for f in dataclasses.fields(fact)]
        return [part for name, value in named for part in (name.encode(), *_parts(value))]
    if isinstance(fact, tuple):
        return [str(len(fact)).encode(), *(part for value in fact for part in _parts(value))]
    if fact is None or isinstance(fact, (bool, int, float, str)):
        return [repr(fact).encode()]
    name = getattr(fact, "__qualname__", type(fact).__qualname__)
    return [str(name).encode()]


_SOLVED = 1e-10
"""Squared distance over the observation's squared norm at which no further start is tried."""

_EXHAUSTED = 1e-12
"""The same, at which L-BFGS ends: images are then right to 70 dB and more."""

_NEAR = 1e-5
"""The same, at which optimised labels are rounded: they reach a one-hot row only in the limit."""

_EXPLAINS = 0.1  # relative residual up to which a search under any loss found something
_OPEN = 1e-6  # share of the squared gradient that other records would have to leave
_WITHOUT = 0.2  # as `fallback` has it of a single image
_FITTED = 60  # steps for a batch's slopes, of which its residual is quadratic
_ONE_HOT = 1e4  # logit of a label, whose softmax is then one-hot to the last bit
_TRIED = 6  # outer steps by which a label is told from others
_MOST_TRIED = 100  # labels, so that this takes no longer than some starts

_REFRESHED = 100
_SCALE = 1e8

_STALLED = 0.97
"""Share of what was left five outer steps ago that has to go: the descent is slow, but steady."""


@dataclass(kw_only=True, slots=True)
class _Finish:
    """How far L-BFGS is; mutable.

    Attributes:
        count: number of starts that are through.
        step: outer steps taken from the present start.
        last: what the last step reached.
        taken: outer steps, summed over the starts.
        score: the least so far; inf before there is one.
        pixels, soft: where L-BFGS is, (B, *shape) and (B, C).
        best, best_soft: what has the least score.
        rounded: whether optimised labels have been rounded.
    """

    pixels: Tensor
    soft: Tensor
    best: Tensor
    best_soft: Tensor
    count: int = 0
    step: int = 0
    taken: int = 0
    rounded: bool = False
    last: float = math.inf
    score: float = math.inf

    def tensors(self) -> dict[str, Tensor]:
        """What to keep of it."""
        counts = torch.tensor([self.count, self.step, self.taken, int(self.rounded)])
        values = torch.tensor([self.last, self.score], dtype=torch.float64)
        return {
            "finish.pixels": self.pixels, "finish.soft": self.soft, "finish.best": self.best,
            "finish.best_soft": self.best_soft, "finish.counts": counts, "finish.values": values,
        }  # fmt: skip

    @classmethod
    def of(cls, kept: dict[str, Tensor], *, device: torch.device) -> _Finish:
        """What was kept, on a device."""
        count, step, taken, rounded = (int(n) for n in kept["finish.counts"])
        last, score = (float(v) for v in kept["finish.values"])
        return cls(
            pixels=kept["finish.pixels"].to(device), soft=kept["finish.soft"].to(device),
            best=kept["finish.best"].to(device), best_soft=kept["finish.best_soft"].to(device),
            count=count, step=step, taken=taken, rounded=bool(rounded), last=last, score=score,
        )  # fmt: skip


def finishes(preset: Preset, observation: Observation) -> bool:
    """Whether L-BFGS runs: never on a likelihood under noise, which Adam's precision serves."""
    return preset.newton_steps > 0 and not (preset.follow_noise and observation.is_noisy)


def optimise(
    problem: Problem,
    generator: torch.Generator,
    *,
    progress: Progress | None,
    checkpoint: Checkpoint | None = None,
) -> Found:
    """The start with the least objective after Adam and L-BFGS, as far as the preset has them.

    Args:
        problem: what to explain, in float64 where L-BFGS is to reach its precision.
        generator: source of the starts; put back to where it was by a checkpoint.
        progress: called with (step, total, words).
        checkpoint: where to go on from and what to keep up to date.

    Returns:
        The batch found.
    """
    # New starts, or those of a checkpoint as it left them.
    preset, home = problem.preset, problem.box.span.device
    kept = None if checkpoint is None else checkpoint.load()
    if kept is None:
        starts, known = _starts(problem, generator)
        logits = _label_starts(problem, generator, starts=len(starts))
        # Adam takes steps of a hundredth of the box: float32 serves it at half the cost.
        kind = torch.float32 if preset.adam_steps else starts.dtype
        search = Search.begin(starts.to(kind), logits.to(kind))
        finish: _Finish | None = None
    else:
        search, known = Search.of(kept), int(kept["known"])
        finish = _Finish.of(kept, device=home) if "finish.counts" in kept else None
        generator.set_state(kept["generator"])
    total = preset.adam_steps
    if finishes(preset, problem.observation):
        total += preset.newton_steps * len(search.pixels)

    def tick(step: int) -> None:
        if progress is not None:
            progress(min(step, total), total, "searching")

    def save() -> None:
        if checkpoint is not None:
            place = {"known": torch.tensor(known), "generator": generator.get_state()}
            more = {} if finish is None else finish.tensors()
            checkpoint.save({**search.tensors(), **place, **more})

    # Adam moves all starts that are left.
    if search.step < preset.adam_steps:
        search = search.to(problem.device)
        steps = problem.to(device=problem.device, dtype=torch.float32)
        descend(steps, search, kept=known, tick=tick, save=save)
    search = search.to(home)  # before the type changes, which the device may not have
    # Ends in the order of their objective, which L-BFGS finishes.
    ends, logits = search.pixels.to(problem.box.span), search.soft.to(problem.box.span)
    order = list(range(len(ends)))
    if preset.adam_steps:
        ends, logits = _with_more(problem, ends, logits, starts=len(ends) - known)
        order = scores(problem, ends, logits).argsort(stable=True).tolist()
    if finish is None:
        begin = order[0]
        finish = _Finish(
            pixels=ends[begin], soft=logits[begin], best=ends[begin], best_soft=logits[begin]
        )
    _finish_all(problem, finish, ends, logits, order=order, tick=tick, save=save)
    tick(total)
    labels, by_slope = problem.labels, -1 if problem.observation.slopes else 1
    return Found(
        pixels=finish.best,
        labels=(by_slope * finish.best_soft).argmax(dim=-1) if labels is None else labels,
        iterations=search.taken + finish.taken,
        stage="optimisation",
        reached=_left(problem, finish.best, finish.best_soft),
    )


def with_slopes(problem: Problem, generator: torch.Generator) -> Problem | None:
    """The same with the loss's derivative in the outputs as unknowns, whatever the loss is.

    The gradient of a mean of losses is that of mean_b <s_b, f(x_b)> with s_b the derivative of one
    loss in the outputs f: nothing else of the losses is in it.

    None where more was done than one step, where there is noise, a clip or another point, or where
    the gradient has no more numbers than there are unknowns.
    """
    seen, prior = problem.observation, problem.prior_image
    unknowns = seen.records * (math.prod(problem.shape) + problem.classes)
    plain = seen.is_plain and not seen.is_noisy and seen.clip_norm is None and seen.drift is None
    if not plain or len(seen.gradient) > 1 or unknowns >= int((seen.gradient != 0).sum()):
        return None
    posed = replace(problem, observation=replace(seen, slopes=True), labels=None)
    soft = _label_starts(posed, generator, starts=1)
    grey = problem.box.span.new_full(problem.shape, 0.5) if prior is None else prior
    made = gradients_of(posed, grey.expand(1, seen.records, *problem.shape), soft, together=False)
    size = float(made.norm())
    return replace(posed, unit=float(seen.gradient.norm()) / size) if size > 0 else None


def by_slopes(
    problem: Problem,
    generator: torch.Generator,
    *,
    progress: Progress | None,
    checkpoint: Checkpoint | None = None,
) -> Found:
    """A batch by a search under any loss, and for which of its records the gradient speaks.

    The whole has to leave less than a tenth of the gradient's norm, and the prior image in place of
    a record five times as much of its square, under the derivatives that suit it best. The
    arguments are those of `optimise`, with a problem of `with_slopes`.
    """
    found = optimise(problem, generator, progress=progress, checkpoint=checkpoint)
    size, prior, records = squared_size(problem.observation), problem.prior_image, len(found.pixels)
    left = math.sqrt(found.reached / size)
    supported = [left < _EXPLAINS and not _is_open(problem, found)] * records
    if supported[0] and prior is not None:
        for record in range(records):
            other = found.pixels.clone()
            other[record] = prior
            supported[record] = found.reached < _WITHOUT * _least_left(problem, other)
    loss = OtherLoss(left=left, factors=None, labelled=False, searched=True)
    return replace(found, loss=loss, supported=tuple(supported))


def _closure(
    problem: Problem, optimiser: torch.optim.Optimizer, pixels: Tensor, soft: Tensor
) -> Callable[[], Tensor]:
    """What L-BFGS calls: the squared distance, with its slopes in pixels and logits."""
    size = squared_size(problem.observation) or 1.0

    def closure() -> Tensor:
        optimiser.zero_grad()
        sent = gradients_of(problem, pixels[None], soft[None], together=False)
        # In units of the observation, and large: torch drops curvature pairs with y's below 1e-10.
        loss = squared_distance(sent, problem.observation)[0] * (_SCALE / size)
        loss.backward()
        return loss

    return closure


def _is_open(problem: Problem, found: Found) -> bool:
    """Whether other records explain the gradient as well, by slopes of their own.

    So do multiples of a record in a network without biases, and mixtures of several behind a single
    linear layer.
    """
    inputs, enough = problem.box.inputs(found.pixels), found.reached / _WITHOUT
    others = [0.8 * inputs, *([0.8 * inputs + 0.2 * inputs.roll(1, 0)] if len(inputs) > 1 else [])]
    least = min(_least_left(problem, problem.box.pixels(other)) for other in others)
    return least < max(enough, _OPEN * squared_size(problem.observation))


def _least_left(problem: Problem, pixels: Tensor) -> float:
    """The squared distance that a batch leaves under the slopes that suit it best."""
    soft = pixels.new_zeros(len(pixels), problem.classes).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [soft], max_iter=_FITTED, tolerance_grad=0.0, line_search_fn="strong_wolfe"
    )
    optimiser.step(_closure(problem, optimiser, pixels, soft))
    return _left(problem, pixels, soft.detach())


def _finish_all(
    problem: Problem,
    finish: _Finish,
    ends: Tensor,
    logits: Tensor,
    *,
    order: list[int],
    tick: Callable[[int], None],
    save: Callable[[], None],
) -> None:
    """Take the starts on by L-BFGS, best first, and keep the least score."""
    preset = problem.preset
    newton = finishes(preset, problem.observation)
    while finish.count < len(order):
        index = order[finish.count]
        if newton:
            done = preset.adam_steps + finish.count * preset.newton_steps
            further = functools.partial(_tick_after, tick, done)
            _newton(problem, finish, tick=further, save=save)
        # L-BFGS minimises another distance than Adam: what Adam left stays in the running.
        reached = [(finish.pixels, finish.soft)] if newton else []
        for pixels, soft in [*reached, (ends[index], logits[index])]:
            inside = pixels.clamp(0, 1)
            score = float(scores(problem, inside[None], soft[None]))
            if score < finish.score:
                finish.score, finish.best, finish.best_soft = score, inside, soft
        solved = newton and _is_solved(problem, finish.pixels, finish.soft)
        finish.count += 1
        if solved:
            break
        if finish.count < len(order):
            following = order[finish.count]
            finish.pixels, finish.soft = ends[following], logits[following]
            finish.step, finish.last, finish.rounded = 0, math.inf, False
    if newton and _asks_every_label(problem):
        at = preset.adam_steps + finish.count * preset.newton_steps
        _try_labels(problem, finish, ends[order[0]], tick=lambda _: tick(at))


def _asks_every_label(problem: Problem) -> bool:
    """Whether a label is one of a single record's unknowns: then each is tried, if need be."""
    is_one = problem.labels is None and problem.observation.records == 1
    return is_one and not problem.observation.slopes and problem.classes <= _MOST_TRIED


def _try_labels(
    problem: Problem, finish: _Finish, start: Tensor, *, tick: Callable[[int], None]
) -> None:
    """Give a label that is sought beside the picture each of its values, and go on from the best.

    The descent moves the label first, and may stay at a wrong one, whose picture explains a part of
    the gradient: of a difference of two gradients about every second start does. A few steps tell
    the right one from the others. Nothing is kept of it: a search that is interrupted does all of
    it again.
    """
    if _is_solved(problem, finish.best, finish.best_soft):
        return
    short = replace(problem, preset=replace(problem.preset, newton_steps=_TRIED))
    every = torch.eye(problem.classes).to(finish.best_soft)[:, None] * _ONE_HOT
    ends = []
    for soft in every:
        finish.pixels, finish.soft, finish.rounded, finish.step = start, soft, True, 0
        _newton(short, finish, tick=tick, save=lambda: None)
        ends.append((_left(problem, finish.pixels, soft), finish.pixels, soft))
    _, finish.pixels, finish.soft = min(ends, key=lambda end: end[0])
    finish.step, finish.last = 0, math.inf
    _newton(problem, finish, tick=tick, save=lambda: None)
    inside = finish.pixels.clamp(0, 1)
    score = float(scores(problem, inside[None], finish.soft[None]))
    if score < finish.score:
        finish.score, finish.best, finish.best_soft = score, inside, finish.soft


def _newton(
    problem: Problem, finish: _Finish, *, tick: Callable[[int], None], save: Callable[[], None]
) -> None:
    """L-BFGS with strong Wolfe line search from one start, until it solves or stalls."""
    while finish.step < problem.preset.newton_steps:
        if _newton_part(problem, finish, tick=tick):
            near = problem.labels is None and not finish.rounded and finish.last < _NEAR
            if not near or problem.observation.slopes:
                return
            top = finish.soft.argmax(dim=-1)
            finish.soft = _ONE_HOT * nn.functional.one_hot(top, problem.classes).to(finish.soft)
            finish.rounded, finish.last = True, math.inf
        save()


def _newton_part(problem: Problem, finish: _Finish, *, tick: Callable[[int], None]) -> bool:
    """Up to `_REFRESHED` outer steps; True where there is nothing more to gain."""
    # Labels are unknowns, too, until they are rounded.
    joint = problem.labels is None and not finish.rounded
    pixels = finish.pixels.clone().requires_grad_()
    soft = finish.soft.clone().requires_grad_(joint)
    optimiser = torch.optim.LBFGS(
        [pixels, soft] if joint else [pixels],
        max_iter=20,
        history_size=200,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    closure = _closure(problem, optimiser, pixels, soft)

    # Until the value is small enough, or hardly falls.
    rounds = joint and not problem.observation.slopes
    enough, ended, values = _NEAR if rounds else _EXHAUSTED, False, [math.inf]
    for step in range(1, _REFRESHED + 1):
        value = optimiser.step(closure).item() / _SCALE  # of the point before this step
        finish.step += 1
        finish.taken += 1
        stalled = step > 8 and value > values[-5] * _STALLED
        ended = value < enough or not math.isfinite(value) or stalled
        values.append(value)
        finish.last = value
        tick(finish.step)
        if ended or finish.step >= problem.preset.newton_steps:
            break
    finish.pixels, finish.soft = pixels.detach(), soft.detach()
    return ended


def _starts(problem: Problem, generator: torch.Generator) -> tuple[Tensor, int]:
    """(R, B, *shape) starts, and how many of the last are no draws."""
    shape = (problem.preset.starts, problem.observation.records, *problem.shape)
    # A grey picture with a tenth of noise: a start inside the box, where activations are alive.
    noise = torch.randn(shape, generator=generator, dtype=problem.box.span.dtype)
    noise, known = noise.to(problem.box.span), _known(problem)
    return torch.cat([0.45 + 0.1 * noise, *known]), len(known)


def _known(problem: Problem) -> list[Tensor]:
    """The (1, B, *shape) pictures that are known before any search.

    What a gradient does not show stays as it was in the start: the public image is a better one
    than grey. Without noise it is one start of a single record, as records of a batch that start
    alike under one label stay alike; and none where a normalisation over places divides a smooth
    picture by next to nothing: such a start was up to 3 dB worse there, and explained as much.
    """
    known, noisy = list[Tensor](), problem.observation.is_noisy
    one = problem.observation.records == 1 and not normalises_places(problem.model)
    if not problem.preset.follow_noise or not (noisy or one):
        return known
    if problem.prior_image is not None:
        known.append(problem.prior_image.expand(1, problem.observation.records, *problem.shape))
    if noisy and problem.preset.exact and (inputs := first_linear_input(problem)) is not None:
        known.append(problem.box.pixels(inputs)[None])
    return known


def _label_starts(problem: Problem, generator: torch.Generator, *, starts: int) -> Tensor:
    """(R, B, C) logits of labels to optimise, or one-hot rows of known ones."""
    shape = (starts, problem.observation.records, problem.classes)
    dtype = problem.box.span.dtype
    if problem.observation.slopes and (sloped := _slope_starts(problem)) is not None:
        return sloped.expand(shape)
    if problem.labels is None:
        return torch.randn(shape, generator=generator, dtype=dtype).to(problem.box.span)
    return nn.functional.one_hot(problem.labels, problem.classes).to(dtype).expand(shape)


def _slope_starts(problem: Problem) -> Tensor | None:
    """(B, C) slopes as of one label a record, in the unit; None where no last bias tells them.

    Where outputs differ little, a class that no label has gets a number b of the last bias, and one
    that n of B records have b - n d / B, with d the sum of all that is missing.
    """
    seen = problem.observation
    last = last_layer(seen, problem.model, classes=problem.classes)
    if last is None or last.bias is None:
        return None
    bias = last.bias[0] / problem.unit
    base = bias.median()
    missing = base - bias
    drop = missing.sum()
    slopes = base.expand(seen.records, problem.classes).clone()
    for record in range(seen.records):
        label = int((missing * drop.sign()).argmax())
        slopes[record, label] -= drop
        missing[label] -= drop / seen.records
    return slopes + bias - slopes.mean(dim=0)


def _with_more(
    problem: Problem, ends: Tensor, logits: Tensor, *, starts: int
) -> tuple[Tensor, Tensor]:
    """The ends of the starts; under noise also the mean of the drawn ones, and what was known."""
    noisy = problem.preset.follow_noise and problem.observation.is_noisy
    if not noisy:
        return ends, logits
    more = _known(problem)
    if starts > 1 and problem.labels is not None:
        more.append(ends[:starts].mean(dim=0, keepdim=True))
    labels = logits[:1].expand(len(more), *logits.shape[1:])
    return torch.cat([ends, *more]), torch.cat([logits, labels])


def _is_solved(problem: Problem, pixels: Tensor, soft: Tensor) -> bool:
    return _left(problem, pixels, soft) < _SOLVED * squared_size(problem.observation)


def _left(problem: Problem, pixels: Tensor, soft: Tensor) -> float:
    """The squared distance that is left."""
    sent = gradients_of(problem, pixels[None], soft[None], together=False)
    return float(squared_distance(sent.detach(), problem.observation)[0])


def _tick_after(tick: Callable[[int], None], done: int, step: int) -> None:
    """Count a step on top of those of earlier stages."""
    tick(done + step)
