"""Records out of a gradient on a crafted model, one after the other, each with a certificate.

    slots      what every bin holds (`problem.imprint`)
    candidate  x = f / 1 of a slot, if it lies in the box
    accepted   under the label y for which the gradient that (x, y) would have sent fills that very
               slot: a slot of two records has another bias, whatever their labels
    taken off  from all intercepts; a record that shared its bin with it is alone then

Like the peeling of an invertible Bloom lookup table (Goodrich, Mitzenmacher 2011): with three
directions nearly every record is found while there are less of them than .8 bins.

Shape letters: K intercepts, S slots, F features, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..problem.observation import Observation, each, sent_gradients
from ..problem.problem import Box, Certified, Imprint, Problem, slots_of
from .first_layer import residual

_EMPTY = 1e-4  # of the fullest slot; float32 leaves about 1e-6 of what was taken off
_FILLS = 3e-4  # what a record may leave of the slot that it was read from
_PASSES = 3  # over all labels
_NEWTON_STEPS = 30
_TRIES = 6
_DAMPING = 1e-3
_STEP = 1e-6  # of a pixel, for a slope in float64
_ROUNDED = 1e-6  # what float32 leaves of what a layer was given
_FAR = 1e6  # between channels, so that the nearest pixel is of the same one
_OUTSIDE = 2e-3  # of the box, which rounding may leave


def isolate(problem: Problem) -> Certified | None:
    """The records that a gradient on crafted models isolates.

    Returns:
        As many as are certified; None where no intercept is on a crafted model, or none is alone.
    """
    observation, imprints, box = problem.observation, problem.imprints, problem.box
    model, classes = problem.model, problem.classes
    read = {
        k: imprint
        for k, point in enumerate(observation.points)
        for imprint in imprints
        if imprint.is_at(point)
    }
    if not read or observation.is_noisy or observation.mean_of is not None:
        return None
    chosen = observation.only(*read)
    crafted = list(read.values())
    if any(one.places is not None for one in crafted):
        if len(read) < len({id(one) for one in imprints}):  # a round of it was not seen
            return None
        return _pieced(chosen, model, crafted, box=box, classes=classes)
    peel = _Peel(replace(chosen, records=1), model, crafted, box=box, classes=classes)
    found = peel.run(chosen.gradient * chosen.records, most=chosen.records)
    if not found:
        return None
    labels = torch.tensor([one.label for one in found], device=chosen.gradient.device)
    return Certified(inputs=torch.stack([one.inputs for one in found]), labels=labels)


def _pieced(
    seen: Observation, model: nn.Module, crafted: Sequence[Imprint], *, box: Box, classes: int
) -> Certified | None:
    """The one record whose pieces slots hold, under the label that explains the gradient best."""
    if seen.records != 1:
        return None
    places = {k: imprint.places for k, imprint in enumerate(crafted) if imprint.places is not None}
    others = [k for k in range(len(crafted)) if k not in places]
    shown, every = list(places), [of.to(seen.gradient.device) for of in places.values()]
    pixels = seen.gradient.new_full((1 + int(torch.stack(every).max()),), math.nan)
    for k, of in zip(shown, every, strict=True):
        slots = crafted[k].slots(seen.gradient[k])
        at = (of >= 0) & (slots[:, -1:] != 0)
        pixels[of[at]] = (slots[:, :-1] / slots[:, -1:])[at]
    record = box.pixels(crafted[shown[0]].inputs_of(pixels)).clamp(0, 1)
    hidden = record.isnan().flatten().nonzero().flatten()
    x = box.inputs(record.nan_to_num(0.0))[None]
    labels = torch.arange(classes, device=x.device)[:, None]  # (C, 1)
    told = seen.only(*shown)
    left = [residual(told, model, inputs=x, targets=label) for label in labels]
    label = labels[left.index(min(left))]
    if len(hidden):
        read = [crafted[k] for k in others]
        x = _filled_in(seen.only(*others), model, read, x, label, hidden=hidden, box=box)
    return Certified(inputs=x, labels=label)


def _filled_in(
    seen: Observation,
    model: nn.Module,
    read: Sequence[Imprint],
    x: Tensor,
    label: Tensor,
    *,
    hidden: Tensor,
    box: Box,
) -> Tensor:
    """The record with the pixels that no patch shows, by Levenberg-Marquardt.

    The features of the models that were drawn at random are piecewise linear in them. Slopes are
    differences, in float64.
    """
    # Hidden pixels are the unknowns, and features of the drawn models the equations.
    base = box.pixels(x)

    def record(values: Tensor) -> Tensor:
        flat = base.flatten().clone()
        flat[hidden] = values
        return box.inputs(flat.reshape(base.shape))

    def features(values: Tensor) -> Tensor:
        sent = sent_gradients(seen, model, inputs=record(values), targets=label)
        return _features(read, sent.detach())

    values, damping, goal = _nearest(base[0], hidden), _DAMPING, _features(read, seen.gradient)
    one = torch.eye(len(hidden)).to(values)
    at = features(values)
    for _ in range(_NEWTON_STEPS):
        slopes = torch.stack([(features(values + _STEP * e) - at) / _STEP for e in one])
        normal = slopes @ slopes.T  # (U, U)
        scale = normal.diagonal().mean().clamp_min(1e-300)
        # More damping until the step improves on the features, and less after it did.
        for _ in range(_TRIES):
            step = torch.linalg.solve(normal + damping * scale * one, slopes @ (goal - at))
            moved = (values + step).clamp(0, 1)
            reached = features(moved)
            if float((goal - reached).norm()) < float((goal - at).norm()):
                values, at, damping = moved, reached, damping / 10
                break
            damping *= 10
        else:
            break
        if float((goal - at).norm()) < _ROUNDED * float(goal.norm()):
            break
    return record(values)


def _features(read: Sequence[Imprint], gradients: Tensor) -> Tensor:
    """(K F,) what the first linear layer was given, from gradients (K, D) of one record."""
    found = list[Tensor]()
    for imprint, gradient in zip(read, gradients, strict=True):
        slots = imprint.slots(gradient)
        row = slots[slots[:, -1].abs().argmax()]
        found.append(row[:-1] / row[-1])
    return torch.cat(found)


def _nearest(pixels: Tensor, hidden: Tensor) -> Tensor:
    """(U,) the nearest known pixel of the same channel of (channels, height, width)."""
    known = torch.ones(pixels.numel(), dtype=torch.bool, device=pixels.device)
    known[hidden] = False
    at = known.nonzero().flatten()
    area, width = pixels[0].numel(), pixels.shape[2]

    def places(of: Tensor) -> Tensor:
        parts = (_FAR * (of // area), of % area // width, of % width)
        return torch.stack(parts, dim=1).double()

    return pixels.flatten()[at[torch.cdist(places(hidden), places(at)).argmin(dim=1)]]


class _One(NamedTuple):
    """A record, its label, and what its slots hold."""

    inputs: Tensor
    label: int
    slots: list[Tensor]


class _Peel:
    """Takes records off the slots, one after the other."""

    def __init__(
        self,
        one_each: Observation,
        model: nn.Module,
        crafted: Sequence[Imprint],
        *,
        box: Box,
        classes: int,
    ) -> None:
        self._one_each, self._model, self._crafted = one_each, model, crafted
        self._box, self._classes = box, classes
        self._reference = next((k for k, imprint in enumerate(crafted) if imprint.reference), None)

    def run(self, gradient: Tensor, *, most: int) -> list[_One]:
        """The records of the sum of a batch's gradients (K, D)."""
        held = slots_of(self._crafted, gradient)
        left = [of.clone() for of in held]
        found, before = list[_One](), -1
        while before < len(found) < most:
            before = len(found)
            for k, imprint in enumerate(self._crafted):
                fullest = float(held[k].norm(dim=1).max())
                for at in left[k].norm(dim=1).argsort(descending=True).tolist():
                    slot = left[k][at]
                    if len(found) == most or float(slot.norm()) <= _EMPTY * fullest:
                        continue
                    x = _candidate(slot, imprint, self._box)
                    one = None if x is None else self._labelled(x, left, at=(k, at))
                    if one is not None:
                        found.append(one)
                        for j, of in enumerate(one.slots):
                            if j != self._reference or j == k:
                                left[j] -= of
        if self._reference is None:
            return self._settled(found, held)
        return self._relabelled(found, held[self._reference])

    def _settled(self, found: Sequence[_One], held: Sequence[Tensor]) -> list[_One]:
        """Labels once more, now that the slots of others are taken off: each that leaves least."""
        chosen, changed = list(found), True
        left = [of - sum(one.slots[j] for one in chosen) for j, of in enumerate(held)]
        for _ in range(_PASSES):
            if not changed:
                break
            changed = False
            for number, one in enumerate(chosen):
                without = [of + mine for of, mine in zip(left, one.slots, strict=True)]
                filled = self._filled(one.inputs)
                rest = [
                    sum(float((w - f).square().sum()) for w, f in zip(without, of, strict=True))
                    for of in filled
                ]
                best = rest.index(min(rest))
                if best != one.label:
                    chosen[number], changed = _One(one.inputs, best, filled[best]), True
                    left = [w - f for w, f in zip(without, filled[best], strict=True)]
        return chosen

    def _labelled(self, x: Tensor, left: Sequence[Tensor], *, at: tuple[int, int]) -> _One | None:
        """The record under the label with which it fills its slot, and leaves least of the rest."""
        k, row = at
        slot, best, least = left[k][row], None, math.inf
        for label, filled in enumerate(self._filled(x)):
            if not float((filled[k][row] - slot).norm()) <= _FILLS * float(slot.norm()):
                continue
            rest = sum(float((s - f).square().sum()) for s, f in zip(left, filled, strict=True))
            if rest < least:
                best, least = _One(x, label, filled), rest
        return best

    def _filled(self, x: Tensor) -> list[list[Tensor]]:
        """What a record's slots hold under each label."""

        def sent(target: Tensor) -> Tensor:
            return sent_gradients(self._one_each, self._model, inputs=x[None], targets=target[None])

        every = torch.arange(self._classes, device=x.device)
        return [slots_of(self._crafted, of) for of in each(sent, every).detach()]

    def _relabelled(self, found: Sequence[_One], rows: Tensor) -> list[_One]:
        """Labels by the reference, on which class 0 is sure: row c is less the records of label c.

        Slots less the reference's are the same under any label, so the labels that were tried so
        far say nothing. All records together explain the rows, each in one of them.
        """
        k = self._reference
        assert k is not None  # noqa: S101 # the caller looked
        if not found:
            return []
        filled = [self._filled(one.inputs) for one in found]
        # In row c under label c stands all of a record that this row can hold.
        parts = torch.stack([of[-1][k][-1] for of in filled])  # (records, F + 1)
        shares = torch.linalg.lstsq(parts.T, rows.T).solution  # (records, C)
        shares[:, 0] += 1  # row 0 holds all records but those of class 0
        return [
            _One(one.inputs, int(share.argmax()), of[int(share.argmax())][k : k + 1])
            for one, share, of in zip(found, shares, filled, strict=True)
        ]


def _candidate(slot: Tensor, imprint: Imprint, box: Box) -> Tensor | None:
    """(*shape) the record of a slot, inside the box."""
    if float(slot[-1]) == 0:
        return None
    x = imprint.inputs_of(slot[:-1] / slot[-1])
    pixels = box.pixels(x)
    if not bool(((pixels > -_OUTSIDE) & (pixels < 1 + _OUTSIDE)).all()):
        return None
    return box.inputs(pixels.clamp(0, 1))
