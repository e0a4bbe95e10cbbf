"""What an audit and an attack will take, told from a few of their steps."""

from typing import cast

import numpy as np
import pytest

from overhear.attacks.audit.game import Game
from overhear.privacy.errors import Progress
from overhear.runs.attack.attack import _Ticks
from overhear.runs.audit.audit import audit_config
from overhear.runs.audit.game import cost_of, pricing_checks
from overhear.runs.numbers import Cost
from overhear.runs.run_file.run_file import load_run_file
from tests.runs.audit.test_audit import RUN


class _Played:
    """A game whose start takes 3 s, its first round 20 s of which it works 2, others as is given.

    Attributes:
        played: the last round that was played.
    """

    def __init__(self, now: np.ndarray, *, rounds: int, seconds: float) -> None:
        self._now, self._rounds, self._seconds = now, rounds, seconds
        self.played = -1

    def play(self, *, generator: object, progress: Progress) -> None:
        del generator
        for done in range(self._rounds + 1):
            self._now += {0: (3.0, 3.0), 1: (20.0, 2.0)}.get(done, (self._seconds,) * 2)
            self.played = done
            progress(done, self._rounds, "")


def _cost(
    monkeypatch: pytest.MonkeyPatch, *, rounds: int, seconds: float
) -> tuple[Cost | None, int]:
    now = np.zeros(2)
    monkeypatch.setattr("time.monotonic", lambda: float(now[0]))
    monkeypatch.setattr("time.process_time", lambda: float(now[1]))
    game = _Played(now, rounds=rounds, seconds=seconds)
    return cost_of(cast(Game, game), watched=6), game.played


def test_an_audit_is_priced_by_the_rounds_after_its_first(monkeypatch):
    cost, played = _cost(monkeypatch, rounds=100, seconds=0.5)
    assert cost is not None
    assert cost.steps == 100
    assert cost.seconds == pytest.approx(0.5 * (100 + 12 * 6))
    assert played == 3
    assert cost.words == "about 90 seconds for checks of 6 rounds, and 100 rounds with canaries"


def test_a_slow_round_prices_an_audit_by_itself(monkeypatch):
    cost, played = _cost(monkeypatch, rounds=100, seconds=60.0)
    assert cost is not None
    assert cost.seconds == pytest.approx(60.0 * (100 + 12 * 6))
    assert played == 2


def test_an_audit_of_few_rounds_is_not_played_for_its_price(monkeypatch):
    assert _cost(monkeypatch, rounds=59, seconds=0.5) == (None, 0)


def test_an_audit_of_checks_alone_is_priced_by_its_second_round(monkeypatch):
    now, told = [0.0], list[Cost]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    heard = pricing_checks(told.append, watched=6)
    for done, seconds in enumerate((8.0, 2.0, 3.0, 3.0), start=1):
        now[0] += seconds
        heard(done)
    (cost,) = told
    assert cost.seconds == pytest.approx(5 * (8 + 5 * 2))
    assert cost.words == "about 90 seconds for checks of 6 rounds"


def test_checks_of_one_round_are_priced_by_it(monkeypatch):
    now, told = [0.0], list[Cost]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    heard = pricing_checks(told.append, watched=1)
    now[0] += 20.0
    heard(1)
    assert [one.words for one in told] == ["about 2 minutes for checks of 1 round"]


def test_an_attack_is_priced_once_by_the_steps_of_a_search(monkeypatch):
    now, told = [0.0], list[Cost]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    tick = _Ticks(total=5, progress=None, expect=told.append)
    tick("closed form")
    for step in range(1, 1000):
        now[0] += 7.0 if step == 1 else 0.2  # what comes before a search counts into its first step
        tick.within(step, 1000)
    (cost,) = told
    assert cost.seconds == pytest.approx(0.2 * 1000 * 4)
    assert cost.words == "about 13 minutes for 4 searches, less if some end early"


@pytest.mark.parametrize(
    ("ends", "checks", "again"),
    [(100, 5.0, []), (100, 118.0, ["about 17 minutes for 8 searches"]),
     (30, 7.0, []), (20, 2.0, ["about 30 seconds for 8 searches"])],
)  # fmt: skip
def test_an_attack_is_priced_again_where_whole_searches_take_far_longer_or_less(
    monkeypatch, ends, checks, again
):
    now, told = [0.0], list[Cost]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    tick = _Ticks(total=9, progress=None, expect=told.append)
    for _ in range(9):
        for step in range(1, ends + 1):
            now[0] += 0.1
            tick.within(step, 100)
        now[0] += checks  # of what was found, without a word
        tick("searched")
    assert [one.words for one in told[1:]] == again
    assert told[0].seconds == pytest.approx(90.0)


@pytest.mark.slow
def test_a_short_audit_of_a_run_file_has_a_price(tmp_path):
    (tmp_path / "run.toml").write_text(RUN.replace("rounds = 3", "rounds = 60"))
    told = list[Cost]()
    config = load_run_file(tmp_path / "run.toml", ["audit.canaries=8", "audit.checked_rounds=1"])
    audit_config(config, expect=told.append)
    assert [one.steps for one in told] == [60]
    assert told[0].seconds > 0


@pytest.mark.slow
def test_an_audit_of_checks_alone_has_a_price(tmp_path):
    (tmp_path / "run.toml").write_text(RUN.replace("rounds = 3", "rounds = 6"))
    told = list[Cost]()
    config = load_run_file(tmp_path / "run.toml", ["audit.canaries=8", "audit.checked_rounds=2"])
    audit_config(config, expect=told.append)
    assert [(one.steps, one.of) for one in told] == [(0, "checks of 2 rounds")]
    assert told[0].seconds > 0
