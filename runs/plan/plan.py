"""Before training: the noise multiplier for the target, and epsilon for every adversary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from ...privacy.adversary import ALL_OTHERS, SINGLE_MESSAGE, WORST_NEIGHBOUR
from ...privacy.errors import InputError
from ...privacy.guarantee import Guarantee, Statement, Status
from ...privacy.published.claim import PublishedClaim
from ...privacy.view.view import UnsupportedView
from ...training.algorithms import ALGORITHMS, Form, bind
from ...training.algorithms.algorithm import PlannedRun
from ...training.exposure.candidates import CLEAR_DEFAULT, ENCRYPTED_DEFAULT
from ...training.exposure.guarantees import calibrated_multiplier, guarantee
from ...training.exposure.joint_sensitivities import JointSensitivity, joint_sensitivities
from ...training.exposure.whole_run import replace_infinite_by_whole_run
from ...training.graphs.graph import Topology
from ...training.tracing.trace import trace
from ..described import status_word
from ..run_file.build import (
    clip_norm_of,
    data_of,
    graph_of,
    records_of,
    sampling_rate_of,
    statement_of,
)
from ..run_file.run_file import RunFile
from ..run_file.tables import PrivacyTable
from .by_agent import epsilon_by_agent, exposures_by_agent
from .schema import Planned, PlannedAdversary, PublishedBound, Target

_SOME_BATCH = 37.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run will cost.

    Attributes:
        statement: what every epsilon is said of.
        noise_multiplier: given, or calibrated so that the target adversary's epsilon is met.
        target: what the run file asks for.
        guarantees: one for each adversary, worst first.
        exposures: the same adversaries at noise multiplier 1, by name.
        sampling_rate, rounds: what was accounted for.
        message_kinds: what a round sends.
        warnings: sentences for the reader.
        victims: by adversary epsilon of every agent, None for members of it; where asked for.
        published_bound: what the algorithm's paper claims at this noise multiplier.
    """

    statement: Statement
    noise_multiplier: float
    target: Target
    guarantees: Sequence[Guarantee]
    exposures: dict[str, JointSensitivity]
    sampling_rate: float
    rounds: int
    message_kinds: Sequence[str]
    warnings: Sequence[str]
    published_bound: PublishedClaim | None = None
    victims: Mapping[str, Sequence[float | None]] | None = None

    def guarantee(self, adversary: str) -> Guarantee:
        """The statement for one adversary."""
        return next(g for g in self.guarantees if g.adversary == adversary)

    def planned(self) -> Planned:
        """The object that `overhear plan --json` prints."""
        found = Planned(
            version=1,
            noise_multiplier=self.noise_multiplier,
            target=self.target,
            adversaries=[planned_adversary(g) for g in self.guarantees],
            published_bound=None
            if self.published_bound is None
            else _claimed(self.published_bound),
            warnings=list(self.warnings),
        )
        if self.victims is None:
            return found
        every = {name: list(of) for name, of in self.victims.items()}
        return found.model_copy(update={"victims": every})

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON; infinite figures are the string "inf"."""
        return self.planned().dump()


def _claimed(claim: PublishedClaim) -> PublishedBound:
    return PublishedBound(
        paper=claim.paper,
        statement=claim.statement,
        epsilon=claim.epsilon,
        delta=claim.delta,
        caveats=list(claim.caveats),
    )


def planned_adversary(stated: Guarantee) -> PlannedAdversary:
    """The row of a statement."""
    return PlannedAdversary(
        name=stated.adversary,
        victim=stated.victim,
        worst_adversary=stated.worst_adversary,
        joint_sensitivity=stated.joint_sensitivity,
        effective_noise_multiplier=stated.effective_noise_multiplier,
        mu_per_round=stated.mu_per_round,
        epsilon=stated.epsilon,
        delta=stated.delta,
        unit="record",
        adjacency=stated.adjacency.value,
        sampling=str(stated.sampling),
        status=status_word(stated.status),
        bound=str(stated.bound),
        because=stated.because,
    )


def make_plan(
    config: RunFile,
    *,
    graph: Topology | None = None,
    batch_size: float = _SOME_BATCH,
    every_agent: bool = False,
) -> Plan:
    """Account for a run file.

    Args:
        config: the run file.
        graph: its graph, where it was made already.
        batch_size: the normaliser that the run will use. What a round costs must not depend on
            it, so any number does where no data are at hand; this is checked.
        every_agent: whether to give epsilon of every agent's records besides the worst.

    Raises:
        ValueError: a victim or adversary that does not exist.
        UnsupportedView: no noise meets the target, or the view cannot be accounted for.
    """
    graph = graph or graph_of(config)
    rounds, p = config.training.rounds, config.privacy
    # What a round sends and what it is exposed to, at noise multiplier 1.
    needs_records = ALGORITHMS[config.algorithm.name].needs_records
    data = data_of(config) if needs_records or config.training.sampling_rate is None else None
    rate = sampling_rate_of(config, data)
    records = records_of(config, data) if data is not None and needs_records else None
    statement = statement_of(config)
    kinds, found, of_each = _exposures(
        config, graph, rate=rate, records=records, every_agent=every_agent
    )
    # The noise that meets the target; the step as it runs with it must cost what was accounted.
    multiplier = _multiplier(p, found, statement)
    if multiplier > 0:
        _, real, _ = _exposures(
            config,
            graph,
            rate=rate,
            records=records,
            noise_multiplier=multiplier,
            batch_size=batch_size,
        )
        _check_scaling(found, real, multiplier)
    # Epsilon of every adversary, and of every agent where that is asked for.
    every = _guarantees(config, found, statement, multiplier=multiplier)
    victims = {
        name: epsilon_by_agent(
            of, agents=graph.agents, statement=statement, noise_multiplier=multiplier
        )
        for name, of in of_each.items()
    }
    return Plan(
        statement=statement,
        noise_multiplier=multiplier,
        target=_target(p, statement),
        guarantees=every,
        exposures=found,
        sampling_rate=rate,
        rounds=rounds,
        message_kinds=kinds,
        warnings=_warnings(config, every),
        published_bound=_published_bound(
            config,
            graph,
            every,
            statement=statement,
            multiplier=multiplier,
            rate=rate,
            records=records,
            exposures=found,
        ),
        victims=victims if every_agent else None,
    )


def _target(privacy: PrivacyTable | None, statement: Statement) -> Target:
    if privacy is None:
        return Target(epsilon=None, delta=statement.delta, adversary=None)
    return Target(epsilon=privacy.epsilon, delta=statement.delta, adversary=privacy.adversary)


def _multiplier(
    privacy: PrivacyTable | None, found: Mapping[str, JointSensitivity], statement: Statement
) -> float:
    """The noise multiplier that is given, or that meets the target."""
    if privacy is None:
        return 0.0
    if privacy.epsilon is None:
        return float(privacy.noise_multiplier or 0.0)
    return calibrated_multiplier(
        found[privacy.adversary], statement=statement, epsilon=privacy.epsilon
    )


def _guarantees(
    config: RunFile,
    found: Mapping[str, JointSensitivity],
    statement: Statement,
    *,
    multiplier: float,
) -> list[Guarantee]:
    """What is stated of each adversary, worst first."""
    every = [
        guarantee(name, exposure, statement=statement, noise_multiplier=multiplier)
        for name, exposure in found.items()
    ]
    if config.training.evaluation_noise_seed is not None:
        known = "the noise comes from evaluation_noise_seed, and whoever knows it can subtract it"
        every = [
            replace(g, status=Status.HEURISTIC, because=known) if g.status.is_finite else g
            for g in every
        ]
    every.sort(key=lambda g: (-round(g.epsilon, 9), -round(g.joint_sensitivity, 9)))
    return every


def _exposures(
    config: RunFile,
    graph: Topology,
    *,
    rate: float,
    records: float | None,
    noise_multiplier: float = 1.0,
    batch_size: float = 1.0,
    every_agent: bool = False,
) -> tuple[list[str], dict[str, JointSensitivity], dict[str, list[JointSensitivity]]]:
    """What a round sends, and the exposures of the adversaries asked for and the target's.

    Last those of every agent, where asked for.
    """
    algorithm, clip_norm = ALGORITHMS[config.algorithm.name], clip_norm_of(config)
    bound = bind(
        algorithm,
        config.algorithm.settings(),
        form=Form(config.algorithm.form),
        learning_rate=config.training.learning_rate,
        clip_norm=clip_norm,
        noise_std=noise_multiplier * (1.0 if clip_norm is None else clip_norm),
        # A start of a given size costs as it does beside batches of the run's own size alone.
        batch_size=batch_size if records is None else rate * records,
        graph=graph,
        rounds=config.training.rounds,
        records=records,
    )
    traces = trace(bound.init, bound.step, graph=graph, rounds=config.training.rounds)
    encrypted = config.graph.links == "encrypted"
    p, names = config.privacy, _names(config, agents=graph.agents)
    victim = None if p is None else p.victim
    kinds = list(dict.fromkeys(m.kind for t, _ in traces.rounds for m in t.messages))
    found = joint_sensitivities(
        traces,
        list(dict.fromkeys(names)),
        sampling_rate=rate,
        victim=victim,
        encrypted=encrypted,
    )
    found = replace_infinite_by_whole_run(
        traces, found, sampling_rate=rate, victim=victim, encrypted=encrypted
    )
    of_each = (
        exposures_by_agent(traces, dict(found), sampling_rate=rate, encrypted=encrypted)
        if every_agent
        else {}
    )
    return kinds, dict(found), of_each


def _names(config: RunFile, *, agents: int) -> list[str]:
    """The adversaries that are asked for, the target's among them.

    Raises:
        ValueError: the target's is another agent, and there is none.
    """
    p, encrypted = config.privacy, config.graph.links == "encrypted"
    names = [str(name) for name in (ENCRYPTED_DEFAULT if encrypted else CLEAR_DEFAULT)]
    if p is not None:
        names = [str(name) for name in p.adversaries or names]
        names += [p.adversary] if p.adversary not in names else []
    if agents > 1:
        return names
    if p is not None and p.adversary in (WORST_NEIGHBOUR, ALL_OTHERS):
        raise InputError(
            f"adversary={p.adversary!r} needs another agent than the victim; agents=1, so ask "
            "about the eavesdropper or the final models"
        )
    return [n for n in names if n not in (WORST_NEIGHBOUR, ALL_OTHERS)]


def _check_scaling(
    unit: dict[str, JointSensitivity], real: dict[str, JointSensitivity], multiplier: float
) -> None:
    """The step as it will run must cost what multiplier 1 promised, divided by the multiplier."""
    for name, exposure in real.items():
        for one, other in zip(unit[name].releases, exposure.releases, strict=True):
            expected = one._replace(joint_sensitivity=one.joint_sensitivity / multiplier)
            close = math.isclose(other.joint_sensitivity, expected.joint_sensitivity, rel_tol=1e-6)
            if not close or other._replace(joint_sensitivity=0.0) != expected._replace(
                joint_sensitivity=0.0
            ):
                raise UnsupportedView(
                    f"the step's noise does not keep its proportion to the clipped sums at "
                    f"noise_multiplier={multiplier:g} and another batch_size: {name} has mu "
                    f"{other.joint_sensitivity:g} a round where {expected.joint_sensitivity:g} "
                    "was expected"
                )


def _warnings(config: RunFile, guarantees: Sequence[Guarantee]) -> list[str]:
    said = []
    if any(g.status is Status.HEURISTIC and g.adversary != "single-message" for g in guarantees):
        blame = next(g.because for g in guarantees if g.status is Status.HEURISTIC)
        fix = (
            ' Use form = "repaired" for a proven figure.'
            if Form(config.algorithm.form) is Form.PUBLISHED
            and Form.PUBLISHED in ALGORITHMS[config.algorithm.name].forms
            else ""
        )
        said.append(f"Heuristic: {blame}.{fix}")
    leaking = [g for g in guarantees if g.status is Status.NO_PROTECTION]
    if leaking:
        said.append(f"Nothing protects against {leaking[0].adversary}: {leaking[0].because}.")
    unknown = [g for g in guarantees if g.status is Status.CANNOT_BE_EXPRESSED]
    if unknown:
        who = unknown[0].adversary
        said.append(f"No finite bound can be expressed for {who}: {unknown[0].because}.")
    if config.training.evaluation_noise_seed is not None:
        said.append(
            "evaluation_noise_seed is set: whoever knows it can subtract the noise. For evaluation."
        )
    p = config.privacy
    if p is not None and p.epsilon is not None and p.adversary == SINGLE_MESSAGE.name:
        said.append(
            "The target is that of a single message, which no adversary is limited to; name "
            'adversary = "eavesdropper" for a figure that protects.'
        )
    if config.graph.links == "encrypted":
        said.append(
            "links = encrypted: the eavesdropper is taken to see released final models, sizes and "
            "timing; agents still see what is sent to them."
        )
    return said


def _published_bound(
    config: RunFile,
    graph: Topology,
    guarantees: Sequence[Guarantee],
    *,
    statement: Statement,
    multiplier: float,
    rate: float,
    records: float | None,
    exposures: Mapping[str, JointSensitivity],
) -> PublishedClaim | None:
    """What the algorithm's own paper claims."""
    bound = ALGORITHMS[config.algorithm.name].published_bound
    if bound is None or config.privacy is None:
        return None
    worst = max(guarantees, key=lambda g: g.joint_sensitivity)
    return bound(
        PlannedRun(
            settings=config.algorithm.settings(),
            form=Form(config.algorithm.form),
            graph=graph,
            noise_multiplier=multiplier,
            clip_norm=clip_norm_of(config),
            statement=statement,
            rounds=config.training.rounds,
            sampling_rate=rate,
            records=records,
            joint_sensitivity=worst.joint_sensitivity,
            status=exposures[worst.adversary].status,
        )
    )
