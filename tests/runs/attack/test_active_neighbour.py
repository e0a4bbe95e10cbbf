"""A run attacked by a neighbour that deviates: what is rebuilt, and what is refused."""

from pathlib import Path

import pytest
import torch

from overhear.runs.attack.attack import attack_run
from overhear.runs.attack.points import check_attackable
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import RunFile, load_run_file
from tests.real_data import root_with
from tests.small_run import run_text

RUN = run_text(
    "{algorithm}",
    agents=4,
    model={"name": "mlp"},
    privacy={"noise_multiplier": 2, "delta": 0.0001},
    training={"rounds": 2, "sampling_rate": 0.05},
    intercept={"rounds": [1], "victims": [0]},
    attack={
        "presets": ["matched"],
        "images": 8,
        "batch": 8,
        "restarts": 1,
        "scenarios": ["cross-gradient"],
        "adversary": "active-neighbour:1",
    },
)


def read(folder: Path, *overrides: str, algorithm: str = "dpdl") -> RunFile:
    path = folder / "file.toml"
    path.write_text(RUN.format(algorithm=algorithm))
    return load_run_file(path, overrides)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dpdl", "dp-cga"])
def test_a_batch_is_rebuilt_without_noise_and_not_with_it(algorithm, tmp_path):
    train_run(read(tmp_path, algorithm=algorithm), tmp_path / "out")
    [scenario] = attack_run(tmp_path / "out").scenarios
    rows = {row.name: row for row in scenario.rows}
    assert scenario.adversary == "active-neighbour:1"
    for name in ("no defence", "clipping only"):
        assert set(rows[name].stage) == {"imprint"}
        assert min(rows[name].psnr) > 70
        assert rows[name].right_labels == 8
    assert "imprint" not in rows["defended"].stage
    assert not scenario.bound.exceeded


@pytest.mark.slow
def test_behind_pooling_a_record_is_rebuilt_piece_by_piece(tmp_path):
    own = ["model.name='cnn'", "attack.batch=1", "attack.images=3"]
    train_run(read(tmp_path, *own), tmp_path / "out")
    [scenario] = attack_run(tmp_path / "out").scenarios
    rows = {row.name: row for row in scenario.rows}
    for name in ("no defence", "clipping only"):
        assert set(rows[name].stage) == {"imprint"}
        assert min(rows[name].psnr) > 70
        assert rows[name].right_labels == 3
    assert "imprint" not in rows["defended"].stage
    assert not scenario.bound.exceeded


@pytest.mark.data
def test_a_network_that_takes_more_rounds_says_how_many(tmp_path):
    root = root_with("MNIST/raw")
    own = ["data.name='mnist'", f'data.root="{root}"', "model.name='lenet'", "attack.batch=1"]
    own += ["attack.together=2"]
    config = read(tmp_path, *own)
    with pytest.raises(ValueError, match="together=2 must be at least 12"):
        check_attackable(config, built=build(config, device=torch.device("cpu")))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("attack.adversary='active-neighbour:2'", "is no neighbour of victim 0 in round 1"),
        ("model.name='resnet18'", "no crafted model is known for this network, because"),
        ("model.name='cnn'", "because .* could be read, by .attack. batch = 1"),
    ],
)
def test_what_cannot_be_attacked_by_it_is_refused_before_any_work(override, message, tmp_path):
    config = read(tmp_path, override)
    with pytest.raises(ValueError, match=message):
        check_attackable(config, built=build(config, device=torch.device("cpu")))


def test_an_algorithm_without_cross_gradients_is_refused(tmp_path):
    config = read(tmp_path, "attack.scenarios=['view']", algorithm="dp-dpsgd")
    with pytest.raises(ValueError, match="nothing to gain from 'dp-dpsgd'"):
        check_attackable(config, built=build(config, device=torch.device("cpu")))


@pytest.mark.parametrize(("share", "message"), [(0.8, "clip_quantile"), (1.0, "nothing to gain")])
def test_a_clip_at_a_quantile_is_not_attacked_by_a_rule_that_it_breaks(share, message, tmp_path):
    own = ["attack.scenarios=['view']", f"algorithm.clip_quantile={share}"]
    own += ["privacy.noise_multiplier=0", "privacy.clip_norm=inf"]
    config = read(tmp_path, *own, algorithm="dm-hsgd")
    with pytest.raises(ValueError, match=message):
        check_attackable(config, built=build(config, device=torch.device("cpu")))


@pytest.mark.parametrize("table", ["privacy.adversary", "privacy.adversaries"])
def test_no_figure_is_asked_for_in_its_name(table, tmp_path):
    value = "'active-neighbour:1'"
    with pytest.raises(ValueError, match="deviates from the protocol"):
        read(tmp_path, f"{table}={value if table.endswith('y') else f'[{value}]'}")


def test_a_victim_is_not_its_own_adversary(tmp_path):
    with pytest.raises(ValueError, match="contains victim 0"):
        read(tmp_path, "attack.adversary='active-neighbour:0'")
