"""For every algorithm of the registry a log of what it sends costs what its trace costs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overhear.privacy.guarantee import Statement, Status
from overhear.privacy.releases.log import read_log
from overhear.training import ALGORITHMS, bind, build_graph
from overhear.training.accounts.declared import account_of_releases
from overhear.training.algorithms.dp_fedavg import LocalData
from overhear.training.exposure.guarantees import run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.tracing.linear_forms import Contributions, NoiseSources
from overhear.training.tracing.round_trace import RoundTrace
from overhear.training.tracing.trace import trace

AGENTS, ROUNDS, RATE, MULTIPLIER = 4, 3, 0.05, 3.0
# A log states a rate for every vector; the secret coin of a cohort, which several records share, is
# none.
WITHOUT_COHORT = {"dp-fedavg": {"cohort_rate": 1.0, "local_data": LocalData.ONE}}
ADVERSARIES = ["eavesdropper", "neighbour", "neighbour:1", "all-others"]


def releases_of(one: RoundTrace, number: int) -> list[dict[str, Any]]:
    """Messages to those who get them, and what counts as seen to all, each written out in full."""
    contributions = {
        g.start + i: {
            "owner": int(g.owners[i]),
            "batch": f"batch {g.batch}",
            "vector": f"vector {g.first_vector + i}",
            "part": f"block {g.block}",
            "clip": float(g.bounds[i]) if np.isfinite(g.bounds[i]) else "none",
            **({} if g.sampling_rate is None else {"rate": g.sampling_rate}),
        }
        for g in one.groups
        if isinstance(g, Contributions)
        for i in range(g.size)
    }
    sources = {
        g.start + i: ["server" if k < 0 else int(k) for k in g.known_to[i]]
        for g in one.groups
        if isinstance(g, NoiseSources)
        for i in range(g.size)
    }
    found = []

    def add(rows, kind, sender=None, to="all") -> None:
        full = one.expand(rows, unseen=lambda g: np.ones(g.size, dtype=bool)).toarray()
        for i, row in enumerate(full):
            of = [{**contributions[c], "weight": row[c]} for c in contributions if row[c]]
            noise = [
                {"id": f"{number}: {c}", "std": abs(row[c]), "weight": float(np.sign(row[c])),
                 "known_to": sources[c]}
                for c in sources if row[c]
            ]  # fmt: skip
            if of or noise:
                party = 0 if sender is None else int(sender[i])
                found.append(
                    {"from": "server" if party < 0 else party, "to": to if to == "all" else to[i],
                     "kind": f"{kind} {i}", "of": of, "noise": noise,
                     "public": "the trace says what it holds"}
                )  # fmt: skip

    for g in one.messages:
        kept = np.flatnonzero(g.crossing)
        receivers = [
            ["server" if r < 0 else int(r) for r in g.links[g.links[:, 0] == m, 1]] for m in kept
        ]
        add(g.rows[kept], f"{g.kind} {g.start}", g.senders[kept], receivers)
    for place, (what, rows) in enumerate([*one.record.closure, *one.record.end_state.items()]):
        add(rows, f"{what[:100]} {place}")
    return found


def log_of(path: Path, traces) -> Path:
    header = {"schema": "releases-1", "system": "a trace", "agents": AGENTS, "rate": RATE,
              "sampler": "poisson", "depends_on": "public"}  # fmt: skip
    lines: list[dict[str, Any]] = [header]
    lines.append({"round": 0, "releases": releases_of(traces.start, 0)})
    number = 1
    for one, count in traces.rounds:
        for _ in range(count):
            lines.append({"round": number, "releases": releases_of(one, number)})
            number += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, of in ALGORITHMS.items() for form in of.forms]
)
def test_a_log_of_what_an_algorithm_sends_costs_what_its_trace_costs(tmp_path, name, form):
    known = ALGORITHMS[name]
    graph = build_graph("ring", AGENTS)
    bound = bind(
        known, known.settings(**WITHOUT_COHORT.get(name, {})), form=form, graph=graph,
        rounds=ROUNDS, records=50.0,
        learning_rate=0.1, clip_norm=0.5, noise_std=0.5 * MULTIPLIER, batch_size=2.0,
    )  # fmt: skip
    traces = trace(bound.init, bound.step, graph=graph, rounds=ROUNDS, noise_multiplier=MULTIPLIER)
    statement = Statement(delta=1e-5)
    expected = dict(joint_sensitivities(traces, ADVERSARIES, sampling_rate=RATE))
    log = read_log(log_of(tmp_path / "log.jsonl", traces))
    found = account_of_releases(log, statement=statement, adversaries=ADVERSARIES)
    for adversary in ADVERSARIES:
        proven = run_epsilon(expected[adversary], statement=statement, noise_multiplier=MULTIPLIER)
        assert found[adversary].epsilon == pytest.approx(proven, rel=1e-7)
        assert found[adversary].status is not Status.PROVEN
