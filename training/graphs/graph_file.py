"""Graphs read from a file: a matrix of weights, or a list of links.

==========  ==================================================================================
Suffix      Contents
==========  ==================================================================================
``.csv``    W, one row a line, separated by commas; ``#`` starts a comment
``.txt``    W, one row a line, separated by blanks; ``#`` starts a comment
``.npy``    W, a NumPy array of numbers
``.json``   ``{"weights": [[...], ...]}``, or ``{"agents": 4, "edges": [[0, 1], [1, 2], ...]}``,
            or ``{"agents": 4, "arcs": [[0, 1], [1, 2], ...]}``
==========  ==================================================================================

W[i, j] is the weight agent i gives to agent j. Edges are links in both directions, arcs go from the
first agent to the second; agents count from 0; self-loops need not be listed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...privacy.bounded import read_bounded
from ...privacy.errors import InputError
from ...privacy.formats.json_text import read_json
from ...privacy.formats.numpy_arrays import header_of, read_array
from .mixing import MOST_AGENTS

__all__ = ["FileKind", "GraphFile", "read_graph_file"]


_LARGEST_TEXT = 256 << 20  # bytes


class FileKind(enum.StrEnum):
    """What a file holds."""

    WEIGHTS = "weights"
    EDGES = "edges"
    ARCS = "arcs"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFile:
    """What a file says: an (A, A) matrix [receiver, sender], of weights or only of links (ones)."""

    matrix: NDArray[np.float64]
    kind: FileKind


def read_graph_file(path: str | Path) -> GraphFile:
    """Reads a weight matrix or a list of links; the suffix decides how.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the suffix is unknown or the contents are not as the module describes.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no graph file at {path.absolute()}")
    try:
        if path.suffix == ".json":
            return _read_json(path)
        if path.suffix == ".npy":
            matrix = _read_npy(path)
        elif path.suffix in {".csv", ".txt"}:
            delimiter = "," if path.suffix == ".csv" else None
            text = read_bounded(path, _LARGEST_TEXT).decode("utf-8")
            _check_agents(text.count("\n"))  # before it is made into lines, and one into cells
            lines = text.split("\n")
            _check_agents(len(lines[0].split(delimiter, MOST_AGENTS)))
            if not any(line.partition("#")[0].strip() for line in lines):
                raise InputError("it holds no numbers")
            matrix = np.loadtxt(lines, delimiter=delimiter, ndmin=2)
        else:
            raise InputError(f"its suffix {path.suffix!r} must be .csv, .txt, .npy or .json")
    except (ValueError, TypeError) as error:
        raise InputError(f"cannot read a graph from {path}: {error}") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"the matrix in {path} has shape {matrix.shape}, must be square (A, A)")
    return GraphFile(matrix=matrix, kind=FileKind.WEIGHTS)


def _check_agents(agents: int) -> None:
    if agents > MOST_AGENTS:
        raise InputError(f"it has {agents} agents, must have at most {MOST_AGENTS}")


def _read_npy(path: Path) -> NDArray[np.float64]:
    """A matrix whose header says no more than the file holds."""
    shape = header_of(path).shape
    if len(shape) != 2:
        raise InputError(f"it announces the shape {shape}, must be (A, A)")
    _check_agents(max(shape))
    return np.asarray(read_array(path), dtype=np.float64)


def _read_json(path: Path) -> GraphFile:
    content = read_json(path, _LARGEST_TEXT)
    known = [{"weights"}, {"agents", "edges"}, {"agents", "arcs"}]
    if not isinstance(content, dict) or set(content) not in known:
        raise InputError(
            'the keys must be "agents" and "edges", or "agents" and "arcs", or "weights" alone'
        )
    if "weights" in content:
        matrix = np.array(content["weights"], dtype=np.float64)
        return GraphFile(matrix=matrix, kind=FileKind.WEIGHTS)
    agents = content["agents"]
    if type(agents) is not int or agents < 1:
        raise InputError(f'"agents"={agents!r} must be a whole number of at least 1')
    _check_agents(agents)
    kind = FileKind.EDGES if "edges" in content else FileKind.ARCS
    links = np.zeros((agents, agents))
    for link in content[kind]:
        ends = link if isinstance(link, list) else [link]
        if len(ends) != 2 or not all(type(end) is int and 0 <= end < agents for end in ends):
            raise InputError(
                f"{kind[:-1]} {link!r} must name two agents between 0 and {agents - 1}; agents "
                "count from 0"
            )
        links[ends[1], ends[0]] = 1.0
        if kind is FileKind.EDGES:
            links[ends[0], ends[1]] = 1.0
    return GraphFile(matrix=links, kind=kind)
