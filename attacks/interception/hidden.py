"""Why a view does not single out a victim's gradients: what is told where an attack has nothing."""

from __future__ import annotations

from ...training.engine.recording import WholeCall
from ...training.own.algorithms import algorithm_named
from ...training.step.values import SERVER
from ...training.tracing.linear_forms import Messages
from .equations import Equations
from .replay import Replay

_LOCAL = "what an agent adds is its change over local steps, and no gradient of one batch"
_TRUSTED = "the server releases a trusted sum over agents, and nothing else is sent"
_FUNCTIONS = (
    "messages hold functions of gradients, such as compressed differences, into which a linear "
    "estimate does not look"
)
_BEFORE = (
    "messages hold an estimate that goes on from round to round, of which only what was sent from "
    "round {} on was taken; attack one of the first {} rounds, which are re-enacted from the start"
)
FROM_START = 5
"""The last round up to which a min-max run is re-enacted from its start."""

_UNDETERMINED = "the messages that this adversary sees do not determine it"


def why_hidden(replay: Replay, system: Equations) -> str:
    """Why nothing is observed, in words without a capital and a full stop.

    Args:
        replay: the re-enacted rounds.
        system: the equations of the adversary, which determine no contribution of the victim.
    """
    rounds, trial = replay.rounds.values(), replay.trial
    sent = [of for played in rounds for of in played.trace.groups if isinstance(of, Messages)]
    crossing = [of for of in sent if of.crossing.any()]
    why = []
    if crossing and all((of.senders[of.crossing] == SERVER).all() for of in crossing):
        why.append(_TRUSTED)
    calls = [call for played in rounds for call in played.recorded.calls]
    if any(isinstance(c, WholeCall) and c.operation == "local_update" for c in calls):
        why.append(_LOCAL)
    if not why and system.enters_open:
        why.append(_FUNCTIONS)
    if not why and trial.snapshot is not None and algorithm_named(trial.algorithm).blocks > 1:
        why.append(_BEFORE.format(trial.snapshot_round + 1, FROM_START))
    return "; ".join(why) or _UNDETERMINED
