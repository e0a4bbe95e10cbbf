"""Signals at random moments: what is left after each, held against a witness and a whole run.

`python benchmarks/kills.py --signals N` runs this. A child runs a command of ours: train in one
process or over two ranks, attack, audit. At a random moment of it a signal comes, SIGINT, SIGTERM
or SIGHUP; every fifth train gets a second one. What is left is checked and the command goes on, by
--resume or once more, to its end, which has to be that of a command that nobody disturbed. The
witness writes down outside of the folder which round is released, with a digest of its states.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch.distributed import TCPStore

from overhear.commands import cli
from overhear.privacy import read_ledger
from overhear.runs.folder import folder as run_folder
from overhear.runs.folder.sums import check_sums
from overhear.training.engine.checkpoint import load_checkpoint
from overhear.training.engine.engine import Engine

RUN = """
[data]
name = "digits"
agents = 4
[model]
name = "linear"
[algorithm]
name = "dp-dpsgd"
[privacy]
noise_multiplier = 1.5
delta = 1e-4
[training]
rounds = 40
sampling_rate = 0.1
checkpoint_every = 7
evaluate_every = 5
evaluation_noise_seed = 3
layout = "loop"
[intercept]
rounds = [2, 29]
[attack]
rounds = [2, 29]
presets = ["matched"]
scenarios = ["view"]
restarts = 1
images = 1
[audit]
canaries = 40
checked_rounds = 2
seed = 5
"""
ROUNDS = 40
KINDS = ("train", "train", "attack", "ranks", "audit")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SENTENCE = {
    "stopped": r"^stopped( after round \d+)?; .+$",
    "at once": r"^ended at once; .+$",
    "done": r"^the signal came when the work was done, so nothing was stopped$",
}


@dataclass
class Tally:
    """What is counted, by kind of command; `failures` says what did not hold."""

    counts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: list[str] = field(default_factory=list)

    def hold(self, kind: str, what: str, holds: bool, told: object = "") -> None:
        """Count a check, and keep what it says if it fails."""
        self.counts[kind][what] += 1
        if not holds:
            self.failures.append(f"{kind}: {what}: {told}")


class Ended(NamedTuple):
    """How the processes of a command ended."""

    codes: list[int]
    said: str
    seconds: float


def witnessed(path: Path) -> None:
    """Write down what the engine of this process releases, from here on."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def seen(engine: Engine, rank: int) -> None:
        state = engine.state.x.rows.detach().numpy().tobytes()
        line = f"{rank} {engine.round} {hashlib.sha256(state).hexdigest()}\n"
        os.write(opened, line.encode())

    advance, start = Engine.advance, Engine.start

    def advanced(self: Engine, **how: object) -> None:
        os.write(opened, b"%d %d begun\n" % (self._mine[0], self.round + 1))
        advance(self, **how)  # type: ignore[arg-type]
        seen(self, self._mine[0])

    def started(self: Engine, **how: object) -> None:
        os.write(opened, b"%d 0 begun\n" % self._mine[0])
        start(self, **how)  # type: ignore[arg-type]
        seen(self, self._mine[0])

    Engine.advance, Engine.start = advanced, started  # type: ignore[method-assign]


def child(arguments: Sequence[str], seen: Path, said: Path, told: dict[str, str]) -> int:
    """A command in a process of its own, forked from this one, which has loaded all; its number."""
    started = os.fork()
    if started:
        return started
    code = 99
    try:
        os.environ.update(told)
        opened = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(opened, 2)
        witnessed(seen)
        code = cli.main(list(arguments))
    finally:
        os._exit(code)
    raise AssertionError


def run(
    arguments: Sequence[str],
    place: Path,
    *,
    ranks: int = 1,
    sent: Sequence[tuple[float, int, Sequence[int]]] = (),
) -> Ended:
    """Run a command to its end.

    Args:
        arguments: of the command.
        place: for what the witness and the command say.
        ranks: processes.
        sent: after how many seconds which signal goes to which of the ranks.
    """
    seen, said = place / "seen", place / "said"
    said.unlink(missing_ok=True)
    told: dict[str, str] = {}
    if ranks > 1:
        store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        told = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCH_CPP_LOG_LEVEL": "FATAL",
        }
    begun = time.perf_counter()
    processes = [
        child(arguments, seen, said, told | ({"RANK": str(rank)} if told else {}))
        for rank in range(ranks)
    ]
    left = dict(enumerate(processes))
    codes = [99] * ranks
    waiting = sorted(sent)
    while left:
        now = time.perf_counter() - begun
        while waiting and waiting[0][0] <= now:
            _, number, to = waiting.pop(0)
            for rank in to:
                if rank in left:
                    os.kill(left[rank], number)
        for rank, process in list(left.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
                del left[rank]
        if now > 3000:
            for process in left.values():
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)
    return Ended(codes, said.read_text() if said.exists() else "", time.perf_counter() - begun)


class Bench:
    """The undisturbed commands, and one disturbed after the other.

    Args:
        held: a folder for all of it.
        draw: of the moments.
    """

    def __init__(self, held: Path, draw: random.Random) -> None:
        self.held, self.draw, self.tally = held, draw, Tally()
        self.file = held / "run.toml"
        self.file.write_text(RUN, encoding="utf-8")
        self.seconds: dict[str, float] = {}
        self.whole = held / "whole" / "out"
        for kind in ("train", "ranks", "attack", "audit"):  # attack and audit work on this folder
            place = held / ("whole" if kind != "ranks" else "whole-ranks")
            place.mkdir(exist_ok=True)
            if kind == "attack":
                shutil.copytree(self.whole, held / "trained")
            out = place / "out"
            ended = run(self._command(kind, out), place, ranks=2 if kind == "ranks" else 1)
            if set(ended.codes) != {0}:
                raise RuntimeError(f"{kind} ends with {ended.codes}: {ended.said}")
            self.seconds[kind] = ended.seconds
            print(f"{kind} takes {ended.seconds:.1f} s", file=sys.stderr)
        self.models = self._final(self.whole)

    def _command(self, kind: str, out: Path, *more: str) -> list[str]:
        if kind in ("train", "ranks"):
            return ["train", str(self.file), "--out", str(out), *more]
        return [kind, str(out)]

    @staticmethod
    def _final(out: Path) -> dict[str, torch.Tensor]:
        return dict(load_checkpoint(run_folder.checkpoint(out, ROUNDS)).state)

    def signal(self, number: int) -> None:
        """One signal, and what comes of it."""
        kind = KINDS[number % len(KINDS)]
        place = self.held / f"{number}"
        place.mkdir()
        out, ranks = place / "out", 2 if kind == "ranks" else 1
        if kind in ("attack", "audit"):
            shutil.copytree(self.held / "trained", out)
        before = _digests(out)
        which = SIGNALS[self.draw.randrange(3)]
        to = [0] if ranks == 1 else self.draw.choice([[0], [1], [0, 1]])
        moment = self.draw.random() * self.seconds[kind]
        sent = [(moment, which, to)]
        twice = kind == "train" and number % 25 == 0
        if twice:
            sent.append((moment + 0.2, which, to))
        ended = run(self._command(kind, out), place, ranks=ranks, sent=sent)
        self._told(kind, ended, which)
        if kind in ("train", "ranks"):
            self._released(kind, out, place, repeats=twice)
            self._resumed(kind, out, place, repeats=twice)
        else:
            self._again(kind, out, place, before, code=ended.codes[0])
        shutil.rmtree(place)

    def _told(self, kind: str, ended: Ended, which: int) -> None:
        """One code of all processes, and the sentence that goes with it."""
        hold, (code, *others) = self.tally.hold, ended.codes
        hold(kind, "all processes end with one code", set(others) <= {code}, ended)
        lines = ended.said.splitlines()
        said = [n for line in lines for n, like in SENTENCE.items() if re.match(like, line)]
        if code == 0:
            self.tally.counts[kind]["signals when it was done"] += 1
            hold(kind, "no more than one sentence", said in ([], ["done"]), ended)
        elif code == -which:  # in the first milliseconds of a process
            self.tally.counts[kind]["signals before it listened"] += 1
        else:
            self.tally.counts[kind]["signals that ended it"] += 1
            hold(kind, "the code is that of the signal", code == 128 + which, ended)
            hold(kind, "one sentence is printed", len(said) == 1, ended)
            self.tally.counts[kind][f"of these {' '.join(said)}"] += 1
        hold(kind, "no traceback is printed", "Traceback" not in ended.said, ended.said)

    def _released(self, kind: str, out: Path, place: Path, *, repeats: bool) -> None:
        """The ledger names each release as often as the witness saw it, and none twice."""
        path = place / "seen"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        begun = Counter((of, int(at)) for of, at, what in lines if what == "begun")
        made: dict[tuple[str, int], set[str]] = defaultdict(set)
        for of, at, what in lines:
            if what != "begun":
                made[of, int(at)].add(what)
        several = {key: found for key, found in made.items() if len(found) > 1}
        self.tally.hold(kind, "no round has two different releases", not several, several)
        if not repeats:
            again = [key for key, count in begun.items() if count > 1]
            self.tally.hold(kind, "no round is released twice", not again, again)
        if not (out / run_folder.LEDGER).exists():
            self.tally.hold(kind, "no ledger, nothing released", not begun, begun)
            return
        held = Counter(read_ledger(out / run_folder.LEDGER).numbers)
        first = Counter({at: count for (of, at), count in begun.items() if of == "0"})
        missing = first - held
        self.tally.hold(kind, "every release is in the ledger, as often", not missing, missing)
        if not repeats:
            self.tally.hold(kind, "and nothing else is", held == first, (held, first))

    def _resumed(self, kind: str, out: Path, place: Path, *, repeats: bool) -> None:
        """The run goes on to the models of the whole one."""
        more = ["--resume"] if (out / run_folder.RUN).exists() else []
        ended = run(self._command(kind, out, *more), place)
        hold = self.tally.hold
        hold(kind, "it goes on to its end", ended.codes == [0], ended)
        if ended.codes != [0]:
            return
        self._released(kind, out, place, repeats=repeats)
        check_sums(out)
        found = self._final(out)
        same = all(torch.equal(value, self.models[name]) for name, value in found.items())
        hold(kind, "its models are those of the whole run", same, out)
        measured = [(one / run_folder.METRICS).read_text() for one in (out, self.whole)]
        hold(kind, "its measurements too", measured[0] == measured[1], measured)

    def _again(
        self, kind: str, out: Path, place: Path, before: dict[str, str], *, code: int
    ) -> None:
        """Nothing is half-written, and the same command comes to the same result."""
        hold, name = self.tally.hold, {"attack": run_folder.ATTACK, "audit": run_folder.AUDIT}[kind]
        done = (out / name).exists()
        hold(kind, "the result is there just where it is done", done == (code == 0), (done, code))
        half = [str(path) for path in out.rglob("*.part")]
        for path in out.rglob("*.png"):
            with Image.open(path) as picture:
                picture.load()
        for path in (out / run_folder.ATTACKS).glob("*.json"):
            json.loads(path.read_text())
        hold(kind, "nothing is half-written", not half, half)
        check_sums(out)
        if not done:
            changed = {n: d for n, d in before.items() if _digests(out).get(n) != d}
            changed.pop(run_folder.SUMS, None)
            hold(kind, "the files of the run are as they were", not changed, changed)
            ended = run(self._command(kind, out), place)
            hold(kind, "the same command ends it", ended.codes == [0], ended)
        check_sums(out)
        same = (out / name).read_bytes() == (self.whole / name).read_bytes()
        hold(kind, "the result is that of a whole one", same, out)


def _digests(out: Path) -> dict[str, str]:
    files = [path for path in out.rglob("*") if path.is_file()]
    return {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def run_stops(signals: int, *, seed: int = 0) -> Tally:
    """Send so many signals, each to a command of its own.

    Args:
        signals: how many.
        seed: of the moments.
    """
    with tempfile.TemporaryDirectory() as held:
        bench = Bench(Path(held), random.Random(seed))
        for number in range(signals):
            bench.signal(number)
            print(f"{number + 1} of {signals}", file=sys.stderr)
            if bench.tally.failures:
                break
    return bench.tally


def table(tally: Tally) -> str:
    """What was counted, as Markdown: a column for each kind of command."""
    kinds = sorted(tally.counts, key=("train", "ranks", "attack", "audit").index)
    rows = dict.fromkeys(what for kind in kinds for what in tally.counts[kind])
    head = ["what", *(f"{kind}" for kind in kinds), "in all"]
    lines = [head, ["---", *["---:"] * (len(kinds) + 1)]]
    for what in rows:
        counts = [tally.counts[kind][what] for kind in kinds]
        lines.append([what, *map(str, counts), str(sum(counts))])
    lines.append(["checks that failed", *["" for _ in kinds], str(len(tally.failures))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
