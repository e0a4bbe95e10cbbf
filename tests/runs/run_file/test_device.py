"""A device by its name: what is there, and what is refused."""

import re

import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.runs.run_file.run_file import RunFile
from overhear.runs.run_file.tables import find_device, is_same_device


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs, of which nothing is asked but how many there are."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("auto", "cuda"),
        ("cpu", "cpu"),
        ("cuda", "cuda"),
        ("cuda:0", "cuda:0"),
        ("cuda:1", "cuda:1"),
    ],
)
def test_a_device_that_is_there_is_taken(name, device):
    assert find_device(name, rounds=True) == torch.device(device)


@pytest.mark.usefixtures("no_gpu")
def test_auto_takes_the_cpu_where_there_is_nothing_else():
    assert find_device("auto") == torch.device("cpu")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7", "mps"])
def test_a_device_that_is_not_there_is_refused_with_what_to_do(name):
    with pytest.raises(InputError, match=rf"device='{name}' but no .* use device='auto' or 'cpu'"):
        find_device(name)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("name", ["cuda:2", "cuda:999999999"])
def test_a_number_beyond_the_last_gpu_is_refused(name):
    with pytest.raises(InputError, match=rf"'{name}' is not there: CUDA has 2, cuda:0 to cuda:1"):
        find_device(name)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu",
        "CUDA",
        "cuda:",
        "cuda:-1",
        "cuda:1.0",
        "cuda:01",
        "cuda:1 ",
        "cuda:0,1",
        "cpu:0",
        "meta",
        "0",
    ],
)
def test_nonsense_is_refused_with_the_names_that_are_known(name):
    with pytest.raises(
        InputError, match=rf"device={re.escape(repr(name))} is unknown; choose auto"
    ):
        find_device(name)


def test_a_name_without_end_is_cut():
    with pytest.raises(InputError) as refused:
        find_device("cuda:" + "9" * 100_000)
    assert len(str(refused.value)) < 200


def test_rounds_do_not_run_where_there_is_no_float64(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert find_device("mps") == torch.device("mps")
    with pytest.raises(InputError, match="has no float64, in which the noise of rounds is made"):
        find_device("mps", rounds=True)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("cuda", "cuda:0", True),
        ("cuda:1", "cuda:1", True),
        ("cpu", "cpu", True),
        ("cuda", "cuda:1", False),
        ("cuda:0", "cuda:1", False),
        ("cuda:0", "cpu", False),
        ("mps", "cuda", False),
    ],
)
def test_two_names_may_be_of_one_device(one, other, same):
    assert is_same_device(one, other) is same
    assert is_same_device(other, one) is same


def run_on(device: object) -> RunFile:
    return RunFile.model_validate(
        {
            "data": {"name": "digits"},
            "model": {"name": "linear"},
            "algorithm": {"name": "dsgd"},
            "training": {"rounds": 1, "sampling_rate": 0.1, "device": device},
        }
    )


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:7"])
def test_a_run_file_names_any_device_that_rounds_run_on(device):
    assert run_on(device).training.device == device
    assert f'device = "{device}"' in run_on(device).to_toml()


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("gpu", "device='gpu' is unknown; choose auto, cpu, cuda, cuda:N"),
        ("cuda:01", "device='cuda:01' is unknown"),
        ("mps", "device='mps' has no float64"),
        (0, "valid string"),
    ],
)
def test_a_run_file_names_no_other_device(device, said):
    with pytest.raises(ValueError, match=said):
        run_on(device)
