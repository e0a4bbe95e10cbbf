"""Philox4x32-10: known answers, what it refuses, and devices that are not here."""

import hashlib
import math
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from overhear.training.device import philox
from overhear.training.device.philox import normal_rows, pairs_at_once, philox4x32

# Counter, key and answer from kat_vectors of Random123 1.14.
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN, ids=["zeros", "ones", "pi"])
def test_known_answers(device, counter, key, answer):
    a, b, c, d = (torch.full((33,), word, device=device) for word in words(counter))
    k, m = words(key)
    found = torch.stack(philox4x32((a, b, c, d), (k, m)))
    assert (found.T.cpu() == torch.tensor(words(answer))).all()


def test_words_are_broadcast_as_if_spread_out():
    a, b = torch.arange(5)[None], torch.arange(3)[:, None] + 2**31
    c = d = torch.tensor(2**32 - 1)
    spread = philox4x32((a.expand(3, 5), b.expand(3, 5), c.expand(3, 5), d.expand(3, 5)), (3, 4))
    for one, other in zip(philox4x32((a, b, c, d), (3, 4)), spread, strict=True):
        assert torch.equal(one.expand(3, 5), other)


def test_words_are_those_of_earlier_versions():
    place = torch.arange(1000)[None], torch.arange(3)[:, None] * 2**30
    nonce = torch.full((1, 1), 2**32 - 5), torch.full((1, 1), 77)
    found = torch.stack(philox4x32((*place, *nonce), (0x89ABCDEF, 0x01234567)))
    assert hashlib.sha256(found.numpy().tobytes()).hexdigest() == (
        "80e5b02968c63a8d4ed30beae4cb0a1faa7bd0cd311e72238394b099f6bd9e7e"
    )


def test_the_words_of_a_counter_are_left_as_they_are():
    counter = tuple(torch.full((2, 3), word) for word in (1, 2, 3, 4))
    philox4x32(counter, (5, 6))
    assert [word.unique().tolist() for word in counter] == [[1], [2], [3], [4]]


def by_hand(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 on Python's integers, which do not wrap."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        (p, low_p), (q, low_q) = divmod(a * 0xD2511F53, 2**32), divmod(c * 0xCD9E8D57, 2**32)
        a, b, c, d = q ^ b ^ k, low_q, p ^ d ^ m, low_p
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return [a, b, c, d]


@pytest.mark.parametrize("draws", [1, 4])
def test_a_value_is_box_muller_of_the_words_of_its_place(draws):
    secret, rows, width = words("89abcdef 01234567 fedcba98 76543210"), [2**32 - 1, 0, 12], 7
    for z, row in zip(
        normal_rows(
            secret, rows, width=width, dtype=torch.float64, device="cpu", draws=draws
        ).tolist(),
        rows,
        strict=True,
    ):
        for pair in range(4):
            expected = [0.0, 0.0]
            for draw in range(draws):
                a, b, c, d = by_hand([pair + draw * 2**30, row, *secret[2:]], secret[:2])
                u = ((a * 2**32 + b >> 11) + 1) / 2**53
                angle = math.tau * (c * 2**32 + d >> 11) / 2**53
                radius = math.sqrt(-2 * math.log(u) / draws)
                expected[0] += radius * math.cos(angle)
                expected[1] += radius * math.sin(angle)
            assert z[2 * pair : 2 * pair + 2] == pytest.approx(
                expected[: width - 2 * pair], rel=1e-12, abs=1e-13
            )


@pytest.mark.parametrize("rows", [[0, 1, 2], [5, 2]])
@pytest.mark.parametrize("draws", [1, 4])
def test_on_a_device_that_only_pretends_all_of_it_stays_there(monkeypatch, rows, draws):
    monkeypatch.setattr(philox, "fused", lambda *_: None)  # a kernel needs addresses
    with FakeTensorMode():  # raises where the host reads a value
        z = normal_rows(
            [1, 2, 3, 4], rows, width=7, dtype=torch.float32, device="cuda", draws=draws
        )
    assert (z.device.type, z.dtype, tuple(z.shape)) == ("cuda", torch.float32, (len(rows), 7))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"width": 2**31 + 1}, "width=2147483649"),
        ({"rows": [0, 2**32]}, "rows=0..4294967296"),
        ({"rows": [-1]}, "rows=-1"),
        ({"draws": 5}, "draws=5"),
        ({"draws": 0}, "draws=0"),
    ],
)
def test_numbers_whose_noise_would_be_that_of_another_place_are_refused(wrong, named):
    of = {"rows": [0], "width": 3, "draws": 1, **wrong}
    with pytest.raises(ValueError, match=named):
        normal_rows([1, 2, 3, 4], dtype=torch.float32, device="cpu", **of)


@pytest.mark.parametrize(("rows", "width"), [([], 3), ([1], 0), ([1], 1)])
def test_no_rows_and_no_values_are_fine(rows, width):
    z = normal_rows([1, 2, 3, 4], rows, width=width, dtype=torch.float32, device="cpu")
    assert tuple(z.shape) == (len(rows), width)


@pytest.mark.parametrize(
    ("free", "kept", "taken", "expected"),
    [
        (640 * 10**6, 0, 0, 10**6),  # a quarter of the free memory, 160 bytes a pair
        (640 * 10**6, 0, 320 * 10**6, 1_500_000),  # and of what the allocator keeps for later
        (0, 0, 0, 2**16),
        (139 * 2**30, 0, 0, 2**24),
    ],
)
def test_a_cuda_device_makes_as_many_pairs_as_fit_in_its_memory(
    monkeypatch, free, kept, taken, expected
):
    device = torch.device("cuda", 1)

    def of_device(value):
        def asked(which):
            assert which == device
            return value

        return asked

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", of_device((free, 141 * 2**30)))
    monkeypatch.setattr(torch.cuda, "memory_reserved", of_device(kept + taken))
    monkeypatch.setattr(torch.cuda, "memory_allocated", of_device(kept))
    assert pairs_at_once(device) == expected


class Held(TorchDispatchMode):
    """Bytes of the tensors that live, and the most of them at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen = set[int]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, list | tuple) else [out]:
            storage = one.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._freed, storage.data_ptr(), storage.nbytes())
        return out

    def _freed(self, at, size):
        self._seen.discard(at)
        self.now -= size


@pytest.mark.parametrize("draws", [1, 4])
def test_what_lives_at_a_time_is_no_more_than_is_counted_on(monkeypatch, draws):
    pairs = 2**14
    monkeypatch.setattr("overhear.training.device.philox.pairs_at_once", lambda _: pairs)
    of = {"width": 2 * pairs, "dtype": torch.float32, "device": "cpu", "draws": draws}
    with Held() as held:
        normal_rows([1, 2, 3, 4], [0], **of)
    assert 60 * pairs < held.most <= 160 * pairs
