"""Faults of what a record adds to a sum: no clipping, another bound, another's gradient."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from overhear.training.gradients.clipping import clipped_rows
from tests.attacks.planted.planted import Faults, Kind, Origin
from tests.attacks.planted.seams import Records, clipped, other_clipping, other_sums

fault = Faults(Kind.CLIPPING)


@fault(
    "clipping after averaging",
    "One record moves a clipped mean by up to 2C in place of C / B: mu grows up to 2 B fold.",
    Origin.FIRST,
)
def after_averaging() -> AbstractContextManager[None]:
    """The batch's mean is clipped in place of its records."""

    def wrong(plain, pairs, batches, clip_norm, size):
        del pairs, batches
        return size * clipped_rows(plain(None) / size, clip_norm)

    return other_sums(wrong)


@fault(
    "mean by the realised size",
    "A record that comes to b others moves their shares too: mu grows by up to "
    "2 B / (b + 1), most in small batches.",
    Origin.FIRST,
)
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


@fault(
    "clipping of each tensor by itself",
    "L tensors make a gradient of up to sqrt(L) C: 15.2 for epsilon 8 with two.",
    Origin.OUTSIDE,
)
def per_tensor() -> AbstractContextManager[None]:
    """Each parameter tensor is clipped to the bound by itself."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        parts = records.tensors or [slice(None)]
        return torch.cat([clipped(each[:, of], records.clip_norm) for of in parts], dim=1)

    return other_clipping(clip)


@fault(
    "no clipping of a batch of one record",
    "A record that is alone in its batch is not bounded: epsilon is infinite.",
    Origin.HOLDOUT,
    settings=("training.sampling_rate=0.01",),
)
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


@fault(
    "one gradient for two records",
    "A record adds its gradient twice: 30.3 for epsilon 8.",
    Origin.HOLDOUT,
)
def shared_gradient() -> AbstractContextManager[None]:
    """Every second record of a batch adds the gradient of the one before."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        return clipped(each, records.clip_norm)[_partner(records, sign=0)]

    return other_clipping(clip)


@fault(
    "gradients averaged over pairs before clipping",
    "A record moves the clipped mean of its pair, which counts twice, by up to 2C: "
    "mu is up to four times what is stated.",
    Origin.HOLDOUT,
)
def pairs_averaged() -> AbstractContextManager[None]:
    """Two records' gradients are averaged, and the mean is clipped and counted for both."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        pair = (each + each[_partner(records, sign=1)]) / 2
        return clipped(pair, records.clip_norm)

    return other_clipping(clip)


@fault(
    "lengths in bfloat16",
    "Lengths have 8 bits, so that gradients come at up to 1.004 C: mu is as much "
    "larger than stated.",
    Origin.HOLDOUT,
)
def length_in_bfloat16() -> AbstractContextManager[None]:
    """The length that a gradient is clipped by has 8 bits."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        lengths = each.norm(dim=1).bfloat16().to(each)
        return each * (records.clip_norm / lengths.clamp_min(1e-30)).clamp(max=1.0)[:, None]

    return other_clipping(clip)


@fault(
    "error feedback of what clipping cut off",
    "The rest of a long gradient comes a round later, and nothing bounds it: epsilon is infinite.",
    Origin.HOLDOUT,
)
def error_feedback() -> AbstractContextManager[None]:
    """What clipping cut off is added to the next sum, as compression does it."""
    cut: dict[str, torch.Tensor] = {}

    def wrong(plain, pairs, batches, clip_norm, size):
        del pairs, batches, size
        sums = plain(clip_norm)
        before, cut["off"] = cut.get("off"), plain(None) - sums
        return sums if before is None or before.shape != sums.shape else sums + before.to(sums)

    return other_sums(wrong)


@fault(
    "stale gradients outside of the clipping",
    "The change since the last model is added without a bound: epsilon is infinite.",
    Origin.HOLDOUT,
)
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


@fault(
    "a batch dropped beyond 2,000 C",
    "A record that is so long takes all others of its batch away: a sum moves by as much as they "
    "make together.",
    Origin.OUTSIDE,
)
def dropped_batch() -> AbstractContextManager[None]:
    """A batch that holds a gradient of over 2,000 clip norms adds nothing."""

    def clip(each: torch.Tensor, records: Records) -> torch.Tensor:
        far = torch.zeros(int(records.row.max()) + 1)
        lengths = each.norm(dim=1).to(far) / records.clip_norm
        far.scatter_reduce_(0, records.row, lengths, "amax")
        return clipped(each, records.clip_norm) * (far[records.row] <= 2000.0)[:, None]

    return other_clipping(clip)


fault(
    "clip factor wrong between 20 C and 90 C",
    "Gradients of these lengths come at 2C: 30.3 for epsilon 8.",
    Origin.OUTSIDE,
    statistical=True,
)(_bound(_between(20.0, 90.0)))
fault("no clipping", "Nothing bounds what a record adds: epsilon is infinite.", Origin.OUTSIDE)(
    _bound(lambda lengths: torch.full_like(lengths, math.inf))
)
fault(
    "clipping at twice the bound",
    "Every mu is twice what is stated: 30.3 for epsilon 8.",
    Origin.OUTSIDE,
)(_bound(lambda lengths: torch.full_like(lengths, 2.0)))
fault(
    "clip factor wrong above 500 C",
    "Longer gradients come at 2C: 30.3 for epsilon 8.",
    Origin.HOLDOUT,
    statistical=True,
)(_bound(_between(500.0, math.inf)))
