"""Whether what is scored of one host shares noise with what is scored of another.

Canaries of two hosts along the same direction then meet the same noise, their errors go together,
and a limit that takes errors for independent does not hold. Filters W_v and W_w share noise where
W_v^T S W_w is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...privacy.adversary import Adversary
from ...training.tracing.trace import AlgorithmTrace
from .observed_rows import Sight

__all__ = ["shares_noise"]

_MOST_TRACES = 4  # of a run whose rounds differ; of more, noise is taken for shared
_NOTHING = 1e-9  # correlation that rounding may leave


def shares_noise(traces: AlgorithmTrace, onlookers: Mapping[str, Mapping[int, Adversary]]) -> bool:
    """Whether two hosts' scores go together in the view of any adversary.

    Args:
        traces: of the run at its noise.
        onlookers: by name and host, whose view is scored.
    """
    parts = [traces.start, *(one for one, _ in traces.rounds)]
    distinct = list({id(one): one for one in parts if one.has_contributions}.values())
    if len(distinct) > _MOST_TRACES:
        return True
    for of in onlookers.values():
        sights: dict[str, list[int]] = {}
        for host, who in of.items():
            sights.setdefault(who.name, []).append(host)
        # Other views of the same messages hold the same noise.
        seen = {who.name: who for who in of.values()}
        for one in distinct:
            weights = []
            for name, hosts in sights.items():
                sight = Sight(one, seen[name])
                for host in hosts:
                    weights.append(sight.noise_of(host))
            if _together(weights):
                return True
    return False


def _together(parts: list[np.ndarray]) -> bool:
    """Whether rows of different parts, (K, sources) each, are correlated."""
    norms = [np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    units = [part / np.where(n > 0, n, 1.0) for part, n in zip(parts, norms, strict=True)]
    return any(
        float(np.abs(units[i] @ units[j].T).max(initial=0.0)) > _NOTHING
        for i in range(len(units))
        for j in range(i)
    )
