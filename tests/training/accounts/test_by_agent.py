"""Epsilon of every agent's records."""

from overhear.privacy import EAVESDROPPER, Statement, Status
from overhear.training.accounts.result import epsilon_by_agent
from overhear.training.exposure import guarantees as accounting
from overhear.training.exposure.sensitivity import JointSensitivity, Release


def test_agents_alike_are_accounted_for_once_by_the_largest(monkeypatch):
    asked = []

    def counted(exposure: JointSensitivity, **options: object) -> float:
        asked.append(exposure.largest)
        return accounting.run_epsilon(exposure, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("overhear.training.accounts.result.run_epsilon", counted)
    large = 1.0 + 3e-13
    exposures = [
        JointSensitivity(EAVESDROPPER, v, (Release(j, 0.02, 50, 1),), Status.PROVEN, "a test")
        for v, j in enumerate([1.0, large, 2.0, 1.0])
    ]
    found = epsilon_by_agent(
        exposures, agents=5, noise_multiplier=2.0, statement=Statement(delta=1e-5)
    )
    assert sorted(asked) == [large, 2.0]
    assert found[0] == found[1] == found[3] < found[2]
    assert found[4] is None
