"""The smallest state of an algorithm, and how a run begins with it."""

from typing import NamedTuple

from overhear.training import Agents, Round


class State(NamedTuple):
    x: Agents


def start(round: Round) -> State:
    return State(round.initial())
