"""What a run file asks of a comparison of kinds of noise, refused where no design is known."""

from __future__ import annotations

from ...privacy.adversary import (
    ALL_OTHERS,
    EAVESDROPPER,
    FINAL_MODELS,
    WORST_NEIGHBOUR,
    Sees,
    parse_adversary,
)
from ...privacy.errors import InputError
from ...privacy.guarantee import Statement, Unit
from ...privacy.noise.design.workload import MOST_DENSE
from ...training.algorithms.learning_rates import rates_of, read_rates
from ..run_file.build import draws_otherwise, statement_of
from ..run_file.run_file import RunFile

__all__ = ["checked", "known_to", "step_sizes_of", "target_adversary"]


def checked(config: RunFile) -> Statement:
    """What every epsilon is said of; refuses what designs are not known for.

    Raises:
        ValueError: another unit than one record, batches that are not Poisson, absent agents.
    """
    statement = statement_of(config)
    if statement.unit is not Unit.RECORD or statement.holders:
        raise InputError(
            f"unit='{statement.unit}' with {statement.about} has no design of noise; give "
            "unit='record' without holders"
        )
    if draws_otherwise(config):
        raise InputError(
            f"batches={config.training.batches!r} have no design of noise; use batches='poisson' "
            "without largest_batch"
        )
    if config.participation is not None:
        raise InputError(
            "[participation] leaves agents out, whose noise others' is made to cancel; leave the "
            "table out for a design of noise"
        )
    return statement


def step_sizes_of(config: RunFile) -> tuple[float, ...]:
    """A learning rate of each round, where they differ.

    Raises:
        ValueError: they differ in more rounds than a design takes them of.
    """
    rounds = config.training.rounds
    found = rates_of(read_rates(config.training.learning_rate), rounds)
    if not isinstance(found, tuple):
        return ()
    if rounds > MOST_DENSE:
        raise InputError(
            f"learning_rate changes from round to round, and kinds of noise for rounds={rounds} "
            f"are compared for one rate alone; give learning_rate one number, or use at most "
            f"{MOST_DENSE} rounds"
        )
    return found


def target_adversary(config: RunFile) -> str:
    """Whose epsilon the target is.

    Raises:
        ValueError: who sees the final models alone. A plan takes less noise for it than a table
            for whoever hears messages, and agents then learn more than the table says.
    """
    name = "eavesdropper" if config.privacy is None else config.privacy.adversary
    encrypted = config.graph.links == "encrypted"
    if name == FINAL_MODELS.name or (encrypted and name == EAVESDROPPER.name):
        sees = "with links='encrypted' " if encrypted and name == EAVESDROPPER.name else ""
        clear = ", or links='clear'" if sees else ""
        raise InputError(
            f"adversary={name!r} {sees}sees the final models alone, and kinds of noise are "
            f"compared against who hears messages; use '{WORST_NEIGHBOUR}' or "
            f"'{ALL_OTHERS}'{clear}"
        )
    return name


def known_to(name: str, agents: int) -> list[frozenset[int]]:
    """The sets of agents that may be the adversary; none where it knows no noise.

    Raises:
        ValueError: who sees one message alone, or an agent that does not exist.
    """
    if name == WORST_NEIGHBOUR:
        return [frozenset({k}) for k in range(agents)]
    if name == ALL_OTHERS:
        return [frozenset(range(agents)) - {k} for k in range(agents)]
    found = parse_adversary(name, agents)
    if found.sees is Sees.ONE_MESSAGE:
        raise InputError(
            f"adversary={name!r} sees too little to be one; name the eavesdropper, or agents"
        )
    return [found.agents] if found.agents else []
