"""Small runs of every algorithm, and where they, their attacks and their audits read a device."""

import dataclasses
from pathlib import Path

import pytest

from overhear.attacks.problem import objective as presets
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.algorithms import ALGORITHMS

RUN = """
[data]
name = "digits"
agents = 3
[model]
name = "linear"
{task}
[algorithm]
name = "{name}"
{privacy}
[training]
rounds = 4
sampling_rate = 0.1
learning_rate = 0.05
checkpoint_every = 2
evaluate_every = 4
{seed}
[intercept]
rounds = [3]
[attack]
rounds = [3]
images = 1
presets = ["matched"]
restarts = 1
[audit]
canaries = 4
rounds = 1
checked_rounds = 1
"""

# Where a run, its attack and its audit read a device, between rounds.
PLACES = {
    ("training/engine/engine.py", "Engine.snapshot"): "the state is written, or watched",
    ("training/device/precision.py", "check_numbers"): "a round's models may be no numbers",
    ("training/engine/transcript.py", "Transcript.__call__"): "an intercepted message is kept",
    ("training/step/script.py", "_agree"): "a function is tried once",
    ("training/step/script.py", "same_bits"): "a function's results are compared",
    ("training/gradients/choice.py", "disagreement"): "a layout is tried once",
    ("training/gradients/gradients.py", "PairGradients.check"): "a round's sums may overflow",
    ("training/models/evaluation.py", "_scores"): "metrics are told",
    ("training/models/evaluation.py", "_evaluate"): "metrics are told",
    ("training/noise_tests/noise_tests.py", "_read"): "a round's noise was tested",
    ("training/own/contents.py", "_digest"): "whether a network is the user's is asked once",
    # What audits do between rounds, or in rounds of their own.
    ("attacks/audit/canaries.py", "PlantedGradients.clipped_sums"): "canaries are found in batches",
    ("attacks/audit/canaries.py", "PlantedGradients._weight"): "coefficients size the canaries",
    ("attacks/audit/game.py", "layout_check"): "gradients are held against the oracle",
    ("attacks/checks/checks.py", "knowledge_check"): "noise is drawn again, and compared",
    ("attacks/checks/noise_streams.py", "_by_hand"): "noise is drawn again, and compared",
    (
        "attacks/checks/sensitivity.py",
        "_initial",
    ): "the initial model is held against the public one",
    ("attacks/checks/reference_sums.py", "_loss_of"): "the oracle is on the host",
    ("attacks/checks/reference_sums.py", "Oracle.sums"): "the oracle is on the host",
    ("attacks/checks/reference_sums.py", "_plain"): "the oracle is on the host",
    ("attacks/checks/watched_run.py", "placed"): "what a round recorded is read once, whole",
    ("training/engine/links.py", "Links.on_host"): "a replay is given another round's positions",
    ("training/engine/recording.py", "makers"): "a recorded round says who makes its noise",
}


# Where searches, exact stages and games of membership read: between their steps, or at their end.
READ_BY_ATTACKS = {
    ("attacks/problem/layers.py", "first_linear"): "a network is tried once",
    ("attacks/problem/layers.py", "is_fed_raw"): "a network is tried once",
    ("attacks/problem/layers.py", "_is_fed_raw"): "a network is tried once",
    ("attacks/problem/layers.py", "is_plain"): "a network is tried once",
    ("attacks/problem/problem.py", "check_repeatable"): "a network is tried once",
    ("attacks/exact/first_layer.py", "denoise"): "a picture is denoised on the host",
    ("attacks/exact/first_layer.py", "first_linear_input"): "ranks decide what is solved",
    ("attacks/exact/first_layer.py", "residual"): "what is left of an equation is told",
    ("attacks/exact/first_layer.py", "rounding_of_input"): "what rounding may leave is told",
    ("attacks/exact/first_layer.py", "_size"): "what is left of a cast is told",
    ("attacks/exact/first_layer.py", "repeated_input"): "a rank is looked at once",
    ("attacks/exact/first_layer.py", "_cast"): "what a cast left is told",
    ("attacks/exact/first_layer.py", "left_by_two"): "one record is told from two",
    ("attacks/exact/first_layer.py", "shows_several"): "a rank is looked at once",
    ("attacks/exact/binary_vertices.py", "are_signs"): "a rank is looked at once",
    ("attacks/exact/binary_vertices.py", "most_rank"): "a rank is looked at once",
    ("attacks/exact/binary_vertices.py", "signs_of_input"): "a rank is looked at once",
    ("attacks/exact/first_layer.py", "_is_flat"): "a rank is looked at once",
    ("attacks/exact/first_layer.py", "_pairs"): "one record is told from two",
    ("attacks/exact/first_layer.py", "_is_one_row"): "a rank is looked at once",
    ("attacks/exact/stages.py", "_tells_labels"): "a rank is looked at once",
    ("attacks/exact/first_layer.py", "angle_of_others"): "a rank is looked at once",
    ("attacks/problem/labels.py", "fitted"): "what is left of an equation is told",
    ("attacks/problem/observation.py", "rounding_of"): "what a cast left is told",
    ("attacks/inversion/fallback.py", "_explains_more"): "what is left is told",
    ("attacks/inversion/fallback.py", "_distance"): "what is left is told",
    ("attacks/inversion/fallback.py", "_by_layer"): "what is left is told",
    ("attacks/inversion/fallback.py", "_without"): "the label that was found is told",
    ("attacks/inversion/fallback.py", "fall_back"): "the image is handed over",
    ("attacks/inversion/inversion.py", "_kept"): "the image is handed over",
    ("attacks/inversion/inversion.py", "_of_posterior"): "the image is handed over",
    ("attacks/inversion/fallback.py", "speaks_for"): "what was found is compared once",
    ("attacks/inversion/fallback.py", "_power"): "whether a search begins is decided once",
    ("attacks/inversion/optimisation.py", "_finish_all"): "a search in float64 looks at its loss",
    ("attacks/inversion/optimisation.py", "_is_solved"): "a search in float64 looks at its loss",
    ("attacks/inversion/optimisation.py", "_newton_part"): "Newton's step is taken or shortened",
    ("attacks/inversion/optimisation.py", "optimise"): "the best start is chosen",
    ("attacks/inversion/restarts.py", "_stop"): "starts are looked at now and then",
    ("attacks/posterior.py", "_temperature"): "a temperature is chosen once",
    ("attacks/posterior.py", "weigh"): "the evidence, once",
    ("attacks/problem/observation.py", "Observation.__post_init__"): "intercepts are checked",
    ("attacks/problem/problem.py", "Box.__post_init__"): "bounds are checked",
    ("attacks/problem/problem.py", "is_faster_together"): "two ways are timed once",
    ("attacks/problem/problem.py", "squared_size"): "a loss is scaled once",
    ("attacks/membership/scores.py", "confidences"): "statistics are compared on the host",
    ("attacks/membership/black_box.py", "_mislabelled"): "a canary's label is chosen",
    ("attacks/membership/black_box.py", "LastModelGame._log_odds"): "a run's guess is scored",
}

SMALL = (
    "training.sampling_rate=0.02", "training.rounds=1", "intercept.rounds=[1]", "attack.rounds=[1]",
)  # fmt: skip


def with_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that end soon."""
    few = {
        key: dataclasses.replace(
            of, adam_steps=min(of.adam_steps, 2), newton_steps=min(of.newton_steps, 1)
        )
        for key, of in presets.PRESETS.items()
    }
    monkeypatch.setattr(presets, "PRESETS", few)


def config_of(name: str, folder: Path, *overrides: str, seeded: bool = True) -> RunFile:
    """A small run of an algorithm; whose noise is seeded, nothing is proven."""
    algorithm = ALGORITHMS[name]
    text = RUN.format(
        name=name,
        task='task = "class-weights"' if algorithm.blocks == 2 else "",
        seed="evaluation_noise_seed = 1" if seeded else "",
        privacy="[privacy]\nnoise_multiplier = 1.0\ndelta = 1e-4" if algorithm.private else "",
    )
    (folder / "run.toml").write_text(text, encoding="utf-8")
    return load_run_file(folder / "run.toml", overrides)
