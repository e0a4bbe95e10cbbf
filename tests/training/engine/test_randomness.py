"""Noise and batches: one stream a source, none used twice, and a root that nobody sees.

What the noise is like is in test_noise_quality.
"""

import copy
import hashlib
import pickle
import re
import threading

import numpy as np
import pytest
import torch

from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import Purpose, SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.graphs.topologies import ring
from tests.training.contract import bound_to, setting

ROOT = 0x0123_4567_89AB_CDEF_FEDC_BA98_7654_3210
ROWS = [5, 0, 9, 2, 7, 1, 8]
both = pytest.mark.parametrize("hardened", [False, True], ids=["plain", "hardened"])


def noise(source: SecretRandomness, *, round=1, call=0, rows=(0,), width=16) -> torch.Tensor:
    return source.normal(round=round, call=call, rows=list(rows), width=width, dtype=torch.float64)


def test_noise_and_batches_never_share_a_stream():
    source = SecretRandomness(root=3)
    streams = [source.stream(p, round=1, call=0, row=0).integers(2**63, size=4) for p in Purpose]
    assert len({value for stream in streams for value in stream.tolist()}) == 4 * len(Purpose)


def test_every_part_of_a_place_has_words_of_its_own_in_the_counter():
    source = SecretRandomness(root=3)
    assert source.counter(Purpose.NOISE, round=5, call=9, row=7) == (0, 7, 2**32 + 9, 5)
    assert source.counter(Purpose.BATCH, round=9, call=5, row=7) == (0, 7, 2 * 2**32 + 5, 9)
    places = {
        source.counter(purpose, round=r, call=c, row=row)
        for purpose in Purpose
        for r in range(3)
        for c in range(3)
        for row in range(3)
    }
    assert len(places) == 27 * len(Purpose)


@pytest.mark.parametrize("wrong", [{"call": 2**32}, {"call": -1}, {"row": 2**64}, {"round": -1}])
def test_a_place_that_would_be_another_is_refused(wrong):
    place = {"round": 0, "call": 0, "row": 0, **wrong}
    with pytest.raises(ValueError, match=r"call=.* must lie in \[0, 2\*\*32\)"):
        SecretRandomness(3).counter(Purpose.NOISE, **place)


def test_noise_is_what_the_stream_of_its_source_gives():
    source = SecretRandomness(ROOT)
    stream = source.stream(Purpose.NOISE, round=4, call=2, row=6)
    assert (
        noise(source, round=4, call=2, rows=[1, 6])[1].tolist() == stream.normal(size=16).tolist()
    )


def test_a_passing_stream_draws_what_a_stream_does_whatever_was_left_of_the_one_before():
    source = SecretRandomness(ROOT)

    def drawn(generator):
        half = generator.integers(2**32, dtype=np.uint32)  # leaves the other half of a word
        return [half, *generator.random(5).tolist(), generator.standard_normal()]

    for row in (6, 2, 6):
        at = {"purpose": Purpose.BATCH, "round": 4, "call": 2, "row": row}
        assert drawn(source.passing_stream(**at)) == drawn(source.stream(**at))


def test_hardened_noise_is_half_the_sum_of_four_draws():
    source = SecretRandomness(ROOT, hardened=True)
    stream = source.stream(Purpose.HARDENED_NOISE, round=4, call=2, row=6)
    draws = stream.normal(size=(4, 16))
    expected = (draws[0] + draws[1] + draws[2] + draws[3]) / 2
    assert noise(source, round=4, call=2, rows=[1, 6])[1].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("hardened", "dtype", "digest"),
    [
        (False, torch.float32, "681ae4e844307b16743834c7f98fb7a43454f74bfe0810e987fe7917aff1afca"),
        (False, torch.float64, "82cb81f1d13db68e209803d1f84378081fe2b7100868f244ac34114bda6fce69"),
        (True, torch.float32, "27051748090f85cd333d9104f04cd1584192354e4ae162dff02a1209879f4f4a"),
        (True, torch.float64, "8f90fdc5697439dc957d6f9f0c821146d126f28958ea8069419ccecaf321a73a"),
    ],
    ids=["float32", "float64", "hardened float32", "hardened float64"],
)
def test_noise_is_bit_for_bit_that_of_earlier_versions(hardened, dtype, digest):
    source = SecretRandomness(ROOT, hardened=hardened)
    z = source.normal(round=3, call=1, rows=[0, 7, 2], width=5001, dtype=dtype)
    assert hashlib.sha256(z.numpy().tobytes()).hexdigest() == digest


@both
def test_noise_is_the_same_by_any_number_of_threads(monkeypatch, hardened):
    drawn, names = [], []
    fill = SecretRandomness._fill

    def named(*args, **kwargs):
        names.append(threading.current_thread().name)
        fill(*args, **kwargs)

    monkeypatch.setattr(SecretRandomness, "_fill", named)
    for count in (1, 2, 3, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        drawn.append(noise(SecretRandomness(ROOT, hardened=hardened), rows=ROWS, width=2**15))
    assert all(torch.equal(one, drawn[0]) for one in drawn)
    # One by the caller itself, then by 2, by 3, and by as many as have 2^16 values to draw.
    assert names[0] == threading.current_thread().name
    assert len(names) == 1 + 2 + 3 + len(ROWS) // 2
    assert all(name.startswith("ThreadPoolExecutor") for name in names[1:])


def test_a_row_that_no_stream_has_is_refused_on_any_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with pytest.raises(ValueError, match="row=-1"):
        noise(SecretRandomness(ROOT), rows=[*ROWS, -1], width=2**15)


@pytest.mark.parametrize(("rows", "width"), [(1, 2**20), (300, 2**11), (2, 2**15)])
def test_few_values_are_drawn_without_a_thread(monkeypatch, rows, width):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.delattr("overhear.training.engine.randomness.ThreadPoolExecutor")
    assert noise(SecretRandomness(ROOT), rows=range(rows), width=width).shape == (rows, width)


@both
def test_the_same_root_repeats_whatever_the_global_seeds(hardened):
    source = SecretRandomness(ROOT, hardened=hardened)
    drawn = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the legacy global state is what is tested
        drawn.append(noise(SecretRandomness(ROOT, hardened=hardened)))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], noise(source))


@both
def test_the_default_root_is_of_the_systems_entropy_whatever_the_global_seeds(hardened):
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - the legacy global state is what is tested
        drawn.append(noise(SecretRandomness(hardened=hardened)))
    assert not (drawn[0] == drawn[1]).any()


def test_two_engines_never_share_noise_and_nor_do_two_starts_of_one():
    def values(engine: Engine) -> set[float]:
        recorded = Recorded()
        engine.start(recorded=recorded)
        engine.advance(recorded=recorded)
        return {value for z in recorded.noise for value in z.double().flatten().tolist()}

    bound = bound_to("dpdl", ring(5))
    first, second = Engine(setting(ring(5)), bound), Engine(setting(ring(5)), bound)
    drawn = [values(first), values(second), values(first)]
    assert min(map(len, drawn)) > 100
    # 1e3 values each in float64: any equal by chance has probability of the order 1e6 / 2^53.
    assert len(set.union(*drawn)) == sum(map(len, drawn))


@both
def test_renewed_noise_is_fresh_and_of_the_same_kind(hardened):
    source = SecretRandomness(hardened=hardened)
    again = source.renewed()
    assert again.hardened is hardened
    assert not (noise(source) == noise(again)).any()
    given = SecretRandomness(ROOT, hardened=hardened)
    assert given.renewed() is given


def shown(root: int) -> list[str]:
    """How a root could be written."""
    parts = [root, root & (2**64 - 1), root >> 64]
    return [text for part in parts for text in (str(part), f"{part:x}")]


@both
def test_its_words_do_not_show_the_root(hardened):
    source = SecretRandomness(ROOT, hardened=hardened)
    text = f"{source} {source!r} {source:}"
    assert not any(part in text.lower() for part in shown(ROOT))
    assert ("hardened" in text) is hardened


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
@both
def test_it_is_neither_pickled_nor_copied(hardened, take):
    with pytest.raises(TypeError, match="cannot be pickled or copied") as raised:
        take(SecretRandomness(ROOT, hardened=hardened))
    assert not any(part in str(raised.value) for part in shown(ROOT))


@pytest.mark.parametrize("root", [ROOT << 1 | 1 << 128, -ROOT])
def test_a_root_out_of_range_is_refused_and_not_shown(root):
    with pytest.raises(ValueError, match=re.escape("root must lie in [0, 2**128)")) as raised:
        SecretRandomness(root=root)
    assert not any(part in str(raised.value) for part in shown(abs(root)))
