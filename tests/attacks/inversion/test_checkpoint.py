import errno
import os

import pytest
import torch

from overhear.attacks.inversion.optimisation import Checkpoint, digest
from overhear.attacks.problem.observation import Observation


def _seen(value: float) -> Observation:
    return Observation.single(
        gradient=torch.full((3,), value), model=torch.zeros(3), noise_std=0.0, clip_norm=None,
        records=1,
    )  # fmt: skip


def test_what_is_saved_comes_back_bit_by_bit(tmp_path):
    kept = {"a": torch.randn(3, 2, dtype=torch.float64), "n": torch.tensor([3, -1])}
    place = Checkpoint(path=tmp_path / "search.safetensors", problem="p")
    place.save(kept)
    found = place.load()
    assert found is not None
    assert all(torch.equal(found[name], value) for name, value in kept.items())
    assert [file.name for file in tmp_path.iterdir()] == ["search.safetensors"]


def test_no_file_is_no_state(tmp_path):
    assert Checkpoint(path=tmp_path / "none", problem="p").load() is None


def test_a_file_of_another_problem_is_refused(tmp_path):
    path = tmp_path / "search"
    Checkpoint(path=path, problem="p").save({"a": torch.zeros(1)})
    with pytest.raises(ValueError, match="belongs to another observation"):
        Checkpoint(path=path, problem="q").load()


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "search"
    path.write_text("no tensors here")
    with pytest.raises(ValueError, match=r"is no checkpoint|is not a safetensors file"):
        Checkpoint(path=path, problem="p").load()


def test_a_full_disk_leaves_what_was_saved_before(tmp_path, monkeypatch):
    place = Checkpoint(path=tmp_path / "search", problem="p")
    place.save({"a": torch.zeros(1)})

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*search"):
        place.save({"a": torch.ones(1)})
    found = place.load()
    assert found is not None
    assert found["a"] == 0
    assert [file.name for file in tmp_path.iterdir()] == ["search"]


def test_removing_twice_is_no_error(tmp_path):
    place = Checkpoint(path=tmp_path / "search", problem="p")
    place.save({"a": torch.zeros(1)})
    place.remove()
    place.remove()
    assert place.load() is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1.0,), (2.0,)),
        ((1,), (1.0,)),
        ((None,), ("None",)),
        (("ab", "c"), ("a", "bc")),
        ((torch.zeros(2),), (torch.zeros(2, 1),)),
        ((torch.zeros(2),), (torch.zeros(2).double(),)),
        ((_seen(1.0),), (_seen(2.0),)),
        ((digest,), (Checkpoint,)),
    ],
)
def test_facts_that_differ_have_other_digests(one, other):
    assert digest(*one) == digest(*one)
    assert digest(*one) != digest(*other)
