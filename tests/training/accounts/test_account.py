"""The one public call: what it refuses, and that its figures are those of the step as it runs."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from overhear.privacy import Statement, UnsupportedView, epsilon
from overhear.privacy.errors import InputError, InputTypeError
from overhear.training import ALGORITHMS, Account, Algorithm, Round, account, bind, build_graph
from overhear.training.algorithms.algorithm import choices
from overhear.training.exposure.guarantees import calibrated_multiplier, guarantee, run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.exposure.sensitivity import JointSensitivity
from overhear.training.tracing.trace import trace
from tests.training.states import State, start

STATEMENT = Statement(delta=1e-5)
RUN: dict[str, Any] = {"graph": "ring:5", "rounds": 60, "sampling_rate": 0.1, "delta": 1e-5}
NUMBERS = {"learning_rate": 0.5, "clip_norm": 1.0, "batch_size": 16.0}
EVERYBODY = ["eavesdropper", "neighbour", "final-models", "single-message"]
Std = Callable[[Round, float], float]


def step(
    state: State,
    round: Round,
    *,
    learning_rate: float,
    clip_norm: float,
    noise_std: float,
    batch_size: float,
) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noisy = (sums + round.noise(sums, std=noise_std)) / batch_size
    return State(round.mix(state.x - learning_rate * noisy, kind="model"))


def with_noise(std: Std) -> Callable[..., State]:
    """A step like the one above, with noise of another standard deviation."""

    def other(
        state: State, round: Round, *, clip_norm: float, noise_std: float, learning_rate: float
    ) -> State:
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        noisy = sums + round.noise(sums, std=std(round, noise_std))
        return State(round.mix(state.x - learning_rate * noisy, kind="model"))

    return other


def truth(multiplier: float, rounds: int = 60) -> float:
    """Epsilon of one Gaussian release a round."""
    return epsilon(noise_multiplier=multiplier, delta=1e-5, rounds=rounds, sampling_rate=0.1)


# The figures


def test_a_run_at_noise_multiplier_two_costs_one_point_eight_one():
    found = account(start, step, noise_multiplier=2, **RUN)
    assert found["eavesdropper"].epsilon == pytest.approx(truth(2.0), rel=1e-9)
    assert found["eavesdropper"].status == "proven"
    assert found.noise_multiplier == 2.0
    assert found.message_kinds == ("model",)


def test_what_was_traced_at_the_noise_of_the_run_is_not_read_as_traced_at_one():
    """Twenty rounds at noise multiplier 2 cost 1.076; read as of a trace at 1, 0.429."""
    run = RUN | {"rounds": 20}
    found = account(start, step, noise_multiplier=2, **run)["eavesdropper"].epsilon
    bound = functools.partial(step, noise_std=2.0, **NUMBERS)
    traces = trace(start, bound, graph=build_graph("ring", 5), rounds=20, noise_multiplier=2.0)
    ((name, joint),) = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=0.1)
    below = guarantee(name, joint, statement=STATEMENT, noise_multiplier=2.0).epsilon
    assert joint.largest == pytest.approx(1.0, rel=1e-12)
    assert found == pytest.approx(below, rel=1e-9)
    assert found == pytest.approx(1.0755, abs=5e-5)
    assert truth(4.0, rounds=20) == pytest.approx(0.429, abs=5e-4)


@pytest.mark.parametrize("asked", [1.0, 4.0, 0.0, None])
def test_a_sensitivity_says_nothing_of_noise_at_which_it_was_not_traced(asked):
    bound = functools.partial(step, noise_std=2.0, **NUMBERS)
    traces = trace(start, bound, graph=build_graph("ring", 5), rounds=60, noise_multiplier=2.0)
    ((_, joint),) = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=0.1)
    if asked == 0.0:  # without noise nothing protects, whatever there was with it
        assert run_epsilon(joint, statement=STATEMENT, noise_multiplier=0.0) == math.inf
        return
    said = "traced at noise multiplier 2"
    if asked is None:
        with pytest.raises(UnsupportedView, match=said):
            calibrated_multiplier(joint, statement=STATEMENT, epsilon=1.0)
    else:
        with pytest.raises(UnsupportedView, match=said):
            run_epsilon(joint, statement=STATEMENT, noise_multiplier=asked)


def test_a_trace_is_not_made_at_another_noise_than_its_step_has():
    bound = functools.partial(step, noise_std=2.0, **NUMBERS)
    graph = build_graph("ring", 5)
    with pytest.raises(InputError, match=r"noise_multiplier=1 is not that of .*noise_std=2"):
        trace(start, bound, graph=graph, rounds=60, noise_multiplier=1.0)
    silent = trace(start, bound, graph=graph, rounds=60, noise_multiplier=None)
    with pytest.raises(InputError, match="does not say at which noise multiplier"):
        joint_sensitivities(silent, ["eavesdropper"], sampling_rate=0.1)


def test_a_calibrated_run_meets_its_target_and_says_whose():
    found = account(start, step, epsilon=4, **RUN)
    assert 3.99 < found["eavesdropper"].epsilon <= 4.0
    assert (found.target, found.goal.epsilon) == ("eavesdropper", 4)
    again = account(start, step, noise_multiplier=found.noise_multiplier, **RUN)
    assert again["eavesdropper"].epsilon == found["eavesdropper"].epsilon
    assert again.target is None
    own = account("dpdl", epsilon=4, adversary="single-message", **RUN)
    assert own["single-message"].epsilon <= 4.0 < own["eavesdropper"].epsilon
    assert own.target == "single-message"
    assert any("no adversary is limited to" in said for said in own.warnings)


@pytest.mark.some_quick(8)
@pytest.mark.parametrize(
    ("name", "form"), [(n, form) for n, a in ALGORITHMS.items() if a.private for form in a.forms]
)
def test_every_algorithm_keeps_its_proportion(name, form):
    numbers = RUN | {"rounds": 3, "records": 100.0, "form": form}
    at = functools.partial(account, name, **numbers)
    one = at(noise_multiplier=1.0)
    other = at(noise_multiplier=1.7, clip_norm=0.3, batch_size=None, learning_rate=0.2)
    for who in one:
        assert other[who].joint_sensitivity == pytest.approx(one[who].joint_sensitivity, rel=1e-6)
        assert other[who].status is one[who].status


def test_fewer_rounds_cost_less_and_every_agent_has_a_figure():
    found = account(start, step, noise_multiplier=2, **RUN)
    assert found.epsilon("neighbour") == found["neighbour"].epsilon
    assert found.epsilon("neighbour", rounds=10) == pytest.approx(truth(2.0, rounds=10), rel=1e-9)
    assert found.epsilon("neighbour", rounds=0) == 0.0
    by_agent = found.epsilon_by_agent()
    assert by_agent["eavesdropper"] == pytest.approx([found["eavesdropper"].epsilon] * 5, rel=1e-12)
    member = account(start, step, noise_multiplier=2, adversaries=["coalition:1,2"], **RUN)
    assert member.epsilon_by_agent()["coalition:1,2"][1:3] == [None, None]


def test_the_bound_step_has_the_numbers_of_the_account():
    found = account(start, step, noise_multiplier=2, clip_norm=0.5, batch_size=16, **RUN)
    assert isinstance(found.bound.step, functools.partial)
    assert found.bound.step.keywords == {
        "learning_rate": 0.01,
        "clip_norm": 0.5,
        "noise_std": 1.0,
        "batch_size": 16,
    }
    without = account(start, step, noise_multiplier=2, **RUN)
    with pytest.raises(InputError, match="divides by batch_size"):
        _ = without.bound
    assert account("dyn-d2p", noise_multiplier=1, batch_size=4, **RUN).bound.noise_multiplier == 1.0


def test_an_account_prints_as_a_table():
    found = account(start, step, noise_multiplier=2, **RUN)
    lines = repr(found).splitlines()
    assert lines[0] == "step: 60 rounds on ring of 5 agents, sampling rate 0.1"
    assert lines[1] == "noise multiplier 2, clip norm 1"
    assert lines[4].split()[:3] == ["adversary", "epsilon", "status"]
    assert len(lines) == 5 + len(found) == 9
    shown = float(lines[5].split()[1])
    assert shown >= found.guarantees[next(iter(found))].epsilon  # never printed smaller than it is
    assert "Nothing protects" in repr(account(start, step, noise_multiplier=0, **RUN))


def test_without_noise_every_figure_is_infinite():
    found = account(start, step, noise_multiplier=0, **RUN)
    assert [found[name].epsilon for name in found] == [math.inf] * 4
    assert found.epsilon_by_agent()["neighbour"] == [math.inf] * 5
    plain = account("dsgd", noise_multiplier=0, clip_norm=None, **RUN)
    assert plain["eavesdropper"].epsilon == math.inf


# Steps whose noise does something else


def _by_agent(noise_std: float) -> Callable[..., State]:
    def other(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        own = torch.full((round.agents, 1), noise_std)
        own[0] = 1.0
        noise = round.noise(sums, std=1.0) * round.of_agents(own)
        return State(round.mix(state.x - sums - noise, kind="model"))

    return other


def _beside(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noise = round.noise(sums, std=noise_std) + round.noise(sums, std=0.5)
    return State(round.mix(state.x - sums - noise, kind="model"))


def _own_clip(state: State, round: Round, *, noise_std: float) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    return State(round.mix(state.x - sums - round.noise(sums, std=noise_std), kind="model"))


def _noise_as_the_rate(
    state: State, round: Round, *, clip_norm: float, noise_std: float, learning_rate: float
) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noise = round.noise(sums, std=noise_std * learning_rate)
    return State(round.mix(state.x - sums - noise, kind="model"))


def _by_batch_size(
    state: State, round: Round, *, clip_norm: float, noise_std: float, batch_size: float
) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noise = round.noise(sums, std=noise_std)
    return State(round.mix(state.x - sums - noise / batch_size, kind="model"))


def _twice_above_three(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
    for _ in range(2 if noise_std > 3 else 1):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        x = round.mix(state.x - sums - round.noise(sums, std=noise_std), kind="model")
    return State(x)


OTHERWISE = {
    "constant": with_noise(lambda _, std: 1.0), "squared": with_noise(lambda _, std: std**2),
    "capped": with_noise(lambda _, std: min(std, 1.0)),
    "switched": with_noise(lambda _, std: std if std <= 3 else 1.0),
    "offset": with_noise(lambda _, std: std + 1e-4),
    "first rounds alone": with_noise(lambda round, std: std if round.index < 3 else 1.0),
    "one agent": _by_agent(1.0), "beside": _beside, "batch size": _by_batch_size,
    "twice": _twice_above_three,
}  # fmt: skip


@pytest.mark.parametrize("which", OTHERWISE)
def test_noise_that_does_not_keep_its_proportion_has_no_account(which):
    run = RUN | {"rounds": 5, "batch_size": 16.0}
    for numbers in ({"noise_multiplier": 4.0}, {"noise_multiplier": 5.0, "clip_norm": 2.0}):
        with pytest.raises(UnsupportedView, match=r"proportion|something else"):
            account(start, OTHERWISE[which], **numbers, **run)
    with pytest.raises(UnsupportedView, match=r"proportion|something else"):
        account(start, OTHERWISE[which], epsilon=0.05, **run)


@pytest.mark.parametrize("which", ["squared", "capped", "offset", "batch size"])
def test_a_run_at_multiplier_one_is_held_against_another(which):
    with pytest.raises(UnsupportedView, match="proportion"):
        account(start, OTHERWISE[which], noise_multiplier=1, **RUN)


@pytest.mark.parametrize("multiplier", [math.nan, -1.0])
def test_no_epsilon_is_given_at_a_multiplier_that_is_none(multiplier):
    joint = account(start, step, noise_multiplier=2, **RUN).joint_sensitivities["eavesdropper"]
    assert joint.noise_multiplier is None  # it holds at any noise
    with pytest.raises(InputError, match="must be at least 0"):
        run_epsilon(joint, statement=STATEMENT, noise_multiplier=multiplier)


def test_a_step_whose_noise_ignores_its_multiplier_is_refused_at_every_door():
    """Its noise is 0.2 in fact. A trace at 1, read at 2, would give 41.1; the truth is 200.4."""
    quiet = with_noise(lambda _, std: 0.2)
    with pytest.raises(UnsupportedView, match="proportion"):
        account(start, quiet, noise_multiplier=2.0, **RUN)

    def joint(multiplier: float) -> JointSensitivity:
        bound = functools.partial(quiet, learning_rate=0.1, clip_norm=1.0, noise_std=multiplier)
        graph = build_graph("ring", 5)
        traces = trace(start, bound, graph=graph, rounds=60, noise_multiplier=multiplier)
        return dict(joint_sensitivities(traces, ["eavesdropper"], sampling_rate=0.1))[
            "eavesdropper"
        ]

    assert truth(0.4) == pytest.approx(41.1, abs=0.05)
    with pytest.raises(UnsupportedView, match="traced at noise multiplier 1 and says nothing of 2"):
        run_epsilon(joint(1.0), statement=STATEMENT, noise_multiplier=2.0)
    real = run_epsilon(joint(2.0), statement=STATEMENT, noise_multiplier=2.0)
    assert real == pytest.approx(truth(0.2), rel=1e-9)
    assert real == pytest.approx(200.4, abs=0.05)


def test_what_holds_at_the_noise_of_the_run_is_given():
    """A switch that the two traces do not reach changes nothing of what is run."""
    below = with_noise(lambda _, std: std if std < 50 else 1.0)
    found = account(start, below, noise_multiplier=2.0, **RUN)
    assert found["eavesdropper"].epsilon == pytest.approx(truth(2.0), rel=1e-9)


def test_a_step_that_clips_at_a_bound_of_its_own_is_refused_at_another_clip_norm():
    assert account(start, _own_clip, noise_multiplier=2.0, **RUN)["eavesdropper"].epsilon > 0
    with pytest.raises(UnsupportedView, match="proportion"):
        account(start, _own_clip, noise_multiplier=2.0, clip_norm=4.0, **RUN)


def test_the_learning_rate_of_the_run_is_the_one_that_counts():
    """Noise times the learning rate hides less where the rate is small, and that is the figure."""
    for rate in (0.5, 1.0, 2.0):
        found = account(start, _noise_as_the_rate, noise_multiplier=2, learning_rate=rate, **RUN)
        assert found["eavesdropper"].epsilon == pytest.approx(truth(2.0 * rate), rel=1e-9)


def test_a_step_that_sends_only_without_noise_is_refused_without():
    def quiet(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
        if noise_std > 0:
            return state
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        return State(round.mix(state.x - sums, kind="model"))

    with pytest.raises(UnsupportedView, match="without noise what it does not release with it"):
        account(start, quiet, noise_multiplier=0, **RUN)


# What is refused


@pytest.mark.parametrize(
    ("multiplier", "said"),
    [
        (1e-200, "noise_multiplier=1e-200 must be 0, or from 1e-08 to 1e[+]20"),
        (1e200, "must be 0, or from"),
        (math.inf, "must be 0, or from"),
        (math.nan, "at least 0"),
        (-1.0, "at least 0"),
        (10**400, "must be at most 1e308"),
        (True, "must be a number"),
        ("2", "must be a number"),
    ],
)
def test_a_multiplier_out_of_range_is_refused(multiplier, said):
    with pytest.raises((InputError, InputTypeError), match=said):
        account(start, step, noise_multiplier=multiplier, **RUN)


@pytest.mark.parametrize("multiplier", [1e-5, 1e-3, 1e9, 1e20])
def test_multipliers_in_range_give_the_same_joint_sensitivity(multiplier):
    found = account("dpdl", noise_multiplier=multiplier, adversaries=["eavesdropper"], **RUN)
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(math.sqrt(3), rel=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clip_norm": 1e200}, "clip_norm=1e[+]200 must lie in"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 must"),
        ({"clip_norm": math.nan}, "clip_norm=nan must"),
        ({"clip_norm": None}, "does not clip"),
        ({"clip_norm": math.inf}, "does not clip"),
        ({"learning_rate": 1e-300}, "learning_rate=1e-300 must"),
        ({"learning_rate": None}, "learning_rate=None must be a number"),
        ({"batch_size": 0}, "batch_size=0 must"),
        ({"batch_size": "16"}, "batch_size='16' must be a number"),
        ({"sampling_rate": 1.5}, "did you mean batch_size"),
        ({"sampling_rate": 0}, "sampling_rate=0 must lie in"),
        ({"rounds": 0}, "rounds=0 must lie in"),
        ({"rounds": 2.5}, "rounds=2.5 must be an integer"),
        ({"delta": 1}, "delta=1 must lie strictly"),
        ({"epsilon": 1.0}, "exactly one of them; epsilon and noise_multiplier given"),
        ({"noise_multiplier": None}, "exactly one of them; none given"),
        ({"noise_multiplier": None, "epsilon": 0.0}, "epsilon=0.0 must be at least 1e-12"),
        ({"noise_multiplier": None, "epsilon": math.nan}, "epsilon=nan must be"),
        ({"adversary": "neighbour"}, "has no effect without epsilon"),
        ({"adversaries": "neighbour"}, "must be a list"),
        ({"adversaries": 5}, "must be a list"),
        ({"adversaries": [5]}, "must be a name"),
        ({"victim": True}, "must be the number of an agent"),
        ({"victim": 1.5}, "must be the number of an agent"),
        ({"learning_rate": 10**400}, "learning_rate=1000"),
        ({"adversaries": ["nobody"]}, "nobody"),
        ({"victim": 7}, "victim=7 must lie in 0..4"),
        ({"links": "open"}, "links='open' must be"),
        ({"form": "best"}, "form='best' must be"),
        ({"adjacency": "replace"}, "adjacency='replace' must be one of"),
        ({"graph": "ring"}, 'such as "ring:10"'),
        ({"graph": "ring:-3"}, 'such as "ring:10"'),
        ({"graph": "rang:5"}, "graph name='rang' is unknown"),
        ({"graph": 5}, "graph of type int"),
        ({"lerning_rate": 0.1}, "lerning_rate is unknown to the step; did you mean learning_rate"),
        ({"momentum": 0.1}, "momentum is unknown to the step"),
        ({"noise_std": 2.0}, "give noise_multiplier, which is noise_std / clip_norm"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named_with_their_remedy(given, said):
    with pytest.raises((InputError, InputTypeError), match=said):
        account(start, step, **(RUN | {"noise_multiplier": 2.0} | given))


def test_numbers_that_are_bound_to_the_step_already_are_refused():
    """Else a step bound at noise_std=2 would be asked about at another noise."""
    bound = functools.partial(step, noise_std=2.0, **NUMBERS)
    with pytest.raises(InputError, match="is bound to step already"):
        account(start, bound, noise_multiplier=2.0, **RUN)


def test_hyper_parameters_of_an_own_step_are_taken_by_name():
    def damped(
        state: State, round: Round, *, clip_norm: float, noise_std: float, damping: float
    ) -> State:
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        noisy = sums + round.noise(sums, std=noise_std)
        return State(round.mix(damping * state.x - noisy, kind="model"))

    with pytest.raises(InputError, match=r"takes 'damping', which has no default; give damping"):
        account(start, damped, noise_multiplier=2.0, **RUN)
    with pytest.raises(InputError, match=r"dampng is unknown to the step; did you mean damping"):
        account(start, damped, noise_multiplier=2.0, dampng=0.5, **RUN)
    found = account(start, damped, noise_multiplier=2.0, damping=0.5, **RUN)
    assert found["eavesdropper"].epsilon == pytest.approx(truth(2.0), rel=1e-9)
    assert found.bound.step.keywords["damping"] == 0.5

    def greedy(state: State, round: Round, **numbers: float) -> State:
        return state

    with pytest.raises(InputTypeError, match="taken by name, without"):
        account(start, greedy, noise_multiplier=2.0, **RUN)

    def counting(state: State, round: Round, *, rounds: int) -> State:
        return state

    with pytest.raises(InputError, match="rename it"):
        account(start, counting, noise_multiplier=2.0, **RUN)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ("dp-dpsdg", "did you mean dp-dpsgd"),
        (5, "of type int must be an Algorithm"),
        (start, "a start without a step"),
        ((start, step), "of type tuple must be"),
    ],
    ids=["misspelt", "number", "start", "pair"],
)
def test_what_is_no_algorithm_is_refused(algorithm, said):
    with pytest.raises((InputError, InputTypeError), match=said):
        account(algorithm, noise_multiplier=2.0, **RUN)


def test_an_algorithm_is_given_as_itself_by_name_or_as_a_pair():
    whole = Algorithm(name="noisy-gossip", init=start, step=step)
    one = account(whole, noise_multiplier=2.0, **RUN)
    assert one["neighbour"] == account(start, step, noise_multiplier=2.0, **RUN)["neighbour"]
    assert isinstance(one, Account)
    with pytest.raises(InputTypeError, match="has a step of its own"):
        account(whole, step, noise_multiplier=2.0, **RUN)
    with pytest.raises(InputError, match="needs records"):
        account("dpmixsgd", noise_multiplier=2.0, **RUN)
    with pytest.raises(InputError, match=r"gossip_step is unknown .* did you mean gossip_steps"):
        account("muffliato", noise_multiplier=2.0, gossip_step=3, **RUN)


def test_only_adversaries_that_were_asked_for_are_there():
    found = account(start, step, noise_multiplier=2.0, adversaries=["neighbour:1"], **RUN)
    assert list(found) == ["neighbour:1"]
    with pytest.raises(InputError, match="'eavesdropper' is not accounted for"):
        found["eavesdropper"]
    alone = account(start, step, noise_multiplier=2.0, **(RUN | {"graph": "ring:1"}))
    assert list(alone) == ["eavesdropper", "final-models", "single-message"]
    hidden = account(start, step, noise_multiplier=2.0, links="encrypted", **RUN)
    assert "all-others" in hidden.guarantees


@pytest.mark.parametrize(
    ("name", "setting", "value", "dearer"),
    [("dp-cga", "clip", "batch", 1.9), ("dp-netfleet", "batches", "per-round", None)],
)
def test_a_hyper_parameter_by_its_name_is_the_one_of_that_name(name, setting, value, dearer):
    """`clip="batch"` was accounted for, and trained, as the clipping of each example."""
    kind = choices(ALGORITHMS[name])[setting]
    how = {
        "graph": "ring:5",
        "rounds": 20,
        "sampling_rate": 0.1,
        "delta": 1e-5,
        "noise_multiplier": 3.0,
    }
    by_name = account(name, **how, **{setting: value})
    assert by_name.worst == account(name, **how, **{setting: kind(value)}).worst
    if dearer is not None:
        assert (
            by_name.worst.joint_sensitivity > dearer * account(name, **how).worst.joint_sensitivity
        )
    with pytest.raises(ValueError, match=f"{setting}='neither' of algorithm .* must be one of"):
        account(name, **how, **{setting: "neither"})
    known = ALGORITHMS[name]
    with pytest.raises(TypeError, match=f"{setting}='{value}' of '{name}' must be a"):
        bind(
            known, known.settings(**{setting: value}), learning_rate=0.1, clip_norm=1.0,
            noise_std=1.0, batch_size=5.0,
        )  # fmt: skip


# The number of records in all: what comes from it shows it.

COUNTED = "The number of records in all counts as public"


def counted(**how):
    return account(
        "dp-dpsgd", graph="full:2", rounds=3, delta=1e-5, noise_multiplier=2.0,
        adversaries=["eavesdropper"], **how,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("how", "public"),
    [
        ({"sampling_rate": 1 / 3, "batch_size": 1, "records": 3}, True),
        ({"sampling_rate": 1 / 3, "batch_size": 1, "records": 3, "adjacency": "zero-out"}, False),
        (
            {"sampling_rate": 1 / 3, "batch_size": 1, "records": 3, "adjacency": "replace-one"},
            False,
        ),
        ({"sampling_rate": 0.3, "batch_size": 1, "records": 3}, False),  # a rate of its own
        ({"sampling_rate": 1 / 3, "batch_size": 1}, False),  # whose number is not said
    ],
)
def test_a_rate_that_comes_from_the_number_of_records_says_that_it_is_public(how, public):
    found = counted(**how)
    said = [warning for warning in found.warnings if COUNTED in warning]
    assert len(said) == public
    assert (COUNTED in found.statement()) == public
    assert (COUNTED in str(found.explain("eavesdropper"))) == public
    assert "where they come from the number of records in all" in found.statement()


def test_batches_of_fixed_size_say_of_each_agent_that_its_number_is_public():
    found = counted(sampling_rate=1 / 3, batch_size=1, records=3, sampling="fixed")
    assert any(
        "How many records each agent holds (3) counts as public" in w for w in found.warnings
    )
    assert not any(COUNTED in warning for warning in found.warnings)
