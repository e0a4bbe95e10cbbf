"""What cannot be proven is refused: the reason, and the nearest thing that can be."""

import difflib
import functools
import itertools
import math
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from overhear.commands import cli
from overhear.privacy import (
    EAVESDROPPER,
    SINGLE_MESSAGE,
    Adjacency,
    Bound,
    Guarantee,
    Sampling,
    Statement,
    Status,
    Unit,
    UnsupportedView,
    View,
    composed_risk,
    decor_covariance,
    decor_factor,
    delta,
    delta_from_mu,
    epsilon,
    epsilon_from_mu,
    factor,
    mu_from,
    noise_floor,
    noise_multiplier,
    risk_of_mu,
    victim_information,
    whisper_covariance,
)
from overhear.privacy.accounting.risk import risk
from overhear.privacy.accounting.trade_off import trade_off
from overhear.privacy.errors import did_you_mean
from overhear.reports.judgement.policy import _OUTSIDERS, policy_schema
from overhear.runs.run_file.run_file import run_file_schema
from overhear.training import Agents, UndeclaredOperation
from overhear.training.accounts.account import account
from overhear.training.algorithms import ALGORITHMS, Algorithm, bind
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.exposure.guarantees import calibrated_multiplier
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.topologies import ring
from overhear.training.models.parameters import build_model, validate_model
from overhear.training.tracing.trace import trace
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=4, privacy={"epsilon": 4.0, "delta": 1e-05},
    training={"rounds": 2, "sampling_rate": 0.02},
)  # fmt: skip
NUMBERS: dict[str, Any] = {"learning_rate": 0.1, "clip_norm": 1.0, "batch_size": 2.0}


@pytest.fixture
def refused(run_file, tmp_path, capsys):
    """What `plan` and `train` say of overrides that both refuse: one sentence, exit code 2."""

    def ask(*overrides: str, commands: tuple[str, ...] = ("plan", "train")) -> str:
        said = set()
        for command in commands:
            out = ["--out", str(tmp_path / "out")] if command == "train" else []
            options = [part for override in overrides for part in ("--set", override)]
            assert cli.main([command, str(run_file), *out, *options]) == 2
            shown = capsys.readouterr()
            assert "Traceback" not in shown.err
            assert not (tmp_path / "out").exists()
            said.add(shown.err)
        (told,) = said
        first, _, rest = told.partition("\n")
        sentence = rest if first.startswith("runs code of yours: ") else told
        assert sentence.count("\n") == 1
        return str(sentence)

    return ask


class State(NamedTuple):
    """The models."""

    x: Agents


def start(round: Any) -> State:
    return State(round.initial())


def algorithm(step: Any) -> Algorithm:
    return Algorithm(name="own", init=start, step=step)


def exposure_of(step: Any, *, clip_norm: float | None = 1.0) -> Any:
    bound = bind(
        algorithm(step), ALGORITHMS["dsgd"].settings(), noise_std=1.0,
        **{**NUMBERS, "clip_norm": clip_norm},
    )  # fmt: skip
    traces = trace(
        bound.init, bound.step, graph=ring(4), rounds=2, noise_multiplier=bound.noise_multiplier
    )
    found = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=0.1)
    return dict(found)["eavesdropper"]


def noisy_step(state: State, round: Any, *, clip_norm: float | None, noise_std: float) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    return State(round.mix(state.x - (sums + round.noise(sums, std=noise_std)), kind="half"))


def leaky_step(state: State, round: Any, *, clip_norm: float | None, noise_std: float) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noisy = sums + round.noise(sums, std=noise_std)
    round.broadcast(0.01 * sums, kind="statistics")  # somebody forgot about this one
    return State(round.mix(state.x - noisy, kind="half"))


# Clipping


@pytest.mark.parametrize("off", ["inf", "false", "off"])
def test_an_epsilon_without_clipping_is_refused(refused, off):
    said = refused(f"privacy.clip_norm={off}")
    assert "does not clip, so no noise bounds what a record gives away" in said
    assert "set a finite clip_norm" in said


@pytest.mark.parametrize("bound", ["0", "-1", "nan"])
def test_a_clip_norm_that_is_no_bound_is_refused(refused, bound):
    assert "clip_norm=" in (said := refused(f"privacy.clip_norm={bound}"))
    assert "must be greater than 0" in said


def test_a_step_that_does_not_clip_has_no_epsilon_whatever_its_noise():
    exposure = exposure_of(noisy_step, clip_norm=None)
    assert exposure.largest == math.inf
    with pytest.raises(UnsupportedView, match=r"no noise multiplier reaches epsilon=4 .*clipped"):
        calibrated_multiplier(exposure, epsilon=4.0, statement=Statement(delta=1e-5))
    assert exposure_of(noisy_step).largest == pytest.approx(1.0)  # the same step, clipped


# Sampling


@pytest.mark.parametrize("key", ['sampling="shuffle"', 'sampling="fixed-size"', "shuffle=true"])
def test_batches_that_are_no_poisson_samples_are_refused(refused, key):
    said = refused(f"training.{key}")
    assert "[training] " + key.partition("=")[0] in said
    assert "how batches are drawn is set by batches = 'poisson'" in said
    assert "No bound is known here for batches drawn otherwise" in said


@pytest.mark.parametrize("scheme", ["with-replacement", "weighted", "refilled"])
def test_batches_of_which_nothing_is_known_are_refused(refused, scheme):
    said = refused(f'training.batches="{scheme}"')
    assert "has no bound here" in said
    assert "draw each record on its own" in said


def guaranteed(**changed: Any) -> Guarantee:
    facts: dict[str, Any] = {
        "adversary": "eavesdropper", "victim": 0, "worst_adversary": None, "joint_sensitivity": 1.0,
        "effective_noise_multiplier": 1.0, "mu_per_round": 1.0, "epsilon": 1.0, "delta": 1e-5,
        "unit": Unit.RECORD, "adjacency": Adjacency.ADD_OR_REMOVE_ONE, "sampling": Sampling.POISSON,
        "status": Status.PROVEN, "bound": Bound.PLD, "because": "a test",
    }  # fmt: skip
    return Guarantee(**{**facts, **changed})


def test_no_statement_can_be_made_about_batches_of_which_nothing_is_known():
    assert guaranteed().sampling is Sampling.POISSON
    with pytest.raises(
        ValueError, match=r"sampling='shuffle' must be 'poisson', 'full batch', 'fixed'"
    ):
        guaranteed(sampling="shuffle")


def test_replacing_a_record_is_not_accounted_by_renyi_divergence(refused):
    said = refused("privacy.accountant=rdp", "privacy.adjacency=replace-one")
    assert "accountant='rdp' does not cover adjacency='replace-one'" in said
    assert "use accountant='pld'" in said
    setting = {"rounds": 10, "sampling_rate": 0.1, "adjacency": "replace-one", "accountant": "rdp"}
    for ask in (
        functools.partial(epsilon, noise_multiplier=1.0, delta=1e-5),
        functools.partial(delta, noise_multiplier=1.0, epsilon=1.0),
        functools.partial(noise_multiplier, epsilon=1.0, delta=1e-5),
    ):
        with pytest.raises(ValueError, match="does not cover adjacency"):
            ask(**setting)


# The unit and the number of rounds


def test_hiding_a_whole_agent_is_refused_where_single_records_are_clipped(refused):
    said = refused("privacy.unit=agent")
    assert "use round.clipped_mean or round.local_update" in said
    assert "or unit='record'" in said
    with pytest.raises(ValueError, match="an agent cannot join or leave a fixed graph"):
        Statement(delta=1e-5, unit="agent")


@pytest.mark.parametrize(
    "key", ["patience=3", "early_stopping=true", "stop_at_accuracy=0.9", 'rounds="until-converged"']
)
def test_a_number_of_rounds_that_the_data_decide_is_refused(refused, key):
    said = refused(f"training.{key}")
    assert "lets the data decide when to stop" in said
    assert "fix rounds" in said


@pytest.mark.parametrize("key", ['schedule="linear"', "decay=0.9", "learning_rates=[0.1,0.2]"])
def test_a_schedule_of_learning_rates_has_no_key_of_its_own(refused, key):
    said = refused(f"training.{key}")
    assert "a schedule of learning rates is the value of learning_rate" in said


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("[0.1,0.2,0.3]", "give one for each round, or a schedule"),
        ('"cosine"', '{ schedule = "cosine", start = 0.1 }'),
        ("0", "must be a finite number above 0"),
        ('{schedule="cosine",start=0.1,every=2}', "it belongs to 'step', leave it out"),
    ],
)
def test_a_learning_rate_that_is_none_is_refused(refused, value, remedy):
    said = refused(f"training.learning_rate={value}")
    assert "[training] learning_rate" in said
    assert remedy in said


def test_rounds_are_one_fixed_integer(refused):
    assert "rounds=2.5 must be an integer" in refused("training.rounds=2.5")
    assert "rounds=True must be an integer" in refused("training.rounds=true")


# Views


def test_a_single_message_has_no_closed_view_and_proves_nothing():
    bound = bind(algorithm(noisy_step), ALGORITHMS["dsgd"].settings(), noise_std=1.0, **NUMBERS)
    traces = trace(
        bound.init, bound.step, graph=ring(4), rounds=2, noise_multiplier=bound.noise_multiplier
    )
    with pytest.raises(UnsupportedView, match="single-message has no closed view"):
        traces.rounds[0][0].view(SINGLE_MESSAGE)
    found = dict(joint_sensitivities(traces, ["single-message"], sampling_rate=0.1))[
        "single-message"
    ]
    assert found.status is Status.HEURISTIC
    assert "every adversary sees more" in found.because


def test_every_view_of_a_trace_holds_the_points_of_its_gradients():
    def hidden_steps(state: State, round: Any, *, clip_norm: float, noise_std: float) -> State:
        x = state.x  # the second gradient is taken at a model that nobody is sent
        for _ in range(2):
            sums = round.clipped_sums(x, batch=round.draw(), clip_norm=clip_norm)
            x = x - sums - round.noise(sums, std=noise_std)
        return State(round.mix(x, kind="half"))

    bound = bind(algorithm(hidden_steps), ALGORITHMS["dsgd"].settings(), noise_std=1.0, **NUMBERS)
    (round_trace, _), *_ = trace(
        bound.init, bound.step, graph=ring(4), rounds=2, noise_multiplier=bound.noise_multiplier
    ).rounds
    view = round_trace.view(EAVESDROPPER)
    assert any("gradients are taken" in name for name in view.messages)
    mus = [s.mu for s in round_trace.sensitivities(EAVESDROPPER, 0)]
    assert mus == pytest.approx([1.0, 1.0])  # unseen, the first would hide behind both noises


def test_one_kind_of_message_without_noise_is_named_and_has_no_epsilon(refused, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "own", algorithm(leaky_step))
    said = refused("algorithm.name=own")
    assert "no noise multiplier reaches epsilon=4 for eavesdropper" in said
    assert "sent or kept without noise that the adversary does not know: statistics" in said


# Batches


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(len, id="len"),
        pytest.param(lambda batch: batch.size, id="size"),
        pytest.param(lambda batch: batch.targets.shape[0], id="targets"),
        pytest.param(lambda batch: sum(1 for _ in batch), id="iteration"),
        pytest.param(float, id="float"),
        pytest.param(lambda batch: 1 if batch else 2, id="truth"),
    ],
)
@pytest.mark.parametrize("runs", [False, True], ids=["traced", "real"])
def test_a_mean_over_the_realised_batch_is_refused(size, runs):
    def step(state: State, round: Any, *, clip_norm: float, noise_std: float) -> State:
        batch = round.draw()
        sums = round.clipped_sums(state.x, batch=batch, clip_norm=clip_norm)
        noisy = sums + round.noise(sums, std=noise_std)
        return State(round.mix(state.x - noisy / size(batch), kind="half"))

    bound = bind(algorithm(step), ALGORITHMS["dsgd"].settings(), noise_std=1.0, **NUMBERS)
    run = (
        engine_of(bound).advance
        if runs
        else functools.partial(
            trace,
            bound.init,
            bound.step,
            graph=ring(4),
            rounds=2,
            noise_multiplier=bound.noise_multiplier,
        )
    )
    with pytest.raises(UndeclaredOperation, match="batch_size, the public expected size"):
        run()


def engine_of(bound: Any, *, root: int | None = None) -> Engine:
    shard = Examples(torch.rand(6, 1, 8, 8), torch.zeros(6, dtype=torch.long))
    model = build_model(
        "linear", input_shape=(1, 8, 8), classes=2, generator=torch.Generator().manual_seed(0)
    )
    setting = Setting(
        graph=ring(4), model=model, shards=[shard] * 4, sampling_rate=0.5,
        device=torch.device("cpu"),
    )  # fmt: skip
    return Engine(setting, bound, randomness=SecretRandomness(root))


# Seeds


def test_noise_from_a_given_seed_is_never_passed_off_as_secret(run_file, tmp_path, capsys):
    seed = ["--set", "training.evaluation_noise_seed=7"]
    assert cli.main(["plan", str(run_file), *seed]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "evaluation_noise_seed is set: anyone who knows it can subtract the noise" in shown
    assert cli.main(["train", str(run_file), *seed, "--out", str(tmp_path / "out")]) == 0
    assert cli.main(["report", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "The noise was drawn from <code>evaluation_noise_seed</code>" in page
    assert "Leave <code>evaluation_noise_seed</code> out of [training] and train again" in page


def test_one_source_of_noise_in_two_messages_counts_once_and_is_infinite():
    def step(state: State, round: Any, *, clip_norm: float, noise_std: float) -> State:
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        noise = round.noise(sums, std=noise_std)
        round.broadcast(sums + noise, kind="first")
        return State(round.mix(2.0 * sums + noise, kind="second"))

    exposure = exposure_of(step)
    assert exposure.largest == math.inf
    assert "the noise cancels between" in exposure.because
    assert "first" in exposure.because
    assert "second" in exposure.because


def test_two_calls_two_rounds_and_two_runs_never_share_noise():
    def drawn(root: int | None) -> list[torch.Tensor]:
        source = SecretRandomness(root)
        return [
            source.normal(round=r, call=c, rows=[0, 1], width=3, dtype=torch.float64)
            for r in (1, 2)
            for c in (0, 1)
        ]

    rows = torch.cat([*drawn(None), *drawn(None)])  # (16, 3)
    assert len({tuple(row) for row in rows.tolist()}) == 16
    again = torch.cat([*drawn(7), *drawn(7)])
    assert len({tuple(row) for row in again.tolist()}) == 8  # why a given seed is for evaluations


# Models


def test_a_batch_normalised_model_is_refused_by_a_run(refused, tmp_path, monkeypatch):
    (tmp_path / "normalised.py").write_text(
        "from torch import nn\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "normalised", raising=False)
    said = refused("model.name=normalised:build", commands=("train",))
    assert "layer '1' (BatchNorm1d) mixes the examples of a batch or keeps statistics" in said
    assert "use nn.GroupNorm instead" in said
    with pytest.raises(ValueError, match="GroupNorm"):
        validate_model(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)))


# Numbers. Each function with arguments that are right, and for one of them values that are not.

MIXING = np.array([[0.7, 0.3], [0.3, 0.7]])


def of_rounds(multiplier: Any, rate: Any, rounds: Any) -> Any:
    return trade_off({(multiplier, rate): rounds})


def of_view(value: Any = 1.0, noise: Any = 1.0, column: Any = 0, clip_norm: Any = 1.0) -> float:
    return View(contributions=np.array([[value]]), noise=np.array([[noise]])).mu(
        [column], clip_norm
    )


PROBABILITY: tuple[Any, ...] = (-1.0, math.nan, math.inf, 1e308, True, "0.1", None)
AT_LEAST_0: tuple[Any, ...] = (-1.0, math.nan, -math.inf, True, "1", None)
ONLY_PROBABILITY, ONLY_AT_LEAST_0 = PROBABILITY[:4], AT_LEAST_0[:3]  # numbers
COUNT: tuple[Any, ...] = (-1, 0, 2.5, math.nan, math.inf, True, "1", None)
ACCOUNTED = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "rounds": 3}
CALIBRATED = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "rounds": 3}
FINITE = (math.nan, math.inf, -math.inf, "1", None)
WRONG: list[tuple[Any, dict[str, Any], str, tuple[Any, ...]]] = [
    (delta_from_mu, {"mu": 1.0, "epsilon": 1.0}, "mu", AT_LEAST_0),
    (delta_from_mu, {"mu": 1.0, "epsilon": 1.0}, "epsilon", AT_LEAST_0),
    (epsilon_from_mu, {"mu": 1.0, "delta": 1e-5}, "mu", AT_LEAST_0),
    (epsilon_from_mu, {"mu": 1.0, "delta": 1e-5}, "delta", PROBABILITY),
    (mu_from, {"epsilon": 1.0, "delta": 1e-5}, "epsilon", (*AT_LEAST_0, math.inf)),
    (mu_from, {"epsilon": 1.0, "delta": 1e-5}, "delta", PROBABILITY),
    (epsilon, {**ACCOUNTED, "delta": 1e-5}, "noise_multiplier", ONLY_AT_LEAST_0),
    (epsilon, {**ACCOUNTED, "delta": 1e-5}, "sampling_rate", ONLY_PROBABILITY),
    (epsilon, {**ACCOUNTED, "delta": 1e-5}, "rounds", COUNT),
    (epsilon, {**ACCOUNTED, "delta": 1e-5}, "delta", (*ONLY_PROBABILITY, 0.0, 1.0)),
    (delta, {**ACCOUNTED, "epsilon": 1.0}, "noise_multiplier", ONLY_AT_LEAST_0),
    (delta, {**ACCOUNTED, "epsilon": 1.0}, "epsilon", ONLY_AT_LEAST_0),
    (noise_multiplier, CALIBRATED, "epsilon", (*ONLY_AT_LEAST_0, 0.0, math.inf, 1e308)),
    (noise_multiplier, CALIBRATED, "delta", (*ONLY_PROBABILITY, 0.0, 1.0)),
    (noise_multiplier, CALIBRATED, "sampling_rate", ONLY_PROBABILITY),
    (noise_multiplier, CALIBRATED, "rounds", COUNT),
    (risk, ACCOUNTED, "noise_multiplier", AT_LEAST_0),
    (risk, ACCOUNTED, "sampling_rate", PROBABILITY),
    (risk, ACCOUNTED, "rounds", COUNT),
    (risk, {**ACCOUNTED, "prior": 0.5}, "prior", PROBABILITY),
    (risk, {**ACCOUNTED, "prior_hit_rate": 0.5}, "prior_hit_rate", PROBABILITY),
    (risk_of_mu, {"mu": 1.0}, "mu", AT_LEAST_0),
    (of_rounds, {"multiplier": 1.0, "rate": 0.1, "rounds": 3}, "multiplier", AT_LEAST_0),
    (of_rounds, {"multiplier": 1.0, "rate": 0.1, "rounds": 3}, "rate", PROBABILITY),
    (of_rounds, {"multiplier": 1.0, "rate": 0.1, "rounds": 3}, "rounds", COUNT),
    (of_view, {}, "value", FINITE),
    (of_view, {}, "noise", FINITE),
    (of_view, {}, "clip_norm", (*AT_LEAST_0, 1e308, 1e-308)),
    (of_view, {}, "column", (-1, 1, 0.0, math.nan, True, "0", None)),
    (decor_covariance, {"weights": MIXING, "local_variance": 1.0, "pair_variance": 1.0},
     "local_variance", (*AT_LEAST_0, math.inf)),
    (decor_factor, {"weights": MIXING, "local_variance": 1.0, "pair_variance": 1.0},
     "pair_variance", (*AT_LEAST_0, math.inf)),
    (whisper_covariance, {"weights": MIXING, "bound": 1.0}, "bound",
     (*AT_LEAST_0, 0.0, math.inf, 1e308, 1e-308)),
    (whisper_covariance, {"weights": MIXING, "bound": 1.0}, "ridge",
     (-1.0, math.nan, math.inf, 1e308, True, "1")),
    (whisper_covariance, {"weights": MIXING, "bound": 1.0}, "rounds", COUNT),
    (whisper_covariance, {"weights": MIXING, "bound": 1.0}, "weights",
     (MIXING * math.nan, MIXING * 1e308, np.array([["a"]]), MIXING[0])),
    (noise_floor, {"weights": MIXING, "covariance": np.eye(2)}, "covariance",
     (-np.eye(2), np.eye(2) * 1e308, np.diag([1.0, math.nan]), np.eye(3))),
    (victim_information, {"covariance": np.eye(2)}, "covariance",
     (-np.eye(2), np.eye(2) * 1e308, np.diag([1.0, math.inf]), np.eye(2)[:1])),
    (factor, {"covariance": np.eye(2)}, "covariance", (-np.eye(2), np.eye(2) * math.nan)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "right", "name", "wrong"),
    [
        pytest.param(*case, id=f"{case[0].__name__}-{case[2]}-{number}")
        for number, case in enumerate(WRONG)
    ],
)
def test_a_number_out_of_range_is_refused_in_a_sentence(function, right, name, wrong):
    function(**right)
    for value in wrong:
        with pytest.raises((ValueError, TypeError)) as caught:
            function(**{**right, name: value})
        words = str(caught.value)
        assert "must" in words or "which is not finite" in words
        assert "overhear" in caught.traceback[-1].frame.f_globals["__name__"]  # we say it


def test_figures_at_the_end_of_the_floats_are_never_too_small():
    for size in (1e-200, 1e-20, 1e200):  # a row's unit does not matter
        assert of_view(size, size) == 1.0
        assert of_view(size, 0.25 * size) == 4.0
    assert of_view(1e308, 1.0) == math.inf
    assert 0.0 < delta_from_mu(1e-308, 1.0) < 1e-300
    assert delta_from_mu(1e308, 1e308) == 1.0
    assert risk(noise_multiplier=1e308, sampling_rate=0.5, rounds=3).advantage > 0.0
    assert risk(noise_multiplier=1e-308, sampling_rate=0.5, rounds=3).advantage == 1.0
    assert composed_risk({(1e-320, 1.0): 1}).mu == math.inf
    assert victim_information(np.diag([1e-320, 1.0]))[0] == math.inf


# Of each list of names that a file chooses from, those that protect alike, from most to least; the
# test asks for a place of every new name.
PROTECTION: list[list[set[str]]] = [
    [{"repaired"}, {"published"}],
    [{"replace-one"}, {"add-or-remove-one", "zero-out"}],
    [{"agent", "client"}, {"user"}, {"record"}],
    [{"poisson", "fixed"}, {"shuffled", "cyclic"}],
    [{"hardened"}, {"standard"}],
    [{"clear"}, {"encrypted"}],  # encryption is a promise of the user
    [{"checked"}, {"trusted"}],
    [{"posterior", "matched"}, {"dlg", "idlg", "inverting-gradients"}],
    [{"neighbour", "all-others", "eavesdropper"}, {"final-models"}, {"single-message"}],
    [{"pld", "dp-accounting", "rdp", "prv"}],  # upper bounds, as a test of the accountants says
    [{"none", "top-k", "random-k", "quantised"}],
    [{"refuse"}, {"clamp"}],
    *([set(names)] for names in (("auto", "cpu", "cuda"), ("metropolis", "uniform"))),
    *([set(names)] for names in (("iid", "dirichlet", "shards"), ("float32", "tf32", "bfloat16"))),
    [{"step-then-mix", "mix-then-step"}], [{"cross-gradient", "momentum", "view"}],
    [{"auto", "book-keeping", "grouped", "vmap", "loop"}],
    [{"classification", "class-weights", "auc", "regression"}],
    [{"constant", "step", "linear", "cosine", "inverse-sqrt"}],
    [{"data.name", "model.name", "model.loss", "algorithm.name", "attack.denoiser"}],
    [{"ring", "full", "bipartite", "grid", "star", "server", "erdos-renyi", "directed-ring"}
     | {"directed-exponential", "random-digraph", "file"}],
    [{"per-step", "per-round"}], [{"per-example"}, {"batch"}], [{"all", "one-batch", "batches"}],
]  # fmt: skip


def unprotected() -> set[str]:
    """The algorithms of the registry of which the links show everything."""
    run: dict[str, Any] = {"graph": "ring:4", "rounds": 1, "sampling_rate": 0.1, "records": 100}
    run |= {"delta": 1e-5, "noise_multiplier": 1.0, "adversaries": ["eavesdropper"]}
    return {name for name in ALGORITHMS if account(name, **run).worst.epsilon == math.inf}


def tables() -> list[list[str]]:
    """Every list of names that a run file or a policy chooses from."""
    found = []

    def look(schema: Any) -> None:
        if isinstance(schema, dict):
            names = schema.get("enum", ())
            if len(names) > 1 and all(isinstance(one, str) for one in names):
                found.append(list(names))
        for inner in schema.values() if isinstance(schema, dict) else schema:
            if isinstance(inner, dict | list):
                look(inner)

    look([run_file_schema(), policy_schema()])
    return [*found, list(_OUTSIDERS)]


def near_words(names: list[str]) -> set[str]:
    """Words with a slip, and words made of two names."""
    words = {one.upper() for one in names} | {one.replace("-", "_") for one in names}
    for one in names:
        words |= {one[:at] + one[at + 1 :] for at in range(len(one))}
        words |= {one[:at] + one[at : at + 2][::-1] + one[at + 2 :] for at in range(len(one))}
    for one, other in itertools.permutations(names, 2):
        words |= {one[: len(one) * at // 4] + other[len(other) * at // 4 :] for at in (1, 2, 3)}
    return words - set(names)


@pytest.mark.slow
def test_a_suggestion_never_leads_to_less_protection_than_another_near_word():
    bare = unprotected()
    assert bare == {"dsgd", "dm-hsgd", "sgda"}
    algorithms = [set(ALGORITHMS) - bare, bare]
    checked = 0
    for names in (list(ALGORITHMS), *tables()):
        order = next(
            (one for one in [algorithms, *PROTECTION] if set(names) <= set().union(*one)), None
        )
        assert order is not None, f"say in PROTECTION which of {names} protects most"
        place = {name: number for number, alike in enumerate(order) for name in alike}
        for word in near_words(names):
            close = difflib.get_close_matches(word, names, n=len(names))
            meant = did_you_mean(word, names).removeprefix("; did you mean ").removesuffix("?")
            if meant:
                assert place[meant] <= min((place[one] for one in close), default=0), word
                assert names != list(ALGORITHMS) or meant not in bare, word
                checked += 1
    assert checked > 3000


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *((word, "dp-dpsgd") for word in ("dpsgd", "dp-sgd", "D-PSGD", "DP_SGD", "sgd", "dsdg")),
        *((word, "muffliato") for word in ("gossip", "gossip-sgd", "mufliato")),
        *((word, "dp-fedavg") for word in ("fedavg", "FedAvg", "federated_averaging")),
        *((word, "cdp-dsgd") for word in ("fedsgd", "central-dp")),
        *((word, "ldp-dsgd") for word in ("local-dp", "ldp")),
        *((word, "whisper") for word in ("CorN-DSGD", "corn_sgd", "Whisper D-SGD")),
        *(("gda", "dp-sgda"), ("dm-hgsd", "dpmixsgd"), ("choco", "choco-sgd"), ("dpld", "dpdl")),
    ],
)
def test_a_famous_name_leads_to_the_algorithm_that_protects(word, meant):
    assert did_you_mean(word, ALGORITHMS) == f"; did you mean {meant}?"
