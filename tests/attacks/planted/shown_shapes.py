"""What faults of the noise's law do to draws."""

import functools
from collections.abc import Callable

import torch

from tests.attacks.planted.small_runs import draws

_COPIED = {"noise repeated in a row": 325, "a fifth of the noise copied": 130}


@functools.cache
def _drawn(name: str = "") -> torch.Tensor:
    """(300, 650) values, of which 12 are expected beyond 4 deviations."""
    return draws(name, rows=300)


def _copied(name: str) -> None:
    count = _COPIED[name]
    found, sound = draws(name), draws()
    assert torch.equal(found[:, :count], found[:, count : 2 * count])
    assert torch.equal(found[:, :count], sound[:, :count])
    assert torch.equal(found[:, 2 * count :], sound[:, 2 * count :])


def _clamped(name: str, most: float) -> None:
    found, sound = _drawn(name), _drawn()
    assert sound.abs().max() > most
    assert found.abs().max() == most
    inside = sound.abs() < most
    assert torch.equal(found[inside], sound[inside])


def _on_grid(name: str, step: float) -> None:
    found, sound = draws(name) / step, draws() / step
    assert torch.equal(found, found.round())
    assert (found - sound).abs().median() <= 0.5
    assert not torch.equal(sound, sound.round())


def _signs() -> None:
    assert torch.equal(draws("noise of two values"), draws().sign())


def _float16() -> None:
    found = draws("noise in float16")
    assert torch.equal(found, draws().half().double())


def _eight_bits() -> None:
    _on_grid("noise of 8 bits", 2.0**-5)
    assert 200 < len(_drawn("noise of 8 bits").unique()) <= 255


def _standardised() -> None:
    found = _drawn("noise standardised by row")
    assert torch.allclose(found.square().mean(dim=1), torch.ones(len(found), dtype=found.dtype))
    assert float(found.mean(dim=1).abs().max()) < 1e-9


def _uniform() -> None:
    """Variance 1, whose own deviation is sqrt(.8 / n) of n values; five of them are allowed."""
    found = _drawn("uniform noise")
    assert found.abs().max() <= 3.0**0.5
    assert abs(float(found.var()) - 1.0) < 5 * (0.8 / found.numel()) ** 0.5
    assert torch.equal(found.argsort(dim=1), _drawn().argsort(dim=1))


def _laplace() -> None:
    """Excess kurtosis 3 and variance 1/2: the variance's deviation is sqrt(5 / n) / 2."""
    found = _drawn("Laplace noise")
    assert abs(float(found.var()) - 0.5) < 5 * 0.5 * (5.0 / found.numel()) ** 0.5
    assert torch.equal(found.argsort(dim=1), _drawn().argsort(dim=1))


SHOWN: dict[str, Callable[[], None]] = {
    "noise repeated in a row": lambda: _copied("noise repeated in a row"),
    "a fifth of the noise copied": lambda: _copied("a fifth of the noise copied"),
    "noise of two values": _signs,
    "noise clamped at 3 deviations": lambda: _clamped("noise clamped at 3 deviations", 3.0),
    "noise clamped at 4 deviations": lambda: _clamped("noise clamped at 4 deviations", 4.0),
    "tails cut at 3.5 deviations": lambda: _clamped("tails cut at 3.5 deviations", 3.5),
    "noise in float16": _float16,
    "noise on a lattice": lambda: _on_grid("noise on a lattice", 2.0**-10),
    "noise of 8 bits": _eight_bits,
    "noise standardised by row": _standardised,
    "uniform noise": _uniform,
    "Laplace noise": _laplace,
}
