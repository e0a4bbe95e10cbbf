"""Signals at random moments: what is left after each, held against a witness and a whole run.

`python benchmarks/kills.py --signals N` runs this. A child runs a command of ours: train in one
process, as two ranks, or as `train --ranks 2`, which starts its own; attack, audit. At a random
moment of it a signal comes, SIGINT, SIGTERM or SIGHUP, to one of its processes or to all; every
fifth training in one process gets a second one. What is left is checked and the command goes on, by
--resume or once more, to its end, which has to be that of a command that nobody disturbed, but for
the noise that attacks and audits draw anew. The witness writes down outside of the folder which
round is released, with a digest of its states.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch
from disturbed import Ended, run
from PIL import Image

from overhear.privacy import read_ledger
from overhear.runs.folder import folder as run_folder
from overhear.runs.folder.folder import check_sums
from overhear.training.engine.tensor_file import load_checkpoint

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
sampling_rate = 0.02
checkpoint_every = 7
evaluate_every = 5
evaluation_noise_seed = 3
layout = "loop"
[intercept]
rounds = [2, 29]
[attack]
rounds = [2, 29]
presets = ["idlg"]
scenarios = ["view"]
restarts = 1
images = 1
[audit]
canaries = 40
checked_rounds = 2
seed = 5
"""
ROUNDS = 40
_OFTEN = ("train", "train", "attack")
KINDS = (*_OFTEN, "ranks", "audit", *_OFTEN, "launch")
TRAINING = ("train", "ranks", "launch")
PROCESSES = {"ranks": [[0], [1], [0, 1]], "launch": [[0], [-1], [-2], [0, -1, -2]]}
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
        self.trainings = 0
        for kind in dict.fromkeys(("train", *KINDS)):  # attack and audit work on the first folder
            place = held / (f"whole-{kind}" if kind in ("ranks", "launch") else "whole")
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
        if kind in TRAINING:
            more = (*more, "--ranks", "2") if kind == "launch" else more
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
        to = self.draw.choice(PROCESSES.get(kind, [[0]]))
        moment = self.draw.random() * self.seconds[kind]
        sent = [(moment, which, to)]
        self.trainings += kind == "train"
        twice = kind == "train" and self.trainings % 5 == 0
        if twice:
            sent.append((moment + 0.2, which, to))
        ended = run(self._command(kind, out), place, ranks=ranks, sent=sent)
        self._told(kind, ended, which)
        if ended.codes[0] == 0:  # the first of its kind was slower: it had to load everything
            self.seconds[kind] = ended.seconds
        if kind in TRAINING:
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
        ended = run(self._command("train", out, *more), place)
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
        """Nothing is half-written, and the same command comes to a result of the same."""
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
        found, whole = (_settled(one / name) for one in (out, self.whole))
        hold(kind, "the result is of what a whole one is of", found == whole, (found, whole))


def _settled(path: Path) -> list[list[object]]:
    """What was attacked or audited; what came of it differs, since noise is drawn anew."""
    told = json.loads(path.read_text())
    if "scenarios" in told:
        named = ("scenario", "adversary", "round", "victim", "preset", "gallery")
        return [
            [*(p[n] for n in named), *(r["name"] for r in p["rows"])] for p in told["scenarios"]
        ]
    named = ("seed", "settings", "canaries", "runs", "rounds", "hosts", "run_file", "earlier")
    found = [[one["name"] for one in told[part]] for part in ("adversaries", "checks")]
    return [[told[n] for n in named], *found]


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
    kinds = sorted(tally.counts, key=("train", "ranks", "launch", "attack", "audit").index)
    rows = dict.fromkeys(what for kind in kinds for what in tally.counts[kind])
    head = ["what", *(f"{kind}" for kind in kinds), "in all"]
    lines = [head, ["---", *["---:"] * (len(kinds) + 1)]]
    for what in rows:
        counts = [tally.counts[kind][what] for kind in kinds]
        lines.append([what, *map(str, counts), str(sum(counts))])
    lines.append(["checks that failed", *["" for _ in kinds], str(len(tally.failures))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
