"""Without a defence every algorithm's view gives a planted record away, or says why it does not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from overhear.attacks.interception.names import Scenario
from overhear.attacks.interception.replay import ReplayedRun
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.scoring.conclusion import conclusion
from overhear.attacks.scoring.evaluation import Row, attack_images
from overhear.runs.attack.attack import attack_run
from overhear.runs.attack.planted import plant
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.build import build
from overhear.training.algorithms import ALGORITHMS, Form
from tests.devices.small_runs import config_of

TRUSTED = "trusted sum over agents"
COMPRESSED = "functions of gradients"
LOCAL = "its change over local steps"
NOT_SINGLED_OUT = {
    "cdp-dsgd": [TRUSTED], "dp-ftrl": [TRUSTED], "dp-sgda": [TRUSTED],
    "dp-fedavg": [TRUSTED, LOCAL], "choco-sgd": [COMPRESSED], "porter": [COMPRESSED],
}  # fmt: skip
CASES = [(name, form) for name, of in ALGORITHMS.items() for form in of.forms]
# What is asked here is decided by exact stages; the searches of the defended row may end at once.
PRESET = replace(PRESETS["matched"], adam_steps=1, newton_steps=0, starts=1)


def rows_of(name: str, folder: Path, *overrides: str, form: Form) -> list[Row]:
    """The four rows of round 2 of 3 on digits, a linear network and a ring of four."""
    # A large step of the opponent takes all weight off most classes, and a record of weight 0 has
    # no gradient.
    slow = ["algorithm.learning_rate_y=0.001"] if ALGORITHMS[name].blocks == 2 else []
    config = config_of(
        name, folder, "data.agents=4", "training.sampling_rate=0.02", f"algorithm.form={form}",
        *slow, *overrides, seeded=False,
    )  # fmt: skip
    built = build(config, device=torch.device("cpu"))
    public = plant(built.data, 1)
    heard = {*built.setting.graph.neighbours(0)} - {0}
    trial = ReplayedRun(
        setting=built.setting, algorithm=name, form=built.form, settings=built.settings,
        learning_rate=built.learning_rate, clip_norm=built.clip_norm,
        noise_std=built.noise_std(1.0), batch_size=built.batch_size,
        records_per_agent=len(built.data.targets) / 4, snapshot=None, snapshot_round=0, round=2,
        rounds=3, victim=0, model_owner=min(heard, default=0),
    )  # fmt: skip
    return attack_images(
        trial, built.data, scenario=Scenario.VIEW, preset=PRESET, images=public.images,
        labels=public.labels, prior_image=public.prior,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip


@pytest.mark.parametrize(("name", "form"), CASES)
def test_without_a_defence_a_record_is_rebuilt_or_a_sentence_says_why_not(name, form, tmp_path):
    rows = rows_of(name, tmp_path, form=form)
    plain, said = rows[1], conclusion(rows)
    if name not in NOT_SINGLED_OUT:
        assert plain.stages == ("exact",)
        assert plain.scores.psnr[0] > 60
        assert plain.reason == ""
        return
    assert plain.stages == ("not identified",)
    for part in NOT_SINGLED_OUT[name]:
        assert part in plain.reason
        assert part in said


def test_where_nobody_is_linked_the_server_is_what_is_attacked(tmp_path):
    rows = rows_of("dp-fedavg", tmp_path, "graph.name=server", form=Form.REPAIRED)
    assert TRUSTED in rows[1].reason
    assert rows[-1].stages == ("not identified",)


MIN_MAX = (
    "data.agents=4", "training.sampling_rate=0.02", "algorithm.form=repaired",
    "algorithm.learning_rate_y=0.001", "training.rounds=8", "intercept.rounds=[3,8]",
    "attack.rounds=[3,8]",    "attack.images=1", "attack.restarts=1",
)  # fmt: skip


@pytest.mark.slow
def test_estimates_that_go_on_are_read_from_the_start_or_a_sentence_says_why_not(tmp_path):
    train_run(config_of("dpmixsgd", tmp_path, *MIN_MAX, seeded=False), tmp_path / "out")
    early, late = attack_run(tmp_path / "out").scenarios
    rows = {row.name: row for row in early.rows}
    assert rows["clipping only"].stage == ["exact"]
    assert rows["clipping only"].psnr[0] > 60
    assert {row.stage[0] for row in late.rows[1:]} == {"not identified"}
    assert "sent from round 7 on was taken" in late.conclusion
