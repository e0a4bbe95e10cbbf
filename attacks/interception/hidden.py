"""Why a view does not single out a victim's gradients: what is told where an attack has nothing."""

from __future__ import annotations

from ...training.engine.recording import WholeCall
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
_UNDETERMINED = "the messages that this adversary sees do not determine it"


def why_hidden(replay: Replay, system: Equations) -> str:
    """Why nothing is observed, in words without a capital and a full stop.

    Args:
        replay: the re-enacted rounds.
        system: the equations of the adversary, which determine no contribution of the victim.
    """
    rounds = replay.rounds.values()
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
    return "; ".join(why) or _UNDETERMINED
