"""One run over ranks: rank 0 runs it, and tells the others each step that takes all of them.

Rank 0 alone has the folder and the terminal. The others hold their agents and wait for orders: to
make their engine, to start or restore it, to run a round, to bring their rows together. Rank 0
gives an order with its own call of the same step, so all ranks make the same steps in the same
order, and no rank begins a round before rank 0 has it in the ledger.

Orders go through the store of the process group, which also tells that rank 0 lives: it counts
there in a thread of its own, so it may write, measure or plan for as long as it takes. A rank that
is told to stop, or that misses rank 0, ends at once wherever it is; nothing is lost with it, since
whatever a run needs to go on is in the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from ...privacy.errors import InputError
from ...training.engine.engine import Engine
from ...training.engine.exchange import gather, share_root
from ...training.engine.messages import Gathered
from ...training.engine.randomness import SecretRandomness
from ...training.engine.ranks import MissingRank, Ranks
from ...training.engine.transcript import Transcript
from ...training.models.parameters import flatten
from . import folder as run_folder
from .launch import Place
from .run import Session, make_engine

__all__ = [
    "CRASH",
    "FAILED",
    "GATHERING",
    "POLL",
    "another",
    "engine_of",
    "facts_of",
    "form",
    "how_to_go_on",
    "meet",
    "spread",
    "take_device",
]

CRASH, FAILED = 1, 2  # exit codes
POLL = 0.05  # seconds between two looks at the store
GATHERING = 600.0  # seconds from the first rank's start until all have planned the run


def take_device(name: str, place: Place) -> None:
    """Give this process a GPU of its own, where the run computes on GPUs.

    Args:
        name: [training] device.
        place: this process among the ranks.

    Raises:
        ValueError: the machine has fewer GPUs than ranks.
    """
    if name == "cpu" or not torch.cuda.is_available():
        return
    found = torch.cuda.device_count()
    if found < place.local_size:
        raise InputError(
            f"{place.local_size} ranks on a machine with {found} GPUs, but each needs one of its "
            f"own; start {found} ranks, or set training.device=cpu"
        )
    torch.cuda.set_device(place.local_rank)


def facts_of(session: Session) -> dict[str, str]:
    """What must be the same on all ranks, or they would not compute one run."""
    model = flatten(session.built.setting.model).detach().cpu().contiguous()
    targets = [shard.targets.cpu().contiguous() for shard in session.built.setting.shards]
    hashed = hashlib.sha256()
    for one in targets:
        hashed.update(f"{len(one)} ".encode() + one.numpy().tobytes())
    edges = hashlib.sha256()
    for graph in session.built.setting.graph.graphs:
        for array in (graph.receivers, graph.senders, graph.edge_weights):
            edges.update(array.tobytes())
    packages = run_folder.environment("").packages
    return {
        "run file": hashlib.sha256(session.config.to_toml().encode()).hexdigest(),
        "noise multiplier": repr(float(session.plan.noise_multiplier)),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "initial model": hashlib.sha256(model.numpy().tobytes()).hexdigest(),
        "records": hashed.hexdigest(),
        "graph": edges.hexdigest(),
    }


def meet(place: Place, *, timeout: float) -> Store:
    """The store at which all ranks meet; of a rank that `launch` started, on the loopback."""
    limit = timedelta(seconds=max(timeout, GATHERING))
    if place.store_file is None:
        store, _, _ = next(rendezvous("env://", timeout=limit))
        return PrefixStore("overhear", store)
    held = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        None,
        is_master=True,
        timeout=limit,
        wait_for_workers=False,
        master_listen_fd=place.store_file,
    )
    return PrefixStore("overhear", held)


def another(store: Store) -> Store:
    """The same store for another thread: one that waits keeps its own to itself."""
    clone: Callable[[], Store] | None = getattr(store, "clone", None)
    if clone is None:
        raise InputError(
            f"torch {torch.__version__} has stores for one thread alone; install a newer torch to "
            "run over ranks"
        )
    return clone()


def form(store: Store, session: Session, place: Place, *, timeout: float) -> Ranks:
    """The process group of all ranks."""
    backend = "nccl" if session.built.setting.device.type == "cuda" else "gloo"
    with _silent():
        dist.init_process_group(
            backend,
            store=PrefixStore("group", another(store)),
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=timeout),
        )
    return Ranks.joined(session.built.setting.graph.agents, timeout=timeout)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep standard output for what the command prints: gloo says there that it is connected."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def engine_of(
    session: Session, ranks: Ranks, *, layout: str, transcript: Transcript | None
) -> Engine:
    """This rank's engine, under the root of rank 0.

    The root is given to `SecretRandomness`, which therefore would not renew it if the engine were
    started again. It is not: a run that goes on is a new process, whose rank 0 draws another.
    """
    training, setting = session.config.training, session.built.setting
    taps = [] if transcript is None else [transcript]
    root = share_root(ranks, root=training.evaluation_noise_seed, device=setting.device)
    built = replace(session.built, setting=replace(setting, layout=layout))
    return make_engine(
        replace(session, built=built),
        randomness=SecretRandomness(root, hardened=training.noise == "hardened"),
        gathered=Gathered(session.config.intercept.rounds, taps),
        ranks=ranks,
    )


def spread(
    state: Mapping[str, Tensor] | None,
    fields: Mapping[str, tuple[str, list[int]]],
    ranks: Ranks,
    *,
    device: torch.device,
) -> dict[str, Tensor]:
    """Rank 0's tensors on every rank; the others give None."""
    found = {}
    for name, (dtype, shape) in fields.items():
        kind = getattr(torch, dtype)
        size = torch.Size(shape).numel() * torch.empty(0, dtype=kind).element_size()
        mine = torch.empty(0, size, dtype=torch.uint8)
        if state is not None:
            mine = state[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)[None]
        shares = [range(min(rank, 1), 1) for rank in range(ranks.size)]  # rank 0 alone has a row
        row = gather(mine.to(device), shares=shares, ranks=ranks).cpu()
        found[name] = row.flatten().clone().view(kind).reshape(shape)
    return found


def how_to_go_on(error: MissingRank) -> str:
    """A rank that is missing, and what to do about it."""
    return f"{error}: --resume continues the run"
