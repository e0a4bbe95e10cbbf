"""A network that fails: before a run nothing is left behind, and within one a sentence tells it."""

import sys
from textwrap import dedent

import pytest

from overhear.privacy.errors import InputError
from overhear.privacy.releases.ledger import read_ledger
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import load_run_file
from tests.small_run import run_text

NETWORKS = """\
    import math
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    BROKEN = []


    class Plain(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.flat = nn.Flatten()
            self.body = nn.Linear(math.prod(shape), 8)
            self.head = nn.Linear(8, classes)

        def forward(self, x):
            if BROKEN and torch.is_grad_enabled():
                raise ValueError("broken")
            return self.head(self.body(self.flat(x)).tanh())


    class Checkpointed(Plain):
        def forward(self, x):
            return self.head(checkpoint(self.body, self.flat(x), use_reentrant=False))


    class Two(Plain):
        def forward(self, picture, table):
            return self.head(self.body(torch.cat([picture, table], 1)))
"""
RUN = run_text(
    "dp-dpsgd", agents=3, model={"name": "networks_that_fail:KIND"},
    privacy={"noise_multiplier": 2.0, "delta": 1e-05},
    training={"rounds": 5, "sampling_rate": 0.01, "layout": "LAYOUT", "evaluate_every": 5},
)  # fmt: skip


@pytest.fixture
def config_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "networks_that_fail", raising=False)
    (tmp_path / "networks_that_fail.py").write_text(dedent(NETWORKS), encoding="utf-8")

    def config(kind, layout):
        path = tmp_path / "run.toml"
        written = RUN.replace("KIND", kind).replace("LAYOUT", layout)
        path.write_text(written, encoding="utf-8")
        return load_run_file(path)

    yield config
    sys.modules.pop("networks_that_fail", None)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["auto", "loop"])
def test_what_fails_in_a_backward_leaves_no_folder(config_of, tmp_path, layout):
    with pytest.raises(InputError, match=r"raised CheckpointError: .* are computed; write it"):
        train_run(config_of("Checkpointed", layout), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_network_of_two_inputs_is_told_how_to_pack_them(config_of, tmp_path):
    with pytest.raises(InputError, match=r"takes 2 inputs, \(picture, table\).*torch.cat"):
        train_run(config_of("Two", "auto"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_fails_in_a_round_is_told_and_what_was_spent_is_in_the_folder(config_of, tmp_path):
    def progress(at, *_):
        if at == 2:
            sys.modules["networks_that_fail"].BROKEN.append(True)

    out = tmp_path / "out"
    with pytest.raises(InputError, match="raised ValueError: broken"):
        train_run(config_of("Plain", "vmap"), out, progress=progress)
    assert list(read_ledger(out / "ledger.jsonl").numbers) == [0, 1, 2, 3]
