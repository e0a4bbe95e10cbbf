"""What an audit concludes; the games are played for real on small runs, or given."""

import math
from dataclasses import replace

import numpy as np
import pytest

from overhear.attacks.audit import audit as module
from overhear.attacks.audit import audited
from overhear.attacks.audit import game as games_played
from overhear.attacks.audit.audit import audit, claim_of, hosts_of
from overhear.attacks.audit.audited import LinkGuesses, Proven, Verdict
from overhear.attacks.audit.game import CanaryGame, Played
from overhear.attacks.bounds import evidence
from overhear.attacks.bounds.lower_bounds import Guesses, total_error
from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.privacy.guarantee import EAVESDROPPER, Sees, Statement, Status
from overhear.privacy.participation import as_events
from overhear.training.exposure.joint_sensitivities import joint_sensitivities_by_victim
from overhear.training.exposure.sensitivity import JointSensitivity, Release
from overhear.training.graphs.topologies import ring, star
from overhear.training.tracing.trace import trace
from tests.training import contract

DELTA = 1e-5
STATEMENT = Statement(delta=DELTA)


def _exposure(
    *releases: Release, whole_run: bool = False, status=Status.PROVEN
) -> JointSensitivity:
    return JointSensitivity(EAVESDROPPER, 0, releases, status, "", whole_run)


def _proven(mu: float = 1.0, *, name: str = "eavesdropper", status=Status.PROVEN) -> Proven:
    claim = Claim(rounds={(1.0 / mu, 1.0): 1})
    return Proven(
        name=name, epsilon=epsilon(claim, DELTA), statement=STATEMENT, status=status, claim=claim
    )


def _guesses(mu: float, canaries: int, seed: int) -> Guesses:
    rng = np.random.default_rng(seed)
    included = rng.integers(2, size=canaries).astype(bool)
    scores = rng.normal(size=canaries) * mu + np.where(included, 0.5, -0.5) * mu**2
    return Guesses(scores=scores, included=included)


def _game() -> CanaryGame:
    graph = ring(5)
    bound = contract.bound_to("dpdl", graph)
    return CanaryGame(
        setting=contract.setting(graph),
        bound=bound,
        traces=trace(
            bound.init, bound.step, graph=graph, rounds=40, noise_multiplier=bound.noise_multiplier
        ),
        rounds=1,
        clip_norm=contract.CLIP,
        adversaries={"eavesdropper": dict.fromkeys(range(5), EAVESDROPPER)},
        canaries=2000,
    )


def _audited(monkeypatch, *played: Played, proven: Proven | None = None, **how):
    """What is concluded; the first look gets the first part, each part of the second the next."""
    given = list(played)
    games = []

    def play(game, *, generator, progress=None):
        games.append(game)
        return given.pop(0) if len(given) > 1 else given[0]

    monkeypatch.setattr(games_played.Game, "play", play)
    monkeypatch.setattr(evidence, "ranked", total_error)  # scores that are alike have no order
    (found,) = audit(_game(), [proven or _proven()], seed=0, **how)
    return found, games


def _of(mu: float, canaries: int, seed: int) -> Played:
    return Played({"eavesdropper": _guesses(mu, canaries, seed)}, [])


def test_a_bound_below_the_proof_is_consistent(monkeypatch):
    found, games = _audited(monkeypatch, _of(0.8, 2000, 1))
    assert found.verdict is Verdict.CONSISTENT
    assert 0 < found.measured < found.proven.epsilon
    assert len(games) == 1
    assert "within the proven" in found.words()
    assert found.evidence is not None
    assert found.evidence.looks == (0.0,)


def test_an_exceedance_is_cleared_by_four_times_as_many_canaries(monkeypatch):
    fresh = [_of(0.95, 2000, seed) for seed in range(2, 6)]
    found, games = _audited(monkeypatch, _of(1.2, 2000, 1), *fresh)
    assert found.verdict is Verdict.CLEARED
    assert sum(game.canaries for game in games[1:]) == 4 * games[0].canaries
    assert found.again is not None
    assert found.fresh is not None
    assert (found.again.confidence, found.fresh.confidence) == pytest.approx((0.999, 0.95))
    assert found.again.canaries == 8000
    assert "cleared, the first look was chance" in found.words()


def test_what_neither_clears_nor_contradicts_stays_suspicious(monkeypatch):
    # 8,000 canaries at an error rate of 29.6 % where 30.9 % is claimed: 2.4 deviations.
    wrong = np.arange(2000) < 593
    coins = np.arange(2000) % 2 == 0
    scores = np.where(coins ^ wrong, 1.0, -1.0)
    part = Played({"eavesdropper": Guesses(scores=scores, included=coins)}, [])
    found, games = _audited(monkeypatch, _of(1.2, 2000, 1), part)
    assert found.verdict is Verdict.SUSPICIOUS
    assert len(games) == 5
    assert "neither clears nor contradicts" in found.words()


def test_a_second_exceedance_contradicts_the_proof(monkeypatch):
    # 28.85 %: 3.9 deviations in the second look, and no bet is decisive by itself.
    wrong = np.arange(2000) < 577
    coins = np.arange(2000) % 2 == 0
    part = Guesses(scores=np.where(coins ^ wrong, 1.0, -1.0), included=coins)
    found, games = _audited(monkeypatch, Played({"eavesdropper": part}, []))
    assert found.verdict is Verdict.CONTRADICTED
    assert len(games) == 5
    assert "more than the proven" in found.words()
    assert "the proof or the code is wrong" in found.words()


def test_an_audit_stops_as_soon_as_it_is_sure(monkeypatch):
    found, games = _audited(monkeypatch, _of(2.0, 2000, 1))
    assert found.verdict is Verdict.CONTRADICTED
    assert (len(games), found.again, found.decided) == (1, None, True)
    assert "to 1: the proof or the code is wrong" in found.words()
    slower, games = _audited(monkeypatch, _of(1.2, 2000, 1), _of(2.0, 2000, 2))
    assert (slower.verdict, len(games)) == (Verdict.CONTRADICTED, 2)


def test_a_claim_that_audits_before_contradict_stays_so(monkeypatch):
    known = {"eavesdropper": module.Evidence(at_zero=(400.0,) * 11)}
    found, games = _audited(monkeypatch, _of(0.8, 2000, 1), before=known)
    assert (found.verdict, len(games)) == (Verdict.CONTRADICTED, 1)


def test_evidence_of_audits_before_counts(monkeypatch):
    first, _ = _audited(monkeypatch, _of(1.1, 2000, 1))
    known = {}
    for at in range(2, 12):
        found, _ = _audited(monkeypatch, _of(1.1, 2000, at), before=known)
        known = {"eavesdropper": found.evidence}
        if found.verdict is Verdict.CONTRADICTED:
            break
    assert first.verdict is not Verdict.CONTRADICTED
    assert found.verdict is Verdict.CONTRADICTED
    assert found.evidence.canaries > first.evidence.canaries


def _several(monkeypatch, mus: dict[str, float], errors: dict[str, int]):
    """An audit of 2,000 canaries with so many errors against each adversary, of mu 1 each."""
    coins = np.arange(2000) % 2 == 0

    def guesses(wrong: int) -> Guesses:
        return Guesses(
            scores=np.where(coins ^ (np.arange(2000) < wrong), 1.0, -1.0), included=coins
        )

    def play(game, *, generator, progress=None):
        return Played({name: guesses(errors[name]) for name in game.adversaries}, [])

    monkeypatch.setattr(games_played.Game, "play", play)
    monkeypatch.setattr(evidence, "ranked", total_error)
    game = replace(_game(), adversaries=dict.fromkeys(mus, dict.fromkeys(range(5), EAVESDROPPER)))
    found = audit(game, [_proven(mu, name=name) for name, mu in mus.items()], seed=0)
    return {one.proven.name: one for one in found}


def test_several_adversaries_share_the_risk_as_holm_has_it(monkeypatch):
    # 617 errors are expected of the claim; P(580 or fewer) is .039 and P(570 or fewer) is .012.
    names = dict.fromkeys("abc", 1.0)
    alone = _several(monkeypatch, {"a": 1.0}, {"a": 580})
    assert alone["a"].verdict is not Verdict.CONSISTENT
    shared = _several(monkeypatch, names, {"a": 580, "b": 617, "c": 617})
    assert [one.verdict for one in shared.values()] == [Verdict.CONSISTENT] * 3
    assert shared["a"].single.epsilon > shared["a"].proven.epsilon
    assert shared["a"].together.confidence == pytest.approx(1 - 0.05 / 3)
    assert shared["a"].measured == shared["a"].together.epsilon < shared["a"].proven.epsilon
    assert "(98.3333% confidence, 2000 canaries), within the proven 4.38" in shared["a"].words()
    # One that is taken out leaves more to the others: .039 is below .05, not below .05 / 2.
    stepped = _several(monkeypatch, names, {"a": 575, "b": 540, "c": 617})
    assert stepped["a"].together.confidence == pytest.approx(1 - 0.05 / 2)
    assert stepped["a"].verdict is not Verdict.CONSISTENT


def test_too_few_canaries_measure_nothing_and_how_many_would_do_is_said(monkeypatch):
    few, _ = _audited(monkeypatch, _of(0.1, 50, 1), proven=_proven(0.1))
    assert few.verdict is Verdict.NOT_MEASURED
    assert few.ideal < 0.1 * few.proven.epsilon
    assert "a perfect audit of 50 canaries shows 0" in few.words()
    needed = int(few.words().split("about ")[1].split()[0])
    assert 1000 < needed < 100_000
    more, _ = _audited(monkeypatch, _of(0.1, needed, 1), proven=_proven(0.1))
    assert more.verdict is Verdict.CONSISTENT
    assert more.ideal >= 0.1 * more.proven.epsilon


def test_the_coins_of_a_look_depend_on_its_place_and_the_seed_alone():
    def tossed(seed: int, *place: int) -> list[int]:
        return module._coins(seed, *place).integers(2, size=64).tolist()

    assert tossed(7, 0) == tossed(7, 0)
    assert len({tuple(t) for t in (tossed(7, 0), tossed(8, 0), tossed(7, 1, 1, 0))}) == 3


@pytest.mark.parametrize(
    ("second", "verdict"), [(3.0, Verdict.CONTRADICTED), (0.4, Verdict.CLEARED)]
)
def test_a_single_message_can_contradict_by_itself(monkeypatch, second, verdict):
    def link(mu: float, seed: int) -> LinkGuesses:
        return LinkGuesses("reply of agent 1 to 2", 1, {(0.5, 1.0): 1}, _guesses(mu, 1000, seed))

    whole = {"eavesdropper": _guesses(0.8, 2000, 1)}
    monkeypatch.setattr(
        CanaryGame, "__post_init__", lambda self: object.__setattr__(self, "linked", "eavesdropper")
    )
    found, games = _audited(
        monkeypatch, Played(whole, [link(3.0, 3)]), Played(whole, [link(second, 4)])
    )
    assert found.verdict is verdict
    assert len(games) == 5
    assert found.again_links[0].canaries == 4000
    assert "reply of agent 1 to 2" in found.words()


def test_a_heuristic_figure_is_compared_and_never_contradicted(monkeypatch):
    found, games = _audited(
        monkeypatch,
        Played({"eavesdropper": _guesses(2.0, 2000, 1)}, []),
        proven=_proven(status=Status.HEURISTIC),
    )
    assert found.verdict is Verdict.NOTHING_PROVEN
    assert len(games) == 1
    assert "more than the" in found.words()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status.NO_PROTECTION, "nothing protects"),
        (Status.CANNOT_BE_EXPRESSED, "no bound can be expressed"),
    ],
)
def test_where_epsilon_is_infinite_the_bound_stands_by_itself(monkeypatch, status, said):
    claim = Claim(rounds={(0.0, 0.5): 3})
    proven = Proven(
        name="eavesdropper", epsilon=math.inf, statement=STATEMENT, status=status, claim=claim
    )
    sure = np.where(np.arange(2000) % 2 == 0, math.inf, -math.inf)
    guesses = Guesses(scores=sure, included=sure > 0)
    found, _ = _audited(monkeypatch, Played({"eavesdropper": guesses}, []), proven=proven)
    # No error among 2,000: u = 1 - .0475^(1/2000) and epsilon log((1 - delta) / u - 1).
    assert found.measured == pytest.approx(
        math.log((1 - DELTA) / (1 - 0.0475 ** (1 / 2000)) - 1), 1e-3
    )
    assert found.ideal is None
    assert said in found.words()
    assert found.verdict is Verdict.NOTHING_PROVEN


def test_a_single_messages_figure_is_compared_with_what_an_onlooker_learns(monkeypatch):
    given = Played({"eavesdropper": _guesses(0.9, 4000, 1)}, [])
    monkeypatch.setattr(games_played.Game, "play", lambda *a, **k: given)
    single = _proven(0.3, name="single-message", status=Status.HEURISTIC)
    found = audit(_game(), [_proven(), single], seed=0)
    assert [one.verdict for one in found] == [Verdict.CONSISTENT, Verdict.NOT_MEASURED]
    assert "eavesdropper learns more, at least" in found[1].words()


def test_the_claim_is_what_is_accounted_for():
    sensitivity = _exposure(Release(2.0, 0.1, 300, 1), Release(1.0, 1.0, 1, 1, first=0))
    found = claim_of(sensitivity, noise_multiplier=4.0, statement=STATEMENT, rounds=300)
    assert found.rounds == as_events({(2.0, 0.1): 300, (4.0, 1.0): 1})
    half = claim_of(sensitivity, noise_multiplier=4.0, statement=STATEMENT, rounds=150)
    assert half.rounds == as_events({(2.0, 0.1): 150, (4.0, 1.0): 1})


def test_a_leak_is_a_claim_without_noise():
    sensitivity = _exposure(Release(math.inf, 0.1, 300, 1))
    found = claim_of(sensitivity, noise_multiplier=4.0, statement=STATEMENT, rounds=300)
    assert found.rounds == as_events({(0.0, 0.1): 300})


def test_hosts_are_worst_victims():
    graph = star(5)
    bound = contract.bound_to("dpdl", graph, noise_std=contract.CLIP)
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=5, noise_multiplier=bound.noise_multiplier
    )
    names = ["eavesdropper", "neighbour", "final-models"]
    every = dict(joint_sensitivities_by_victim(traces, names, sampling_rate=0.1))
    found = hosts_of(every, canaries=600, encrypted=False)
    assert set(found) == set(names)
    tops = {name: max(e.sum_of_squares for e in of) for name, of in every.items()}
    for name, of in found.items():
        assert of
        for host in of:
            assert every[name][host].sum_of_squares == pytest.approx(tops[name])
            assert host not in of[host].agents


def test_an_encrypted_eavesdropper_sees_end_states():
    found = hosts_of(
        {"eavesdropper": [_exposure(Release(1.0, 0.1, 3, 1))]}, canaries=1, encrypted=True
    )
    assert found["eavesdropper"][0].sees is Sees.END_STATES


def test_a_run_that_is_one_release_is_left_out():
    whole = _exposure(Release(1.0, 1.0, 1, 1), whole_run=True)
    assert hosts_of({"eavesdropper": [whole]}, canaries=1, encrypted=False) == {}
    given = replace(_proven(), name="eavesdropper")
    assert "one release" in module.not_measured(given, []).words()


def test_a_confidence_that_says_nothing_is_refused():
    with pytest.raises(ValueError, match=r"confidence=0.3 must lie in \(0.5, 1\)"):
        audit(_game(), [_proven()], seed=0, confidence=0.3)
    with pytest.raises(ValueError, match="seed=-1 must be at least 0"):
        audit(_game(), [_proven()], seed=-1)


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [(2.0641, "2.06", "2.07"), (8.000000000000009, "8.00", "8.00"), (0.0, "0", "0")],
)
def test_a_measured_bound_is_rounded_down_and_a_proven_one_up(value, least, most):
    assert audited._least(value) == least
    assert audited._most(value) == most
