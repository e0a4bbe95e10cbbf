"""What faults of clipping do to the sum over an agent's first records."""

from collections.abc import Callable

import torch

from tests.attacks.planted.small_runs import SIZES, gradients

_SHARP = {"rtol": 1e-9, "atol": 1e-12}


def _alone(record: int) -> torch.Tensor:
    """(243,) the gradient of one record, which nothing clips."""
    before = gradients("", records=record, bound=None) if record else 0.0
    return gradients("", records=record + 1, bound=None) - before


_LENGTH = float(_alone(0).norm())


def _lengths(name: str, wanted: dict[float, float]) -> Callable[[], None]:
    """From a gradient's length in clip norms to that of what is added."""

    def check() -> None:
        for times, factor in wanted.items():
            bound = _LENGTH / times
            found = gradients(name, records=1, bound=bound)
            torch.testing.assert_close(float(found.norm()) / bound, factor, rtol=1e-6, atol=0.0)
            torch.testing.assert_close(found / found.norm(), _alone(0) / _LENGTH, **_SHARP)

    return check


def _per_tensor() -> None:
    found = gradients("clipping of each tensor by itself", records=1, bound=1e-3)
    for part in found.split(SIZES):
        torch.testing.assert_close(float(part.norm()), 1e-3, rtol=1e-6, atol=0.0)


def _after_averaging() -> None:
    found = gradients("clipping after averaging", records=4, bound=1e-3)
    size = 6.0  # expected
    torch.testing.assert_close(float(found.norm()), size * 1e-3, rtol=1e-6, atol=0.0)


def _realised() -> None:
    for records in (1, 4):
        found = gradients("mean by the realised size", records=records, bound=0.1)
        torch.testing.assert_close(
            found, gradients("", records=records, bound=0.1) * 6.0 / records, **_SHARP
        )


def _single() -> None:
    name = "no clipping of a batch of one record"
    torch.testing.assert_close(gradients(name, records=1, bound=0.1), _alone(0), **_SHARP)
    torch.testing.assert_close(
        gradients(name, records=2, bound=0.1), gradients("", records=2, bound=0.1), **_SHARP
    )


def _clip(gradient: torch.Tensor, bound: float) -> torch.Tensor:
    return gradient * min(1.0, bound / float(gradient.norm()))


def _shared() -> None:
    found = gradients("one gradient for two records", records=3, bound=0.1)
    wanted = 2 * _clip(_alone(0), 0.1) + _clip(_alone(2), 0.1)
    torch.testing.assert_close(found, wanted, **_SHARP)


def _pairs() -> None:
    found = gradients("gradients averaged over pairs before clipping", records=3, bound=0.1)
    pair = (_alone(0) + _alone(1)) / 2
    torch.testing.assert_close(found, 2 * _clip(pair, 0.1) + _clip(_alone(2), 0.1), **_SHARP)


def _in_8_bits() -> None:
    bound = _LENGTH / 5.0
    found = gradients("lengths in bfloat16", records=1, bound=bound)
    length = float(torch.tensor(_LENGTH).bfloat16())
    assert length != _LENGTH
    torch.testing.assert_close(found, _alone(0) * bound / length, **_SHARP)


def _once_more() -> None:
    """What is added to the sum over three records after one over the first."""
    name, other = "error feedback of what clipping cut off", "stale gradients outside of the "
    sound, free = (
        {n: gradients("", records=n, bound=bound) for n in (1, 3)} for bound in (0.1, None)
    )
    for fault, rest in (
        (name, free[1] - sound[1]),
        (f"{other}clipping", 0.1 * (free[3] - free[1])),
    ):
        torch.testing.assert_close(gradients(fault, records=1, bound=0.1), sound[1], **_SHARP)
        found = gradients(fault, records=3, bound=0.1, before=1)
        torch.testing.assert_close(found, sound[3] + rest, **_SHARP)


_SOUND = {0.5: 0.5, 5.0: 1.0}


def _dropped() -> None:
    name = "a batch dropped beyond 2,000 C"
    bound = float(gradients("", records=1, bound=None).norm())
    for of, there in ((1.0, True), (1 / 1900, True), (1 / 2100, False)):
        found = gradients(name, records=1, bound=bound * of)
        assert bool(found.any()) is there


SHOWN: dict[str, Callable[[], None]] = {
    "a batch dropped beyond 2,000 C": _dropped,
    "no clipping": _lengths("no clipping", {0.5: 0.5, 5.0: 5.0, 1000.0: 1000.0}),
    "clipping at twice the bound": _lengths(
        "clipping at twice the bound", {0.5: 0.5, 1.5: 1.5, 1000.0: 2.0}
    ),
    "clip factor wrong between 20 C and 90 C": _lengths(
        "clip factor wrong between 20 C and 90 C",
        _SOUND | {19.0: 1.0, 21.0: 2.0, 89.0: 2.0, 91.0: 1.0},
    ),
    "clip factor wrong above 500 C": _lengths(
        "clip factor wrong above 500 C", _SOUND | {499.0: 1.0, 501.0: 2.0}
    ),
    "clipping of each tensor by itself": _per_tensor,
    "clipping after averaging": _after_averaging,
    "mean by the realised size": _realised,
    "no clipping of a batch of one record": _single,
    "one gradient for two records": _shared,
    "gradients averaged over pairs before clipping": _pairs,
    "lengths in bfloat16": _in_8_bits,
    "error feedback of what clipping cut off": _once_more,
    "stale gradients outside of the clipping": _once_more,
}
