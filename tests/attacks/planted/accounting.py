"""Faults of what is counted: sensitivities that forget something, and who knows which seed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

from overhear.runs.audit import game
from overhear.training.exposure.sensitivity import JointSensitivity
from overhear.training.tracing.traced_round import TracedRound
from tests.attacks.planted.planted import Faults, Kind, Origin

fault = Faults(Kind.MEASURED)
_FEW_ROUNDS = ("training.rounds=5", "training.sampling_rate=1.0", "audit.canaries=1000")


def releases_not_counted(sensitivity: JointSensitivity) -> JointSensitivity:
    """Several releases of a batch count as one."""
    releases = tuple(
        r._replace(joint_sensitivity=min(1.0, r.joint_sensitivity)) for r in sensitivity.releases
    )
    return sensitivity._replace(releases=releases)


def replacement_not_doubled(sensitivity: JointSensitivity) -> JointSensitivity:
    """What the accountant doubles for replace-one comes out as for add-or-remove-one."""
    releases = tuple(
        r._replace(joint_sensitivity=r.joint_sensitivity / 2) for r in sensitivity.releases
    )
    return sensitivity._replace(releases=releases)


@contextmanager
def _counted(apply: Callable[[JointSensitivity], JointSensitivity]) -> Iterator[None]:
    """What the audit is held against, as if the plan had made it."""
    claim, epsilon = game.claim_of, game.run_epsilon
    with (
        patch.object(game, "claim_of", lambda e, **how: claim(apply(e), **how)),
        patch.object(game, "run_epsilon", lambda e, **how: epsilon(apply(e), **how)),
    ):
        yield


# From the right sensitivity to the wrong one.
APPLIED: Mapping[str, Callable[[JointSensitivity], JointSensitivity]] = {
    "releases of one batch not counted": releases_not_counted,
    "replace-one counted as add-or-remove-one": replacement_not_doubled,
}


def _planted(name: str) -> Callable[[], AbstractContextManager[None]]:
    return lambda: _counted(APPLIED[name])


@fault(
    "seed known to more than declared",
    "A holder of the seed subtracts the noise: epsilon is infinite for it.",
    Origin.FIRST,
    kind=Kind.KNOWLEDGE,
    settings=("algorithm.name=whisper",),
    holders="factor",
)
@contextmanager
def seed_known_to_one_agent() -> Iterator[None]:
    """The trace counts each shared source as known to its first holder alone."""
    sound = TracedRound.noise

    def noise(self, like, *, std, factor=None, known_to=None):
        if known_to is not None:
            known_to = [frozenset(sorted(of)[:1]) for of in known_to]
        return sound(self, like, std=std, factor=factor, known_to=known_to)

    with patch.object(TracedRound, "noise", noise):
        yield


fault(
    "releases of one batch not counted",
    "sqrt(n_i) is forgotten: the true mu is sqrt(n_i) times what is stated, 1.73 times on a ring.",
    Origin.FIRST,
    statistical=True,
    settings=_FEW_ROUNDS,
)(_planted("releases of one batch not counted"))
fault(
    "replace-one counted as add-or-remove-one",
    "A record that is replaced moves a sum by 2C: the true mu is twice the stated one.",
    Origin.FIRST,
    statistical=True,
    settings=(*_FEW_ROUNDS, "privacy.adjacency=replace-one"),
)(_planted("replace-one counted as add-or-remove-one"))
