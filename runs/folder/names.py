"""Names that ranks share with who starts them: variables of the environment, keys of a store."""

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable that is "True" where who started the ranks keeps their store."""

LIFELINE = "OVERHEAR_LIFELINE"
"""The variable that is "1" for a rank that `overhear train --ranks` has started."""

SECRET = "OVERHEAR_RANKS_SECRET"  # noqa: S105 - a name
"""The variable with what all ranks of a run know and nobody else does; none but its owner reads
the environment of a process, unlike its arguments."""

STORE_FILE = "OVERHEAR_RANKS_STORE"
"""The variable with the path of the store, for ranks that `overhear train --ranks` has started."""

STORE_PREFIX = "overhear"
"""What the keys of a run begin with at the store."""

CAME, CLOSED = "came", "closed"
"""The keys of each rank that has come, and of a run that is finished."""

FAILED_FIRST = "first"
"""The key of which rank failed first, -1 for who started the ranks, and its exit code, as JSON."""

SAID = "said"
"""The key that is there once it has been said why."""
