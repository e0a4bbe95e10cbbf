"""One run over ranks: every rank runs the same program, and rank 0 alone writes.

Each rank loads the run file, plans the run, makes its engine and goes through the same rounds: the
calls that bring rows together come in the same order everywhere, because all of it follows from the
run file. Rank 0 alone has the folder and the terminal. A run that goes on gets its checkpoint from
rank 0, not from the folder, which other machines need not have.

**Before a release** all ranks meet at a barrier, and rank 0 comes to it with the round in its
ledger, synced. The barrier is a byte from each rank to each, so that every rank knows who is late;
torch's `monitored_barrier` tells it to rank 0 alone. It goes by gloo also where rows go by NCCL,
which does not notice that a process is gone.

**Time limits.** A process that is gone closes its connections, and the others notice at once. One
that hangs, or that a cut link hides, is missed by those who wait for it longer than a limit. Until
the first release that is ten minutes or more: ranks plan at different paces, and rank 0 reads the
folder and accounts for what was released before. Afterwards it is `timeout`. What rank 0 does while
the others wait must fit into it: writing a checkpoint, a transcript and the ledger. Evaluating is
no such thing, since every rank evaluates. A rank that was only slow is named too, with the option
that gives it longer.

**No stranger.** What is read from the store, and who is connected, is held against the secret of
the ranks (`overhear.runs.hosts`). What goes between ranks has a form of its own: texts in JSON,
tensors of a stated shape, exit codes of a closed set. Nothing is unpickled.

**Failing together.** The first rank that fails leaves its exit code at the store and says why; the
others find the code, rank 0 once it misses that rank and the rest at once, and end with it in
silence. The process that started the ranks (`launch`, torchrun) keeps the store, so it is there
whichever rank is gone; where rank 0 has to keep it, rank 0 ends last.

**Stopping together.** The byte says whether its rank was asked to stop. Rank 0, asked or told so at
the barrier before, comes without the next round in its ledger, and all end there.

**Once the folder is closed** the run is finished, whichever rank is lost afterwards: rank 0 says so
at the store, and the others, and who started them, end with exit code 0.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, cast

import safetensors.torch
import torch
import torch.distributed as dist

from ...privacy.errors import InputError
from ...training.data.store import digests_of
from ...training.engine.exchange import MissingRank, Ranks, gather
from ...training.engine.tensor_file import Checkpoint
from ...training.models.parameters import flatten
from ..errors import STATED, ContradictedProof, as_stated, sentence
from ..plan.plan import Plan
from ..run_file.build import Built
from ..run_file.run_file import RunFile
from ..run_file.tables import gpu_number, names_of
from ..run_file.trust import digest_of_sources
from ..stop import Interrupted, Stop, tell
from . import folder as run_folder
from . import rendezvous
from .names import CLOSED, FAILED_FIRST, SAID
from .place import Place, check_same_facts, program_facts

_CRASH, _FAILED, _CONTRADICTED, _INTERRUPTED = 1, 2, 4, 130  # exit codes
_PREPARING = 600.0  # seconds, at the least, for what comes before the first release
_REACHING = 180.0  # seconds, at the least, in which the host of rank 0 must keep the store
_CONNECTING = 30.0  # seconds, at the least, in which ranks that have all come connect
_HEARING = 5.0  # seconds in which a store answers, and all ranks have asked it why one failed
_POLL, _PRECEDENCE = 0.1, 0.5  # of these rank 0 has the second to say why it ends at once


def take_device(name: str, place: Place) -> None:
    """Give this process a GPU, where the run computes on GPUs; ranks take turns at them.

    Raises:
        ValueError: it is one GPU by its number, on which all ranks would compute.
    """
    if gpu_number(name) is not None:
        raise InputError(
            f"device={name!r} is one GPU, and ranks take turns at all of them; use "
            "device='cuda', with CUDA_VISIBLE_DEVICES for some of the GPUs"
        )
    if name != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())


def facts_of(config: RunFile, built: Built, plan: Plan) -> dict[str, str]:
    """What must be the same on all ranks beside the program, told once a run is planned."""
    setting = built.setting
    model = flatten(setting.model).detach().cpu().contiguous()
    records = hashlib.sha256()
    for shard in setting.shards:
        records.update(f"{shard.size} ".encode())
        records.update(digests_of(shard).tobytes())
    edges = hashlib.sha256()
    for graph in setting.graph.graphs:
        for array in (graph.receivers, graph.senders, graph.edge_weights):
            edges.update(array.tobytes())
    return {
        "run file": config.to_toml(),
        "noise multiplier": repr(float(plan.noise_multiplier)),
        "code of yours": digest_of_sources(names_of(config)),
        "initial model": hashlib.sha256(model.numpy().tobytes()).hexdigest(),
        "records": records.hexdigest(),
        "graph": edges.hexdigest(),
        "kind of device": setting.device.type,
    }


class Start(NamedTuple):
    """Where a run begins or goes on: from a checkpoint if there is one, to the last round."""

    last: int
    checkpoint: Checkpoint | None

    def packed(self) -> bytes:
        """A line of JSON, and the state as a safetensors file."""
        held = self.checkpoint
        if held is None:
            return json.dumps([self.last, None, {}]).encode() + b"\n"
        told = json.dumps([self.last, held.round, dict(held.facts)]).encode()
        return told + b"\n" + safetensors.torch.save(dict(held.state))

    @classmethod
    def unpacked(cls, data: bytes) -> Start:
        """What was packed."""
        told, _, state = data.partition(b"\n")
        last, at, facts = json.loads(told)
        if at is None:
            return cls(last, None)
        held = safetensors.torch.load(state)
        return cls(last, Checkpoint(round=at, state=held, facts=facts))


class Group:
    """This process among the ranks of one run; made by `joined`.

    Args:
        store: which all ranks share.
        timeout: seconds that a rank may keep the others waiting once rounds are released.

    Attributes:
        ranks: which exchange the engine's rows; None until all ranks have agreed on the run.
        hosts: where each rank runs, in words; nothing where all run on one host.
        asked: the signal that asked another rank to stop, as heard when they last met.
    """

    hosts: tuple[str, ...] = ()

    def __init__(
        self, place: Place, store: rendezvous.RankStore, *, timeout: float, secret: bytes = b""
    ) -> None:
        self.place, self.timeout, self._store, self._secret = place, timeout, store, secret
        self.ranks: Ranks | None = None
        self.asked = 0
        self._finished = threading.Event()
        self._met = threading.Event()

    def meet(self) -> None:
        """Become one process group with the other ranks, which run the same program.

        Raises:
            ConnectionError: the ranks do not meet.
            InputError: this rank runs another program than rank 0.
        """
        program = program_facts(run_folder.environment("").packages)
        guests = rendezvous.introduce(
            self.place, self._store, program=program, limit=self._patience
        )
        self.hosts = rendezvous.hosts_of(guests)
        limit = max(self.timeout, _CONNECTING)
        rendezvous.connect(self.place, self._store, guests, secret=self._secret, limit=limit)
        self._met.set()

    def agree(self, config: RunFile, built: Built, plan: Plan) -> None:
        """Wait until all ranks have planned the run, and compare what they are about to compute.

        Raises:
            InputError: this rank would compute something else than rank 0, or there are more ranks
                than agents.
            MissingRank: a rank did not come, or failed.
        """
        agents, facts = built.setting.graph.agents, facts_of(config, built, plan)
        self._control = Ranks.joined(
            agents, timeout=self.timeout, hosts=self.hosts, secret=self._secret
        )
        first = json.loads(self._from_rank_0(json.dumps(facts).encode()))
        name = "it" if self.hosts else self._control.names(self.place.rank)
        check_same_facts(facts, first, name=name)
        self._meet(self._patience)
        self.ranks = self._control
        if built.setting.device.type == "cuda" and self._own_devices():
            late = timedelta(seconds=2 * self.timeout + _CONNECTING)  # after ranks miss each other
            made = dist.new_group(backend="nccl", timeout=late)
            rows = cast("dist.ProcessGroup", made)  # of which every rank is a member
            self.ranks = replace(self._control, group=rows)

    def _own_devices(self) -> bool:
        """Whether each rank has a GPU of its own, as NCCL needs; gloo goes by way of the host."""
        own = torch.cuda.device_count() >= self.place.local_size
        ranks = self._control
        shares = [range(rank, rank + 1) for rank in range(ranks.size)]
        return bool(
            gather(torch.tensor([[own]], dtype=torch.uint8), shares=shares, ranks=ranks).all()
        )

    def share_start(self, start: Start | None) -> Start | None:
        """Where the run begins, as rank 0 knows it from the folder, on every rank.

        Args:
            start: on rank 0; None if the run is finished. The others give None.

        Raises:
            MissingRank: a rank did not come, or failed.
        """
        packed = self._from_rank_0(b"\n" if start is None else start.packed())
        return None if packed == b"\n" else Start.unpacked(packed)

    def barrier(self, signal: int = 0) -> int:
        """Wait until all ranks are here; what rank 0 gave.

        Args:
            signal: on rank 0 the one by which all end here; on the others the one that asked them.

        Raises:
            MissingRank: one did not come in time, or failed.
        """
        first, *others = self._meet(self.timeout, signal)
        self.asked = max(others)
        return first

    @property
    def _patience(self) -> float:
        return max(self.timeout, _PREPARING)

    def _meet(self, limit: float, said: int = 0) -> list[int]:
        ranks = replace(self._control, timeout=limit)
        shares = [range(rank, rank + 1) for rank in range(ranks.size)]
        mine = torch.tensor([[said]], dtype=torch.uint8)
        return list(gather(mine, shares=shares, ranks=ranks).flatten().tolist())

    def _from_rank_0(self, data: bytes) -> bytes:
        """Rank 0's bytes, of which there is one at least, on every rank, once all are here."""
        ranks = replace(self._control, timeout=self._patience)
        shares = [range(min(rank, 1), 1) for rank in range(ranks.size)]  # rank 0 alone has a row
        mine = len(shares[self.place.rank])
        told = torch.frombuffer(bytearray(data), dtype=torch.uint8)[None, :]
        size = gather(torch.tensor([[told.shape[1]]])[:mine], shares=shares, ranks=ranks)
        row = told if mine else told.new_empty(0, int(size))
        return gather(row, shares=shares, ranks=ranks).numpy().tobytes()

    def close(self) -> None:
        """Tell all ranks, and who started them, that the folder is closed: the run is finished."""
        _ask(lambda: self._store.set(CLOSED))  # which nobody needs to know unless a rank is lost

    def finish(self) -> None:
        """Let the others end with rank 0, once it has closed the folder; nobody is missed then.

        Raises:
            MissingRank: a rank is gone, and nothing tells that the folder was closed.
        """
        if self.place.rank == 0:
            self.close()
        try:
            self.barrier()
        except MissingRank:
            if not self._is_closed():
                raise
        self._finished.set()
        dist.destroy_process_group()

    def _is_closed(self) -> bool:
        """Whether rank 0 closes the folder in its time, although a rank is gone."""
        until = time.monotonic() + self.timeout
        while (closed := _ask(lambda: self._store.has(CLOSED))) is False:
            failed = _ask(lambda: self._store.has(FAILED_FIRST))
            if time.monotonic() > until or failed is not False:
                return False
            time.sleep(_POLL)
        return closed is True

    def fail(self, error: BaseException) -> NoReturn:
        """End this process; the first rank that fails says why, and all have its exit code."""
        if isinstance(error, MissingRank):
            error = ConnectionError(
                f"{error}: --resume continues the run, and --rank-timeout gives a rank that is "
                "only slow longer"
            )
        code = error.code if isinstance(error, Interrupted) else _INTERRUPTED
        if isinstance(error, Exception):
            error = as_stated(error)
            code = _FAILED if isinstance(error, STATED) else _CRASH
            code = _CONTRADICTED if isinstance(error, ContradictedProof) else code
        mine = (self.place.rank, code)
        held = _ask(lambda: self._store.claim(*mine))
        if held in (None, mine):
            self._say(error, code)
        if held is not None:
            code = held[1]
            _ask(lambda: self._part(said=held == mine))
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)  # a group that has lost a rank cannot be taken down in order

    def _say(self, error: BaseException, code: int) -> None:
        """Say why this rank fails, as one process would."""
        if code == _CRASH:
            tell(f"rank {self.place.rank} of {self.place.size} crashed:")
        if code == _CRASH or (code == _FAILED and os.environ.get("OVERHEAR_DEBUG") == "1"):
            tell("".join(traceback.format_exception(error)).rstrip())
        if code in (_FAILED, _CONTRADICTED) and isinstance(error, Exception):
            told, rank = sentence(error), self.place.rank
            if self.hosts:
                told = f"rank {rank} of {self.place.size} on {self.hosts[rank]}: {told}"
            tell(f"error: {told}")
        if isinstance(error, Interrupted):
            tell(str(error))

    def _part(self, *, said: bool) -> None:
        """Let the others end, too, once this rank has said why; with their store here, end last."""
        if said:
            self._store.set(SAID)
        self._store.set(f"heard/{self.place.rank}")
        while self.place.keeps_store and not self._store.has(
            *(f"heard/{rank}" for rank in range(self.place.size))
        ):
            time.sleep(_POLL)

    def end_at_once(self, stopped: Interrupted) -> NoReturn:
        """End this process from another thread, after rank 0 has said why."""
        time.sleep(_PRECEDENCE if self.place.rank else 0.0)
        self.fail(stopped)

    def end_with_another(self) -> None:
        """End this process once another rank has said why it fails; for a thread of its own.

        Rank 0, which writes the folder, does so only until the ranks have met: gloo may wait for a
        rank that is gone much longer than it was told to.
        """
        until = self._finished if self.place.rank else self._met
        try:
            while not until.wait(_POLL):
                if self._store.has(SAID):
                    _, code = self._store.first()
                    self._part(said=False)
                    os._exit(code)
        except rendezvous.LyingStore as error:
            self.fail(error)
        except RuntimeError:
            return  # nobody keeps the store any more


def _ask(store: Callable[[], Any]) -> Any:
    """What a store answers; None if it lies or does not, since its host may hang."""
    found: list[Any] = [None]

    def ask() -> None:
        with contextlib.suppress(RuntimeError, rendezvous.LyingStore):
            found[0] = store()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_HEARING)
    return found[0]


@contextlib.contextmanager
def joined(place: Place, *, timeout: float, stop: Stop | None = None) -> Iterator[Group]:
    """Be one of the ranks; when the block fails on one, all processes end with one exit code.

    Args:
        stop: of the command; asked to stop, all processes end with one exit code, too.

    Raises:
        ConnectionError: the ranks do not meet.
    """
    stop, secret = stop or Stop(), rendezvous.secret_of_ranks()
    store = rendezvous.store_of(place, secret=secret, limit=max(timeout, _REACHING))
    group = Group(place, store, timeout=timeout, secret=secret)
    watching = threading.Thread(target=group.end_with_another, daemon=True)
    watching.start()
    stop.at_once = group.end_at_once
    try:
        stop.quiet = place.rank > 0
        group.meet()
        yield group
        group.finish()
        watching.join(_HEARING)  # a thread that the interpreter's end meets in the store aborts
    except SystemExit as leave:  # of code that the run calls, such as a model of the user's
        group.fail(RuntimeError(f"the command was left by {leave!r} before its end"))
    except (Exception, KeyboardInterrupt, Interrupted) as error:  # noqa: BLE001 - it ends the process
        group.fail(error)
