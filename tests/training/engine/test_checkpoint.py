"""A checkpoint is whole and what was written, or it is refused."""

import errno
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from overhear.training.engine.tensor_file import (
    BrokenCheckpoint,
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)

STATE = {
    "x": torch.arange(6, dtype=torch.float32).reshape(3, 2),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "none": torch.empty(0, 4),
}


def saved(folder, *, round=12):
    path = folder / "round-000012.safetensors"
    save_checkpoint(path, Checkpoint(round=round, state=STATE, facts={"run_file": "abc"}))
    return path


def test_what_is_saved_is_loaded_bit_by_bit(tmp_path):
    found = load_checkpoint(saved(tmp_path))
    assert (found.round, found.facts) == (12, {"run_file": "abc"})
    assert found.state.keys() == STATE.keys()
    for name, value in STATE.items():
        assert found.state[name].dtype == value.dtype
        assert torch.equal(found.state[name], value)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000012.safetensors"]


def test_the_tensors_are_those_that_any_reader_of_safetensors_finds(tmp_path):
    assert torch.equal(load_file(saved(tmp_path))["x"], STATE["x"])


def test_a_changed_byte_anywhere_is_found(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            found = load_checkpoint(path)
        except BrokenCheckpoint:
            continue
        pytest.fail(f"byte {at} was changed, and round {found.round} is read all the same")


@pytest.mark.parametrize("length", [0, 7, 8, 100, -1])
def test_a_file_that_is_cut_off_is_broken(tmp_path, length):
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(BrokenCheckpoint, match="round-000012"):
        load_checkpoint(path)


def test_a_file_without_a_checksum_is_broken(tmp_path):
    save_file(STATE, tmp_path / "plain.safetensors", metadata={"round": "12"})
    with pytest.raises(BrokenCheckpoint, match="no checksum"):
        load_checkpoint(tmp_path / "plain.safetensors")


def test_a_disk_that_is_full_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = saved(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("write", "fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, full)
            with pytest.raises(OSError, match="No space left") as caught:
                saved(tmp_path, round=13)
        assert caught.value.filename == str(path)
        assert load_checkpoint(path).round == 12
        assert [held.name for held in tmp_path.iterdir()] == [path.name]


def test_the_file_is_synced_before_it_has_its_name_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (events.append("sync"), sync(file))[1])
    monkeypatch.setattr(os, "replace", lambda *named: (events.append("name"), replace(*named))[1])
    saved(tmp_path)
    assert events == ["sync", "name", "sync"]
