"""The points of a run at which its attack is mounted, and what has to hold before any work.

A point is a round, a victim, a scenario and a preset. It is also the unit in which an interrupted
attack goes on: a re-enactment draws fresh noise, so half a search is of no use to the next one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from ...attacks.interception.equations import FROM_START
from ...attacks.interception.names import Scenario, scenarios_of
from ...attacks.interception.replay import ReplayedRun, check_deviation
from ...attacks.inversion.crafted import least_rounds, why_not_crafted
from ...attacks.scoring.columns import with_columns
from ...privacy.errors import InputError
from ...privacy.formats.tensor_archives import read_header
from ...privacy.guarantee import ACTIVE_NEIGHBOUR, parse_adversary
from ...training.engine.tensor_file import load_checkpoint, round_name
from ...training.graphs.graph import ScheduledGraph, Topology
from ...training.own.names import algorithm_named
from ..folder import folder as run_folder
from ..folder.released import snapshot_round
from ..run_file.build import Built
from ..run_file.run_file import RunFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Where and how to attack once.

    Attributes:
        round: the first attacked round.
        victim: whose batch is attacked.
        scenario: what is intercepted.
        preset: name of the reconstruction's settings.
    """

    round: int
    victim: int
    scenario: Scenario
    preset: str

    @property
    def name(self) -> str:
        """What the point's files are called.

        >>> Point(round=4, victim=0, scenario=Scenario.VIEW, preset="dlg").name
        'round4-agent0-view-dlg'
        """
        return f"round{self.round}-agent{self.victim}-{self.scenario}-{self.preset}"


def points_of(config: RunFile) -> list[Point]:
    """Every point of a run file once, in the order of the report."""
    asked = tuple(map(Scenario, config.attack.scenarios))
    every = itertools.product(
        config.attack.rounds,
        config.intercept.victims or (0,),
        asked or scenarios_of(config.algorithm.name),
        config.attack.presets,
    )
    points = (Point(round=r, victim=v, scenario=s, preset=p) for r, v, s, p in every)
    return list(dict.fromkeys(points))


def check_attack(folder: Path, config: RunFile, *, built: Built) -> None:
    """Refuse what cannot be attacked, as far as the data and the run's folder decide it.

    Raises:
        ValueError: there are no images or rows, no links, points or messages, or too few records.
    """
    check_attackable(config, built=built)
    for number in config.attack.rounds:
        path = folder / run_folder.TRANSCRIPT / round_name(number)
        if not path.is_file():
            raise InputError(
                f"{path} is missing: the transcript is empty for round {number}, so there is "
                "nothing to attack; name it in [intercept] rounds and train again"
            )
        _check_whole(path)


def _check_whole(path: Path) -> None:
    """Refuse a transcript that was cut off or damaged."""
    try:
        metadata = read_header(path).metadata
    except InputError as error:
        raise InputError(
            f"{path} is cut off or damaged ({error}); put it back as it was written"
        ) from error
    if "round" not in metadata:
        raise InputError(f"{path} is no transcript of a round; put it back as it was written")


def check_attackable(config: RunFile, *, built: Built) -> None:
    """Refuse what cannot be attacked, as far as the data and the graph decide it.

    Raises:
        ValueError: there are no images or rows, no links, no points, or too few records.
    """
    # Records have labels, are clipped one by one, and cross a link.
    data = built.data
    if not data.image:
        with_columns(data)
    if data.outputs:
        raise InputError(
            f"data {data.name!r} has numbers to predict, and attacks rebuild records that have a "
            "label; overhear audit measures what the run leaks of them"
        )
    if built.by_user:
        raise InputError(
            "the step clips the sums of users, and attacks rebuild records from sums in which each "
            "is clipped by itself: what they would find is not measured"
        )
    if (getattr(built.settings, "clip_quantile", None) or 1.0) < 1.0:
        raise InputError(
            "clip_quantile clips gradients to a norm that the records of a batch decide, for which "
            "attacks have no rule: what they would find is not measured; attack the run without it"
        )
    if built.setting.graph.agents < 2:
        raise InputError("agents=1: nothing crosses a link, so nothing can be intercepted")
    for key in ("rounds", "presets"):
        if not getattr(config.attack, key):
            raise InputError(
                f"[attack] {key} is empty, so there is nothing to attack; name a {key[:-1]}"
            )
    # Public records are weighed one at a time, and have to be known.
    prior = config.attack.prior
    if prior is not None and not Path(prior).expanduser().exists():
        raise FileNotFoundError(f"[attack] prior={prior!r}: no file or folder of records is there")
    known = prior is not None or data.image or not data.held_out
    if "posterior" in config.attack.presets and config.attack.batch > 1:
        raise InputError(
            "[attack] presets: posterior weighs public records one at a time, and not "
            f"batch={config.attack.batch}; use matched, or set batch = 1"
        )
    if "posterior" in config.attack.presets and not known:
        raise InputError(
            "[attack] presets: posterior weighs public records, and none of "
            f"{data.name!r} are known; use matched, or name some by [data] test or [attack] prior"
        )
    most = len(data.test_targets) - 1  # one is left for the mean public image
    if config.attack.images > most:
        raise InputError(
            f"[attack] images={config.attack.images} must be at most {most}, because one public "
            f"test record of {data.name!r} must be left to guess from; lower it"
        )
    # Points lie in the graph; crafted models are known for some networks alone.
    for point in points_of(config):
        _neighbour_of(point.victim, point.round, config, built=built)
    who = _deviating(config, built=built)
    if who is not None:
        check_deviation(config.algorithm.name)
        model, shape = built.setting.model, tuple(data.test_inputs.shape[1:])
        why = why_not_crafted(model, shape, records=config.attack.batch)
        if why:
            raise InputError(
                f"[attack] adversary={config.attack.adversary!r}: no crafted model is known for "
                f"this network, because {why}; attack as neighbour:{who}, or use a network such as "
                "linear, mlp or conv4"
            )
        least = least_rounds(model, shape)
        if config.attack.together < least:
            raise InputError(
                f"[attack] together={config.attack.together} must be at least {least}: of this "
                f"network crafted models show a record piece by piece, in as many rounds; set "
                f"together = {least}, or attack as neighbour:{who}"
            )


def _deviating(config: RunFile, *, built: Built) -> int | None:
    """The agent that deviates; None where nobody does."""
    name = config.attack.adversary
    if not name.startswith(ACTIVE_NEIGHBOUR):
        return None
    (agent,) = parse_adversary(name, built.setting.graph.agents, deviating=True).agents
    return agent


def _neighbour_of(victim: int, round: int, config: RunFile, *, built: Built) -> int:
    """An agent that is linked to the victim, in the attacked rounds where some are absent."""
    graph: Topology = built.setting.graph
    # Somebody hears the victim in each attacked round.
    if isinstance(graph, ScheduledGraph):
        for number in range(round, round + config.attack.together):
            if graph.at(number).degree(victim) < 2:
                raise InputError(
                    f"in round {number} nothing of agent {victim} is sent: it is absent by the "
                    "list of [participation], or all of its neighbours are; attack another "
                    "round, which [intercept] rounds must name before training, or another agent"
                )
        graph = graph.at(round)
    # The one who deviates, or else any neighbour.
    active = _deviating(config, built=built)
    if active is not None:
        if active == victim or active not in graph.neighbours(victim):
            raise InputError(
                f"[attack] adversary={config.attack.adversary!r} is no neighbour of victim "
                f"{victim} in round {round}, who replies to neighbours alone; name one"
            )
        return active
    found = next((j for j in graph.neighbours(victim) if j != victim), None)
    if found is None and config.graph.name == "server":
        return victim  # all that is sent goes through the server
    if found is None:
        raise InputError(
            f"[intercept] victims={victim} has no neighbour in graph {config.graph.name!r}, so "
            "nothing of it is sent; name another agent"
        )
    return found


def trial_of(
    folder: Path, config: RunFile, *, built: Built, round: int, victim: int, multiplier: float
) -> ReplayedRun:
    """The attacked rounds, from the snapshot before them, or from the start.

    Args:
        built: its objects.
        multiplier: noise multiplier of the run.

    Raises:
        FileNotFoundError: the run kept no snapshot before the round.
        ValueError: nobody is linked to the victim, or the trial does not fit the run.
    """
    # The snapshot to start from, and what the adversary can read.
    owner = _neighbour_of(victim, round, config, built=built)
    start = snapshot_round(round)
    if algorithm_named(config.algorithm.name).blocks > 1 and round <= FROM_START:
        start = 0  # its estimates go on from round to round, and hold what was sent before
    name = f"{run_folder.CHECKPOINTS}/{round_name(start)}"
    adversary = config.attack.adversary
    if config.graph.links == "encrypted" and adversary == "eavesdropper":
        adversary = "final-models"  # all that an outsider can read
    return ReplayedRun(
        setting=built.setting,
        algorithm=config.algorithm.name,
        form=built.form,
        settings=built.settings,
        learning_rate=built.learning_rate,
        clip_norm=built.clip_norm,
        noise_std=built.noise_std(multiplier),
        batch_size=built.batch_size,
        records_per_agent=len(built.data.targets) / built.setting.graph.agents,
        snapshot=load_checkpoint(run_folder.require(folder, name)).state if start else None,
        snapshot_round=start,
        round=round,
        rounds=config.training.rounds,
        victim=victim,
        model_owner=owner,
        together=config.attack.together,
        adversary=adversary,
    )
