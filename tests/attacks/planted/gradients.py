"""Faults of what a record adds to a sum: no clipping, another bound, another's gradient."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from overhear.training.gradients.clipping import clipped_rows
from tests.attacks.planted.planted import Kind, Origin, Planted
from tests.attacks.planted.seams import Records, clipped, other_clipping, other_sums


def after_averaging() -> AbstractContextManager[None]:
    """The batch's mean is clipped in place of its records."""

    def wrong(plain, pairs, batches, clip_norm, size):
        del pairs, batches
        return size * clipped_rows(plain(None) / size, clip_norm)

    return other_sums(wrong)


def by_realised_size() -> AbstractContextManager[None]:
    """Sums come as if each were divided by how many records the batch has."""

    def wrong(plain, pairs, batches, clip_norm, size):
        sizes = torch.tensor([max(1, len(targets)) for _, targets in batches])
        holders = torch.as_tensor(pairs[1], dtype=torch.int64)
        sums = plain(clip_norm)
        return sums * (size / sizes[holders])[:, None].to(sums)

    return other_sums(wrong)


def _bound(
    of: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[], AbstractContextManager[None]]:
    """Clipping at a bound that depends on the gradient's length, both in clip norms."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        lengths = each.double().norm(dim=1) / records.clip_norm
        factors = (of(lengths) / lengths.clamp_min(1e-30)).clamp(max=1.0)
        return each * factors[:, None].to(each)

    return lambda: other_clipping(clip)


def _between(low: float, high: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Twice the bound for gradients of some lengths."""
    return lambda lengths: 1.0 + ((lengths > low) & (lengths < high)).to(lengths)


def per_tensor() -> AbstractContextManager[None]:
    """Each parameter tensor is clipped to the bound by itself."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        parts = records.tensors or [slice(None)]
        return torch.cat([clipped(each[:, of], records.clip_norm) for of in parts], dim=1)

    return other_clipping(clip)


def single_records_free() -> AbstractContextManager[None]:
    """A batch of one record is not clipped, as if its mean had been."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        sizes = torch.bincount(records.row, minlength=1)[records.row]
        return torch.where((sizes == 1)[:, None], each, clipped(each, records.clip_norm))

    return other_clipping(clip)


def _partner(records: Records, *, sign: int) -> torch.Tensor:
    """(n,) for each record the other of its pair (0, 1), (2, 3), ...; itself where it has none.

    With sign 0 the first of the pair for both.
    """
    at, place = torch.arange(len(records.row)), records.place
    other = at + 1 - 2 * (place % 2) if sign else at - place % 2
    other = other.clamp(0, len(at) - 1)
    return torch.where(records.row[other] == records.row, other, at)


def shared_gradient() -> AbstractContextManager[None]:
    """Every second record of a batch adds the gradient of the one before."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        return clipped(each, records.clip_norm)[_partner(records, sign=0)]

    return other_clipping(clip)


def pairs_averaged() -> AbstractContextManager[None]:
    """Two records' gradients are averaged, and the mean is clipped and counted for both."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        pair = (each + each[_partner(records, sign=1)]) / 2
        return clipped(pair, records.clip_norm)

    return other_clipping(clip)


def length_in_bfloat16() -> AbstractContextManager[None]:
    """The length that a gradient is clipped by has 8 bits."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        lengths = each.norm(dim=1).bfloat16().to(each)
        return each * (records.clip_norm / lengths.clamp_min(1e-30)).clamp(max=1.0)[:, None]

    return other_clipping(clip)


def error_feedback() -> AbstractContextManager[None]:
    """What clipping cut off is added to the next sum, as compression does it."""
    cut: dict[str, torch.Tensor] = {}

    def wrong(plain, pairs, batches, clip_norm, size):
        del pairs, batches, size
        sums = plain(clip_norm)
        before, cut["off"] = cut.get("off"), plain(None) - sums
        return sums if before is None or before.shape != sums.shape else sums + before.to(sums)

    return other_sums(wrong)


def stale_difference() -> AbstractContextManager[None]:
    """A tenth of how gradients changed since the last model is added after clipping."""
    last: dict[str, torch.Tensor] = {}

    def wrong(plain, pairs, batches, clip_norm, size):
        del pairs, batches, size
        sums = plain(clip_norm)
        before, last["sums"] = last.get("sums"), plain(None)
        if before is None or before.shape != sums.shape:
            return sums
        return sums + 0.1 * (last["sums"] - before.to(sums))

    return other_sums(wrong)


FAULTS = (
    Planted(
        name="clipping after averaging",
        sentence="One record moves a clipped mean by up to 2C in place of C / B: mu grows up "
        "to 2 B fold.",
        plant=after_averaging,
        kind=Kind.CLIPPING,
        origin=Origin.FIRST,
    ),
    Planted(
        name="mean by the realised size",
        sentence="A record that comes to b others moves their shares too: mu grows by up to "
        "2 B / (b + 1), most in small batches.",
        plant=by_realised_size,
        kind=Kind.CLIPPING,
        origin=Origin.FIRST,
    ),
    Planted(
        name="clip factor wrong between 20 C and 90 C",
        sentence="Gradients of these lengths come at 2C: 30.3 for epsilon 8.",
        plant=_bound(_between(20.0, 90.0)),
        kind=Kind.CLIPPING,
        origin=Origin.OUTSIDE,
        statistical=True,
    ),
    Planted(
        name="no clipping",
        sentence="Nothing bounds what a record adds: epsilon is infinite.",
        plant=_bound(lambda lengths: torch.full_like(lengths, math.inf)),
        kind=Kind.CLIPPING,
        origin=Origin.OUTSIDE,
    ),
    Planted(
        name="clipping of each tensor by itself",
        sentence="L tensors make a gradient of up to sqrt(L) C: 15.2 for epsilon 8 with two.",
        plant=per_tensor,
        kind=Kind.CLIPPING,
        origin=Origin.OUTSIDE,
    ),
    Planted(
        name="clipping at twice the bound",
        sentence="Every mu is twice what is stated: 30.3 for epsilon 8.",
        plant=_bound(lambda lengths: torch.full_like(lengths, 2.0)),
        kind=Kind.CLIPPING,
        origin=Origin.OUTSIDE,
    ),
    Planted(
        name="clip factor wrong above 500 C",
        sentence="Longer gradients come at 2C: 30.3 for epsilon 8.",
        plant=_bound(_between(500.0, math.inf)),
        kind=Kind.CLIPPING,
        origin=Origin.HOLDOUT,
        statistical=True,
    ),
    Planted(
        name="no clipping of a batch of one record",
        sentence="A record that is alone in its batch is not bounded: epsilon is infinite.",
        plant=single_records_free,
        kind=Kind.CLIPPING,
        origin=Origin.HOLDOUT,
        settings=("training.sampling_rate=0.01",),
    ),
    Planted(
        name="one gradient for two records",
        sentence="A record adds its gradient twice: 30.3 for epsilon 8.",
        plant=shared_gradient,
        kind=Kind.CLIPPING,
        origin=Origin.HOLDOUT,
    ),
    Planted(
        name="gradients averaged over pairs before clipping",
        sentence="A record moves the clipped mean of its pair, which counts twice, by up to 2C: "
        "mu is up to four times what is stated.",
        plant=pairs_averaged,
        kind=Kind.CLIPPING,
        origin=Origin.HOLDOUT,
    ),
    Planted(
        name="lengths in bfloat16",
        sentence="Lengths have 8 bits, so that gradients come at up to 1.004 C: mu is as much "
        "larger than stated.",
        plant=length_in_bfloat16,
        kind=Kind.CLIPPING,
        origin=Origin.HOLDOUT,
    ),
    Planted(
        name="error feedback of what clipping cut off",
        sentence="The rest of a long gradient comes a round later, and nothing bounds it: epsilon "
        "is infinite.",
        plant=error_feedback,
        kind=Kind.CLIPPING,
        origin=Origin.HOLDOUT,
    ),
    Planted(
        name="stale gradients outside of the clipping",
        sentence="The change since the last model is added without a bound: epsilon is infinite.",
        plant=stale_difference,
        kind=Kind.CLIPPING,
        origin=Origin.HOLDOUT,
    ),
)
