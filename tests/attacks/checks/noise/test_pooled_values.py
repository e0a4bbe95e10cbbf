"""Tests over many rows find what acts on few coordinates of each, and pass independent normals.

Every set of tests fails a sound pool with probability below 1e-6; pools have fixed seeds.
"""

import numpy as np
import pytest

from overhear.attacks.checks.noise_residuals import (
    note_means,
    note_pairs_of_coordinates,
    note_regularity,
    note_span,
    note_subsets,
)
from overhear.attacks.checks.noise_rows import Pool, note_repeats, note_shape
from overhear.attacks.checks.noise_streams import note_values
from overhear.attacks.checks.recording import Part
from overhear.attacks.checks.result import Finding
from overhear.training.noise_tests.laws import quadratic

D, N = 130, 200
PARTS = [Part("the parameter 'weight'", 0, (12, 10)), Part("the parameter 'bias'", 120, (10,))]


def _normals(n: int = N, width: int = D, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, width))


def _of(note, values: np.ndarray) -> Finding:
    found = Finding()
    parts = PARTS if values.shape[1] == D else [Part("a block", 0, (values.shape[1],))]
    note(found, Pool("message", values, [f"row {i}" for i in range(len(values))], parts))
    return found


NOTES = [
    note_subsets, note_means, note_pairs_of_coordinates, note_span, note_repeats, note_regularity,
]  # fmt: skip


@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize(("n", "width"), [(N, D), (1, D), (2, 1), (1, 1), (500, 3)])
def test_independent_normals_pass(note, n, width):
    assert _of(note, _normals(n, width)).passed


def test_the_parameter_that_has_less_noise_is_named():
    values = _normals()
    values[:, 120:] *= 0.5
    words = _of(note_subsets, values).what
    assert "coordinates of the parameter 'bias' in every message has 0.2" in words
    assert "(n = 2,000)" in words


@pytest.mark.parametrize(
    ("at", "share"),
    [
        (slice(3, None, 7), 0.85),
        (slice(-10, None), 0.8),
        (slice(77, 78), 0.5),
        (slice(31, 55), 0.85),
        (np.random.default_rng(2).permutation(D)[:20], 0.85),
        (slice(0, 120, 10), 0.8),
        (slice(0, 1), 0.0),
    ],
)
def test_less_noise_on_any_coordinates_is_found(at, share):
    values = _normals()
    values[:, at] *= share
    assert not _of(note_subsets, values).passed


def test_a_mean_that_is_not_0_is_found():
    values = _normals()
    values[:, 40] += 0.6
    assert "coordinate 40 (of the parameter 'weight')" in _of(note_means, values).what


def test_two_coordinates_that_share_their_noise_are_named():
    values = _normals()
    values[:, 99] = -0.7 * values[:, 13] + np.sqrt(0.51) * values[:, 99]
    found = _of(note_pairs_of_coordinates, values)
    assert not found.passed
    assert "coordinates 13 and 99" in found.what


def test_noise_that_leaves_a_subspace_alone_is_found_although_every_coordinate_is_right():
    rotation, _ = np.linalg.qr(_normals(D, D, seed=5))
    kept = rotation[:, : D // 2]
    values = _normals() @ kept @ kept.T
    values /= values.std(axis=0)
    assert not _of(note_span, values).passed


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("to", [26, 61, 104])
def test_a_fifth_that_is_copied_is_found_at_any_offset(to, backwards):
    values = _normals()
    copied = values[:, :26]
    values[:, to : to + 26] = copied[:, ::-1] if backwards else copied
    found = _of(note_repeats, values)
    assert not found.passed
    where = f"add up to {to + 25}" if backwards else f"coordinates {to} apart"
    assert where in found.what


def test_the_bound_of_a_quadratic_form_holds():
    """Of 20,000 sums of 50 products at most 350 are beyond what has p = .01 (chance below 1e-6)."""
    values = _normals(20_000, 51, seed=8)
    sums = np.abs((values[:, 1:] * values[:, :-1]).sum(axis=1))
    assert (quadratic(sums, 25.0) < 0.01).sum() <= 350
    assert quadratic(0.0, 25.0) == 1.0


@pytest.mark.parametrize("size", [64, 10_000, 300_000])
def test_normal_values_have_their_shape(size):
    found = Finding()
    note_shape(found, _normals(size, 1), "noise")
    assert found.passed, found.what


@pytest.mark.parametrize(
    "change",
    [
        lambda z: np.clip(z, -3.0, 3.0),
        lambda z: z[np.abs(z) < 4.0],
        lambda z: np.round(8.0 * z) / 8.0,
        lambda z: np.sign(z) * np.random.default_rng(3).exponential(np.sqrt(0.5), size=z.shape),
    ],
)
def test_another_shape_is_found(change):
    """A cut at 4 deviations shows in 600,000 values, where 38 are expected beyond it."""
    found = Finding()
    note_shape(found, change(_normals(600_000, 1)), "noise")
    assert not found.passed


def _numbers(values: np.ndarray, dtype: type = np.float32) -> Finding:
    found = Finding()
    names = [f"row {i}" for i in range(len(values))]
    note_values(found, values.astype(dtype), names, PARTS, "noise")
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_numbers_of_sound_noise_do_not_come_twice(n, dtype):
    sound = np.random.default_rng(4).standard_normal((n, D), dtype=dtype)
    found = _numbers(sound, dtype)
    assert found.passed, found.what


def _permuted_copy(z: np.ndarray) -> np.ndarray:
    z[:, 100:126] = -z[:, np.random.default_rng(0).permutation(26)]
    return z


def _copied_row(z: np.ndarray) -> np.ndarray:
    z[150] = z[3, ::-1]
    return z


def _coarse_bias(z: np.ndarray) -> np.ndarray:
    z[:, 120:] = z[:, 120:].astype(np.float16)
    return z


@pytest.mark.parametrize(
    "change",
    [
        lambda z: z.astype(np.float16),
        lambda z: np.round(16.0 * z) / 16.0,
        lambda z: np.round(1e4 * z) / 1e4,
        lambda z: np.clip(z, -3.3, 3.3),
        _permuted_copy,
        _copied_row,
        _coarse_bias,
    ],
)
def test_numbers_that_come_again_are_found(change):
    assert not _numbers(change(_normals())).passed


def test_the_row_that_is_another_in_another_order_is_named():
    assert "numbers of row 3 are those of row 150" in _numbers(_copied_row(_normals())).what


@pytest.mark.parametrize(
    "regular",
    [
        lambda z: z * np.sqrt(D) / np.linalg.norm(z, axis=1, keepdims=True),
        lambda z: z - z.mean(axis=1, keepdims=True),
        lambda z: z - z.mean(axis=0),
        lambda z: z / np.sqrt(np.square(z).mean(axis=0)),
    ],
    ids=["lengths", "sums", "sums of coordinates", "squares of coordinates"],
)
def test_noise_that_is_scaled_or_centred_to_its_own_size_is_too_regular(regular):
    found = _of(note_regularity, regular(_normals()))
    assert not found.passed
    assert "off their law" in found.what
