"""The quadratic task through the run file: planned, trained, measured by its known optimum."""

import json
import math
import re

import pytest

from overhear.privacy.errors import InputError
from overhear.privacy.formats.toml_text import parse_toml
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import read_tables


def tables(**more):
    return {
        "data": {"name": "quadratic", "agents": 3, "records": 12},
        "graph": {"name": "full"},
        "model": {"name": "linear"},
        "algorithm": {"name": "dsgd"},
        "training": {"rounds": 100, "sampling_rate": 1.0, "learning_rate": 0.4},
        **more,
    }


def test_full_batches_without_noise_reach_the_optimum(tmp_path):
    # Every agent steps, then all take the mean: gradient descent on the mean of the quadratics.
    config = read_tables(
        tables(
            algorithm={"name": "dp-dpsgd", "order": "step-then-mix"},
            privacy={"noise_multiplier": 0.0, "delta": 1e-5, "clip_norm": math.inf},
        )
    )
    summary = train_run(config, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first["consensus_optimum_distance"] > 0.1
    assert summary.metrics.consensus_optimum_distance < 1e-3
    assert len(summary.metrics.optimum_distance) == 3


def test_every_agent_holds_its_own_records_and_examples_are_clipped():
    config = read_tables(
        tables(
            algorithm={"name": "dp-dpsgd"},
            privacy={"noise_multiplier": 1.0, "delta": 1e-5, "clip_norm": 0.1},
        )
    )
    built = build(config)
    assert [shard.size for shard in built.setting.shards] == [12, 12, 12]
    assert built.clip_norm == 0.1
    assert built.data.held_by.tolist() == sorted([0, 1, 2] * 12)


@pytest.mark.parametrize(
    ("table", "values", "message"),
    [
        ("model", {"name": "mlp"}, "name='mlp' makes no quadratic"),
        ("model", {"name": "linear", "loss": "absolute"}, "loss='absolute' makes no quadratic"),
        ("algorithm", {"name": "sgda"}, "name='quadratic' cannot be learned by sgda"),
        ("data", {"name": "quadratic", "partition": "shards"}, "partition='shards' has no effect"),
        ("data", {"name": "digits", "rotation": 15.0}, "rotation=15.0 has no effect"),
        ("data", {"name": "digits", "form": "whisper"}, "form='whisper' has no effect"),
        (
            "data",
            {"name": "quadratic", "form": "whisper", "condition": 15.0},
            "condition=15.0 has no effect with form='whisper'",
        ),
        ("data", {"name": "quadratic", "form": "whisper", "dimension": 3}, "dimension=3 has no"),
        ("data", {"name": "quadratic", "classes": 3}, "classes=3 has no effect"),
    ],
)
def test_what_makes_no_quadratic_is_refused(table, values, message):
    with pytest.raises(InputError, match=message):
        read_tables(tables(**{table: values}))


def test_the_resolved_run_file_is_read_back():
    config = read_tables(tables())
    assert read_tables(parse_toml(config.to_toml())) == config
    assert "rotation = 15.0" in config.to_toml()
    assert (
        "rotation"
        not in read_tables(tables(data={"name": "digits"}, model={"name": "linear"})).to_toml()
    )


def test_the_gradient_norm_is_in_metrics_only_where_it_is_asked_for_and_is_told(tmp_path):
    plain = read_tables(tables(training={"rounds": 2, "sampling_rate": 1.0}))
    asked = read_tables(tables(training={"rounds": 2, "sampling_rate": 1.0, "gradient_norm": True}))
    assert train_run(plain, tmp_path / "plain").metrics.consensus_gradient_norm is None
    assert train_run(asked, tmp_path / "asked").metrics.consensus_gradient_norm > 0
    words = "gradient_norm is set: .* no epsilon counts what it tells"
    for config, said in ((plain, False), (asked, True)):
        told = [*make_plan(config).warnings, *build(config).data.notes]
        assert sum(bool(re.search(words, one)) for one in told) == 2 * said


def test_a_gradient_norm_at_a_saddle_is_refused():
    with pytest.raises(InputError, match="gradient_norm=true is of a loss that is minimised"):
        read_tables(
            tables(
                data={"name": "digits"},
                algorithm={"name": "sgda"},
                training={"rounds": 2, "sampling_rate": 1.0, "gradient_norm": True},
            )
        )
