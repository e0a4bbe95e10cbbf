"""Every table and figure that can be reproduced, by its name, as the files of the papers say it.

cites                its paper in `privacy.published.claim`
[shared]             values that entries name
[shared.smoke]       tables that are named by the key `like`, one or several, and completed
[entry.NAME]         fields of an `Entry`; "$name" is a shared value, spliced inside a list
[entry.NAME.printed] fields of its `Printed`: the paper's own figures
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...privacy.errors import InputError
from ...privacy.noise.correlated import (
    decor_covariance,
    noise_floor,
    optimise_covariance,
    victim_information,
)
from ...privacy.published.claim import CITATIONS
from ...privacy.published.whisper import whisper_information
from ...training.algorithms.decor import best_correlation
from ...training.graphs.graph import Graph
from ...training.graphs.topologies import erdos_renyi
from .paper_result import (
    SCALES,
    Close,
    Computed,
    Entry,
    Order,
    Paper,
    Printed,
    Scale,
    ScaleName,
    Trend,
)

# Noise energy of Whisper, DECOR, LDP and CDP over random graphs, without a run.
#
#     energy = tr(W R W^T)      per coordinate, all agents together, in units of a clipped gradient
#
# with R the covariance that each algorithm adds at one bound b on [R^-1]_ii: I / b for LDP, the
# best ratio of own to pairs' noise for DECOR, the optimum for Whisper; CDP's server leaves
# 1 / (A b).
_AGENTS, _EPSILON, _DELTA, _ROUNDS, _CLIP = 20, 10.0, 1e-5, 5000, 0.1
_PROBABILITIES = (0.2, 0.4, 0.6, 0.8, 1.0)


def energies_of(graph: Graph, *, bound: float) -> dict[str, float]:
    """tr(W R W^T) of each algorithm at one bound on [R^-1]_ii.

    Args:
        graph: with symmetric weights.
        bound: b, in 1 / norm^2.

    Returns:
        By algorithm, in norm^2 per coordinate, all agents together.
    """
    weights, agents = graph.weights, graph.agents
    ratio = best_correlation(graph, horizon=1)
    decor = decor_covariance(weights, local_variance=1.0, pair_variance=ratio)
    decor = decor * (victim_information(decor).max() / bound)
    return {
        "LDP": _after_mixing(weights, np.eye(agents) / bound),
        "DECOR": _after_mixing(weights, decor),
        "Whisper": optimise_covariance(weights, bound=bound).objective,
        "CDP": 1.0 / (agents * bound),
    }


def _after_mixing(weights: ArrayLike, covariance: NDArray[np.float64]) -> float:
    return noise_floor(weights, covariance)


def noise_energies(scale: ScaleName) -> list[Computed]:
    """The lines of the figure: 20 agents, epsilon 10 at delta 1e-5, clip norm .1, 5000 rounds.

    Args:
        scale: two graphs of the least and the largest probability, or ten of each.
    """
    step, seeds = (4, 2) if scale == "smoke" else (1, 10)
    bound = whisper_information(epsilon=_EPSILON, delta=_DELTA, rounds=_ROUNDS, clip_norm=_CLIP)
    found: dict[tuple[str, str], dict[int, float]] = {}
    for probability in _PROBABILITIES[::step]:
        for seed, graph in itertools.islice(_connected(probability), seeds):
            for name, energy in energies_of(graph, bound=bound).items():
                found.setdefault((f"{probability:g}", name), {})[seed] = energy
    return [
        Computed(place={"graph.edge_probability": at, "algorithm.name": name}, values=values)
        for (at, name), values in found.items()
    ]


def _connected(probability: float) -> Iterator[tuple[int, Graph]]:
    """Graphs of seeds 1, 2, ... but for those that fall apart, on which nothing is learned."""
    for seed in itertools.count(1):
        with contextlib.suppress(InputError):
            yield seed, erdos_renyi(_AGENTS, probability, seed=seed)


_PAPERS = ("dpdl", "dpmixsgd", "dyn_d2p", "whisper")
_CLAIMS = {"order": Order, "trend": Trend, "close": Close}
_CLOSED = {"noise-energies": noise_energies}


def _entries(paper: str) -> Iterator[Entry]:
    """The entries of a paper's file."""
    text = (
        resources.files("overhear.reports.reproduced").joinpath(f"{paper}.toml").read_text("utf-8")
    )
    held = tomllib.loads(text)
    cited = CITATIONS[held["cites"]]
    of = Paper(name=cited.name, source=f"{cited.full}{held.get('also', '')}")
    for name, table in held["entry"].items():
        fields = _filled(table, held["shared"])
        scales = fields.pop("scales", {})
        yield Entry(
            name=name,
            paper=of,
            scales={at: Scale(**scales[at]) for at in SCALES if at in scales},
            printed=Printed(**table) if (table := fields.pop("printed", {})) else None,
            claims=tuple(_CLAIMS[one.pop("kind")](**one) for one in fields.pop("claims", ())),
            closed=_CLOSED.get(fields.pop("closed", "")),
            **fields,
        )


def _filled(value: Any, shared: Mapping[str, Any]) -> Any:
    """A value with the shared ones in the places of their names."""
    if isinstance(value, str) and value.startswith("$"):
        return _filled(shared[value[1:]], shared)
    if isinstance(value, list):
        items = [(one, _filled(one, shared)) for one in value]
        lists = (of if isinstance(one, str) and isinstance(of, list) else [of] for one, of in items)
        return list(itertools.chain.from_iterable(lists))
    if not isinstance(value, dict):
        return value
    own = {key: _filled(one, shared) for key, one in value.items() if key != "like"}
    like = value.get("like", [])
    found: dict[str, Any] = {}
    for name in [like] if isinstance(like, str) else like:
        found = _merged(found, _filled(shared[name], shared))
    return _merged(found, own)


def _merged(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables, key by key; where both have one that is no table, the second's."""
    found = dict(first)
    for key, value in then.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found


ENTRIES: dict[str, Entry] = {one.name: one for paper in _PAPERS for one in _entries(paper)}


def entry_named(name: str) -> Entry:
    """The entry of a name.

    Raises:
        ValueError: there is none; the sentence names those that are near.
    """
    if name in ENTRIES:
        return ENTRIES[name]
    close = difflib.get_close_matches(name.lower(), ENTRIES, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(close)}? " if close else ""
    raise InputError(
        f"no table or figure is called {name!r}; {remedy}`overhear reproduce --list` names them"
    )
