"""The fused kernel of noise: the values of the tensor operations, and none where it has others.

The kernel runs in Triton's interpreter, in a process of its own, and on CUDA where it is there. How
it is compared before it is used is seen without Triton, on kernels that are made of the reference.
"""

import importlib.util
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from overhear.training.device import philox
from overhear.training.device.philox import fill_by_tensors, fused, normal_rows
from tests.devices.stand_in import StandIn
from tests.training.engine.test_philox import KNOWN, words

CPU, DTYPES = torch.device("cpu"), [torch.float32, torch.float64]
every_type = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
NAME = "overhear.training.device.fused_philox"
SECRET = words("89abcdef 01234567 fedcba98 76543210")

# Of 256 pairs a block: parts of one, rows that cross, whole blocks, and one value more.
CASES = [
    *(([7], width, 1) for width in (1, 2, 3, 4, 511, 512, 513, 1025)),
    *(([0, 2**32 - 1, 2**31, 1], width, draws) for width in (1, 7, 300) for draws in (1, 2, 3, 4)),
    ([5], 2500, 4),
    ([3, 3], 512, 2),
]


def close(found, exact):
    """Whether values agree but for the last bits of float64, and float32 ones with their rounding.

    2^-44 is four draws of 8.58 at most, each with some units of 2^-53.
    """
    slack = 2.0**-44
    if found.dtype == torch.float64:
        return bool(((found - exact).abs() <= slack).all())
    return bool(((exact - slack).float() <= found).all() & (found <= (exact + slack).float()).all())


def expected(rows, width, draws, *, secret=SECRET, device="cpu"):
    out = torch.empty(len(rows), width, dtype=torch.float64, device=device)
    fill_by_tensors(out, torch.tensor(rows, device=device), secret=secret, draws=draws)
    return out


# The kernel, interpreted.

SCRIPT = """
import sys, torch
from overhear.training.device.fused_philox import fill
cases, made = torch.load(sys.argv[1]), []
for rows, width, draws, secret, dtype in cases:
    room = torch.full((len(rows) * width + 512,), float("nan"), dtype=dtype)
    out = room[: len(rows) * width].view(len(rows), width)
    fill(out, torch.tensor(rows), secret=secret, draws=draws)
    assert room[len(rows) * width :].isnan().all(), "written beyond the end"
    made.append(out.clone())
torch.save(made, sys.argv[2])
"""


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """What the kernel makes of each case and type, and of a key and a counter of zeros."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton, which torch for CUDA brings along; pip install triton")
    cases = [(*case, SECRET, dtype) for dtype in DTYPES for case in CASES]
    cases.append(([0], 2, 1, [0, 0, 0, 0], torch.float64))
    given, made = (tmp_path_factory.mktemp("interpreted") / name for name in ("given", "made"))
    torch.save(cases, given)
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(given), str(made)],
        env=os.environ | {"TRITON_INTERPRET": "1"}, check=True, timeout=300,
    )  # fmt: skip
    return dict(zip(range(len(cases)), torch.load(made), strict=True))


@pytest.mark.slow
@every_type
@pytest.mark.parametrize("case", range(len(CASES)))
def test_an_interpreted_kernel_makes_the_values_of_the_reference(interpreted, case, dtype):
    rows, width, draws = CASES[case]
    found = interpreted[case + DTYPES.index(dtype) * len(CASES)]
    assert found.dtype == dtype
    assert close(found, expected(rows, width, draws))


@pytest.mark.slow
def test_an_interpreted_kernel_has_the_known_words(interpreted):
    a, b, c, d = words(KNOWN[0][2])
    radius = math.sqrt(-2 * math.log(((a << 32 | b) // 2**11 + 1) / 2**53))
    angle = math.tau * ((c << 32 | d) // 2**11) / 2**53
    found = interpreted[2 * len(CASES)][0].tolist()
    assert found == pytest.approx([radius * math.cos(angle), radius * math.sin(angle)], rel=1e-14)


# The comparison before first use.


@pytest.fixture
def install(monkeypatch):
    """Put a kernel in the place of Triton's, which no device has been asked for yet."""
    monkeypatch.setattr(philox, "_fused", {})

    def put(fill):
        monkeypatch.setitem(sys.modules, NAME, SimpleNamespace(fill=fill))

    return put


def changed(after=lambda out: None, *, draws=None, secret=(0, 0, 0, 0), sources=lambda x: x):
    """The reference with a fault."""

    def fill(out, of, *, secret, draws: int):
        key = [a ^ b for a, b in zip(secret, flip, strict=True)]
        fill_by_tensors(out, sources(of), secret=key, draws=fewer or draws)
        after(out)

    flip, fewer = secret, draws
    return fill


def in_float32(out):
    out.copy_(out.float() if out.dtype == torch.float64 else out.half())


def one_unit_off(out):
    out[1, 700] = torch.nextafter(out[1, 700], out.new_tensor(99.0)) * (1 + 4e-13)


def nothing(out, of, *, secret, draws):
    """A kernel that is not launched."""


def unable(out, of, *, secret, draws):
    raise RuntimeError("Failed to find C compiler.\nPlease specify CC")


FAULTS = {
    "a key": (changed(secret=(1, 0, 0, 0)), "5596 of 5596 values differ"),
    "a nonce": (changed(secret=(0, 0, 0, 2**31)), "5596 of 5596 values differ"),
    "31 bits of a row": (changed(sources=lambda x: x & 2**31 - 1), "2798 of 5596 values differ"),
    "a row's neighbour": (changed(sources=lambda x: x + 1 & 2**32 - 1), "5596 of 5596"),
    "a last column that is not written": (
        changed(lambda out: out[:, -1].fill_(math.nan)),
        "4 of 5596 values differ",
    ),
    "columns that are swapped": (changed(lambda out: out.copy_(out.flip(1))), "values differ"),
    "a scale": (changed(lambda out: out.mul_(1 + 1e-6)), "values differ"),
    "fewer bits": (changed(in_float32), "values differ"),
    "one value": (changed(one_unit_off), "1 of 5596 values differ"),
    "no launch": (nothing, "5596 of 5596 values differ"),
    "no compiler": (unable, "RuntimeError: Failed to find C compiler. Please specify CC"),
}


@every_type
@pytest.mark.parametrize("draws", [1, 4])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_with_other_values_is_not_used_and_warned_of_once(install, fault, draws, dtype):
    kernel, why = FAULTS[fault]
    install(kernel)
    with pytest.warns(UserWarning, match=r"^the fused kernel of noise is not used on cpu") as seen:
        assert fused(CPU, dtype, draws) is None
    assert why in str(seen[0].message)
    install(fill_by_tensors)
    assert fused(CPU, dtype, draws) is None  # known, and without a warning, which is an error here


@every_type
def test_a_radius_of_32_bits_is_noticed_in_the_tail(install, dtype):
    def of_32_bits(out):
        out[0, 0] *= 6.5558 / 6.5735  # u = 2 * 2^-32 in the place of 1.78 * 2^-32

    install(changed(of_32_bits))
    with pytest.warns(UserWarning, match="1 of 5596 values differ, by up to 1.7e-02"):
        assert fused(CPU, dtype, 1) is None


@every_type
def test_last_bits_of_the_radius_that_are_lost_are_noticed_for_either_type(install, dtype):
    def without_the_last(out):
        out[0, 0] *= 1 - 4e-9  # u = k 2^-53 in the place of (k + 1) 2^-53; float32 has 6e-8

    install(changed(without_the_last))
    with pytest.warns(UserWarning, match="1 of 5596 values differ, by up to 2.6e-08"):
        assert fused(CPU, dtype, 1) is None


def test_float32_that_is_not_rounded_to_nearest_is_noticed(install):
    def cut(out):
        if out.dtype == torch.float32:
            out.copy_(torch.nextafter(out, torch.zeros_like(out)))

    install(changed(cut))
    with pytest.warns(UserWarning, match="5596 of 5596 values differ"):
        assert fused(CPU, torch.float32, 1) is None


@every_type
def test_draws_that_are_not_summed_are_noticed(install, dtype):
    install(changed(draws=1))
    with pytest.warns(UserWarning, match="values differ"):
        assert fused(CPU, dtype, 4) is None


@every_type
@pytest.mark.parametrize("draws", [1, 4])
def test_a_kernel_is_compared_once_for_each_type_and_number_of_draws(install, dtype, draws):
    calls = []

    def last_bits_differ(out, of, *, secret, draws):
        calls.append(out.dtype)
        exact = torch.empty_like(out, dtype=torch.float64)
        fill_by_tensors(exact, of, secret=secret, draws=draws)
        out.copy_(exact * (1 + 2.0**-51))

    install(last_bits_differ)
    assert fused(CPU, dtype, draws) is last_bits_differ
    assert fused(CPU, dtype, draws) is last_bits_differ
    assert calls == [torch.float64, dtype]
    fused(CPU, dtype, 5 - draws)
    fused(CPU, torch.float64 if dtype == torch.float32 else torch.float32, draws)
    assert len(calls) == 6


def test_where_triton_is_missing_a_warning_says_so(install, monkeypatch):
    monkeypatch.setitem(sys.modules, NAME, None)
    monkeypatch.delitem(sys.modules, NAME)  # imported anew here, and again after the test
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.warns(UserWarning, match=r"\(ModuleNotFoundError: .*triton.*several times slower"):
        assert fused(CPU, torch.float32, 1) is None
    assert fused(CPU, torch.float32, 1) is None


@pytest.mark.parametrize("serves", [True, False])
def test_on_cuda_a_kernel_that_serves_makes_the_noise(monkeypatch, serves):
    asked, filled = [], []

    def fill(out, sources, *, secret, draws):
        filled.append((tuple(out.shape), sources.device.type, secret, draws))
        out.zero_()

    def fused(device, dtype, draws):
        asked.append((device, dtype, draws))
        return fill if serves else None

    with StandIn() as device:
        monkeypatch.setattr(philox, "fused", fused)
        of = {"width": 5, "dtype": torch.float32, "draws": 4}
        z = normal_rows(SECRET, [2, 0], device="cuda", **of)
        assert device.holds(z)
        assert bool((z == 0).all()) == serves
    assert asked == [(torch.device("cuda", 0), torch.float32, 4)]
    assert filled == [((2, 5), "cuda", SECRET, 4)] * serves


def test_on_the_cpu_no_kernel_is_asked_for(monkeypatch):
    monkeypatch.setattr(philox, "fused", None)
    normal_rows(SECRET, [1], width=3, dtype=torch.float32, device="cpu")
    code = f"import sys, overhear.training.engine.engine; sys.exit({NAME!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# The kernel on a device.

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@cuda
@every_type
@pytest.mark.parametrize("draws", [1, 4])
def test_on_a_device_the_kernel_is_used_and_makes_the_values_of_the_reference(dtype, draws):
    device = torch.device("cuda", torch.cuda.current_device())
    assert fused(device, dtype, draws) is not None  # a warning, which is an error, says why not
    of = {"dtype": dtype, "device": device, "draws": draws}
    for rows, width, _ in (*CASES, (range(1000), 4810, 0), ([0, 9], 1_000_001, 0)):
        found = normal_rows(SECRET, rows, width=width, **of)
        assert close(found, expected(list(rows), width, draws, device=device))


@pytest.mark.gpu
@cuda
def test_on_a_device_values_beyond_2_to_the_31_are_in_their_places():
    width, rows = 2**30 + 1, [4, 2**32 - 1, 8]
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free memory of the device")
    z = normal_rows(SECRET, rows, width=width, dtype=torch.float32, device="cuda")
    pairs = (width + 1) // 2
    for first in (0, pairs - 1000):
        pair = torch.arange(first, first + 1000, device="cuda")[None]
        sources = torch.tensor(rows, device="cuda")[:, None]
        exact = philox._summed_pairs(pair, sources, secret=SECRET, draws=1)
        part = z[:, 2 * first : 2 * first + 2000]
        assert close(part, exact[:, : part.shape[1]])
