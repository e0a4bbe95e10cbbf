"""The ranks of the runs that `test_ranks.py` compares with one process.

    python -m tests.training.engine.rank_worker SIZE FOLDER

Each is a process, forked from one that has imported torch. It runs every case of the table, then
loses a rank that hangs, then one that is gone.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from overhear.training.algorithms import ALGORITHMS, Form
from overhear.training.algorithms.compression import Compressor
from overhear.training.algorithms.compression import Settings as Compressed
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.exchange import MissingRank, Ranks, share_root
from overhear.training.engine.links import Gathered
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.engine.tensor_round import PublicValues
from overhear.training.engine.transcript import Transcript
from overhear.training.graphs.graph import Graph, GraphSequence, Topology
from overhear.training.graphs.topologies import directed_exponential, erdos_renyi, ring
from overhear.training.models.parameters import build_model
from overhear.training.step.floor import Beside, Floor
from tests.training.contract import bound_to, setting

ROUNDS, WHOLE, ROOT, AGENTS = 3, (0, 2, 3), 5, 5
PATIENCE = 1.0  # seconds until a rank that hangs is missed


class Case(NamedTuple):
    algorithm: str
    form: Form
    graph: Callable[[], Topology]
    layout: str = "loop"
    of: Callable[[Topology], Setting] | None = None
    compressor: Compressor | None = None

    @property
    def name(self) -> str:
        of = f"-{self.compressor}" if self.compressor else "-mlp" if self.of else ""
        return f"{self.algorithm}-{self.form}-{self.graph.__name__}-{self.layout}{of}"

    @property
    def stacks(self) -> bool:
        """Whether a pass stacks the data of all neighbours that are on the same rank.

        Then products have other shapes than in one process, and round otherwise.
        """
        return self.algorithm in ("dpdl", "dp-cga") and self.layout != "loop"

    def engine(self, **how: Any) -> Engine:
        graph = self.graph()
        settings = Compressed(compressor=self.compressor) if self.compressor else None
        bound = bound_to(
            self.algorithm, graph, form=self.form, rounds=ROUNDS + 1, settings=settings
        )
        made = (self.of or functools.partial(setting, min_max=bound.blocks == 2))(graph)
        return Engine(replace(made, layout=self.layout), bound, **how)


def irregular() -> Topology:
    return erdos_renyi(7, 0.4, seed=2)


def five() -> Topology:
    return ring(AGENTS)


def in_turn() -> Topology:
    return directed_exponential(AGENTS)


def uneven() -> Topology:
    """Two graphs of which only the columns sum to 1, so that push-sum weights differ."""
    graphs = []
    for shift in (1, 2):
        support = np.eye(AGENTS) + np.roll(np.eye(AGENTS), shift, axis=0)
        support[0, 2] = support[4, 1] = 1.0
        weights = support / support.sum(axis=0)
        graphs.append(Graph(name=f"uneven by {shift}", weights=weights, connected=False))
    return GraphSequence(name="uneven", graphs=tuple(graphs))


def single_precision(graph: Topology) -> Setting:
    """A network whose rows of 2410 floats end in the middle of a vector register."""
    rng = torch.Generator().manual_seed(7)
    return Setting(
        graph=graph,
        model=nn.Sequential(
            nn.Flatten(), build_model("mlp", input_shape=(1, 8, 8), classes=10, generator=rng)
        ),
        shards=[
            Examples(torch.randn(6, 1, 8, 8, generator=rng), torch.randint(10, (6,), generator=rng))
            for _ in range(graph.agents)
        ],
        sampling_rate=0.5,
        device=torch.device("cpu"),
    )


ONE_WAY = ("dsgd", "dp-dpsgd", "dp-netfleet", "dyn-d2p", "ldp-dsgd", "dpmixsgd", "sgda")
CASES = {
    case.name: case
    for case in (
        *(Case(name, form, five) for name, of in ALGORITHMS.items() for form in of.forms),
        *(Case(name, Form.REPAIRED, in_turn) for name in ONE_WAY),
        *(Case("dpdl", form, irregular) for form in Form),
        Case("dyn-d2p", Form.REPAIRED, uneven),
        *(Case("dp-dpsgd", Form.REPAIRED, five, layout) for layout in ("vmap", "book-keeping")),
        *(Case("dpdl", Form.REPAIRED, five, layout) for layout in ("vmap", "book-keeping")),
        Case("dpdl", Form.REPAIRED, five, of=single_precision),
        Case("dpdl", Form.PUBLISHED, five, of=single_precision),
        Case("whisper", Form.REPAIRED, five, of=single_precision),
        Case("porter", Form.REPAIRED, five, compressor=Compressor.RANDOM_K),
    )
}


def cases_of(size: int) -> list[str]:
    """Two ranks run every case, more of them every third."""
    return list(CASES)[:: 1 if size == 2 else 3]


def run(case: Case, **how: Any) -> tuple[Engine, Transcript, Transcript]:
    """A run, what its taps heard, and what was gathered of the rounds to intercept."""
    heard, whole = Transcript(), Transcript()
    engine = case.engine(
        randomness=SecretRandomness(ROOT), taps=[heard, Gathered(WHOLE, [whole])], **how
    )
    engine.start()
    for _ in range(ROUNDS):
        engine.advance()
    return engine, heard, whole


def as_tensors(transcript: Transcript) -> list[tuple[Any, ...]]:
    return [(m.round, m.call, m.kind, m.senders, m.links, m.rows) for m in transcript]


def found_in(case: Case, ranks: Ranks) -> dict[str, Any]:
    engine, heard, whole = run(case, ranks=ranks)
    end = engine.snapshot()
    found = {"end": end, "heard": as_tensors(heard), "whole": as_tensors(whole)}
    engine.restore(end, round=ROUNDS)
    engine.advance()
    return found | {"continued": engine.snapshot()}


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def lost(ranks: Ranks, leave: Callable[[], object]) -> tuple[str, float]:
    """What the other ranks say once the last one leaves in the middle of a run."""
    engine = CASES["dpdl-repaired-five-loop"].engine(randomness=SecretRandomness(1), ranks=ranks)
    engine.start()
    engine.advance()
    start = time.monotonic()
    if ranks.rank == ranks.size - 1:
        leave()
        return "left", 0.0
    try:
        engine.advance()
    except MissingRank as error:
        return str(error), time.monotonic() - start
    return "nobody is missed", 0.0


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    found: dict[str, Any] = {}
    for name in cases_of(size):
        ranks = Ranks.joined(CASES[name].graph().agents, timeout=30.0)
        found[name] = found_in(CASES[name], ranks)
    ranks = Ranks.joined(AGENTS, timeout=30.0)
    floor, rows = Floor((Beside("state x", 1.0, 1.0),)), torch.tensor([[1.0, 0.0], [0.0, 1e5]])
    public = PublicValues(floor, round=1, ranks=ranks)
    found["floor"] = refused(lambda: public.note("state x", rows[min(rank, 1) :][:1]))
    case = CASES["decor-repaired-five-loop"]
    found["other roots"] = refused(
        lambda: case.engine(randomness=SecretRandomness(rank), ranks=ranks).start()
    )
    found["root"] = share_root(ranks), share_root(ranks, root=2**127 + rank)
    fresh = case.engine(ranks=ranks)
    ends = []
    for _ in range(2):  # a start again draws another root, and again the same on all ranks
        fresh.start()
        fresh.advance()
        ends.append(fresh.models())
    found["fresh"] = ends
    asleep = Ranks.joined(AGENTS, timeout=PATIENCE, group=dist.new_group())
    found["hangs"] = lost(asleep, lambda: time.sleep(PATIENCE + 1))
    torch.save(found, folder / f"found-{rank}.pt")
    ranks = Ranks.joined(AGENTS, timeout=20.0)
    gone = lost(ranks, lambda: os._exit(0))
    torch.save(gone, folder / f"gone-{rank}.pt")
    os._exit(0)  # the group cannot be taken down in order any more


if __name__ == "__main__":
    import torch._dynamo  # which vmap loads, once in place of once a rank

    size, folder = int(sys.argv[1]), Path(sys.argv[2])
    process = functools.partial(get_context("fork").Process, target=main)
    ranks = [process(args=(rank, size, folder)) for rank in range(size)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    sys.exit(any(one.exitcode for one in ranks))
