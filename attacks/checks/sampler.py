"""Sampler: batches are what amplification by sampling is proven for.

Each record must take part in each batch independently, with probability q. Then

    participations of a record in T rounds        Bin(T, q)
    size of a batch of n records                  Bin(n, q)
    records that two batches have in common       Bin(n, q^2), independent over disjoint pairs
    records that both of two batches have or lack Bin(n, q^2 + (1 - q)^2)
    rounds in which two records take part or not  by `pairs`

Counts are tested by their exact distribution. So are their dispersions, the sums of squared
deviations over the variance, by Chernoff's bound on both tails: e^(K(s) - s x) bounds the
probability for any s, K being the exact logarithm of the moment generating function, so p is never
too small however rare a record is.

No batch may hold a record twice, which leaves nothing to chance. A shuffled epoch has every record
equally often and never twice (participations too even, batches too even, none in common); slots
that are fixed meet again as a whole (in common at one lag, and unevenly); a batch that comes once
more agrees with an earlier one in all records; one seed for two agents, or for two batches of a
round, draws the same positions. Rounds after those that ran are drawn as well, but not trained.

Cohorts of a step are held to the same laws, with agents in place of records: those that are drawn
by coins to these, others to those of `schemes`. So are batches of whole users, with users in place
of records; that a user is there with all of its records or none is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.batches.patterns import PatternKind
from ...privacy.batches.sampling import Drawing, Per, Scheme, drawing_of_cohort
from ...privacy.participation import Draws
from ...training.batches import Participation, Sampler, turns_of
from ...training.data.store import Held, Shard
from ...training.engine.recording import WholeCall
from ...training.noise_tests.laws import binomial, chernoff, least
from ...training.step.values import Cohort
from ...training.tracing.linear_forms import Contributions
from . import schemes
from .recording import WatchedRound
from .result import Check, Finding
from .watched_run import WatchedRun

# What has a coin in a batch: a record, a user with all of its records, or a record in its turn.


class Coins(NamedTuple):
    """How a batch is declared to be drawn: q, and what is drawn with it on its own."""

    rate: float
    per: Per = Per.RECORD

    @property
    def named(self) -> str:
        """What has a coin."""
        return f"{self.per}s"

    def draw(self, run: WatchedRun, *, round: int, call: int, agent: int) -> Tensor:
        """(B,) positions of the records that the engine draws."""
        how: dict[str, Any] = {} if self.per is Per.RECORD else {"per": self.per}
        return run.engine.draw_batch(round=round, call=call, agent=agent, rate=self.rate, **how)

    def many(self, run: WatchedRun, agent: int) -> int:
        """How many of an agent's have a coin."""
        if self.per is Per.RECORD:
            return len(run.setting.shards[agent].targets)
        return len(np.unique(run.setting.users_of(agent).numpy()))

    def whose(
        self, found: Finding, run: WatchedRun, at: NDArray[np.int64], *, agent: int, where: str
    ) -> NDArray[np.int64]:
        """The numbers of those whose coins fell for a batch; no user may be there in part.

        Args:
            found: where it is noted if one is; nothing of that is left to chance.
            at: (B,) positions of the batch.
            where: the batch in words.
        """
        if self.per is Per.RECORD:
            return at
        number = np.unique(run.setting.users_of(agent).numpy(), return_inverse=True)[1]
        there = np.zeros(len(number), dtype=bool)
        there[at] = True
        users = np.unique(number[at])
        whole = np.array_equal(there, np.isin(number, users))
        what = f"{where} has some records of a user and not all, where users are drawn as a whole"
        found.exact(whole, what, tests=0 if whole else 1)
        return users


def declared_coins(run: WatchedRun, watched: WatchedRound) -> dict[int, Coins]:
    """How each call of `draw` whose batch is used is declared to draw."""
    rate, found = run.setting.sampling_rate, dict[int, Coins]()
    groups = [g for g in watched.trace.groups if isinstance(g, Contributions)]
    for g, call in zip(groups, watched.recorded.calls, strict=True):
        if isinstance(call, WholeCall):  # of several batches, of all data, or of a cohort
            of_batches = zip(call.batches, g.drawn.rates, strict=False)
            found |= {batch: Coins(rate if own is None else own) for batch, own in of_batches}
        elif g.cohort is None and call is not None:
            own = rate if g.sampling_rate is None else g.sampling_rate
            found[g.batch] = Coins(own, g.users or Per.RECORD)
    return found


def test_turns(
    found: Finding,
    turns: Participation,
    shards: Sequence[Held],
    members: Sequence[schemes.Bools],
    *,
    call: int,
) -> None:
    """Note all tests of the batches of one call of `draw` in turns.

    For each agent `members` are (T, n): whether a record took part in a round, from round 1 on.
    """
    for agent, of in enumerate(members):
        who, rounds = f"of agent {agent} (call {call})", np.arange(1, len(of) + 1)
        broken = np.flatnonzero(turns.pattern.broken(of))
        record = f"record {int(broken[0])}" if broken.size else "a record"
        what = f"{record} {who} takes part otherwise than {turns.pattern.words}"
        found.exact(not broken.size, what, tests=max(of.shape[1], 1))
        allowed = np.array([turns.allowed(agent, t) for t in rounds.tolist()]).reshape(of.shape)
        kept = np.asarray(~(of & ~allowed).any(axis=1))
        schemes.exactly(found, kept, f"a record {who} is drawn out of its turn")
        _test_left_out(found, turns, shards[agent], allowed, agent=agent)
        for axis, each in ((0, "record"), (1, "round")):
            counts, trials = of.sum(axis=axis), allowed.sum(axis=axis)
            p = binomial(counts, trials, turns.coin)
            at = int(p.argmin()) if p.size else 0
            what = f"{each} {at} {who} has other draws than {turns.coin:.4g} in its turns"
            found.note(float(p.min(initial=1.0)), tests=max(p.size, 1), what=what)


def _test_left_out(
    found: Finding, turns: Participation, held: Held, allowed: schemes.Bools, *, agent: int
) -> None:
    """A record more or less changes nobody else's turn."""
    n = allowed.shape[1]
    if n < 2:
        return
    rest = Shard(held, torch.arange(1, n))
    again = turns_of(
        turns.pattern,
        [rest],
        rounds=turns.rounds,
        sampling_rate=turns.coin / turns.pattern.stretch(turns.rounds),
        seed=turns.seed,
    )
    if again is None:
        return
    last = min(len(allowed), 3 * turns.pattern.stretch(turns.rounds) + 2)
    same = [np.array_equal(again.allowed(0, t + 1), allowed[t, 1:]) for t in range(last)]
    what = f"turns of agent {agent}'s records change where its first record is left out"
    schemes.exactly(found, np.array(same, dtype=np.bool_), what)


def of_groups(turns: Participation, members: Sequence[schemes.Bools]) -> list[schemes.Bools]:
    """In a cycle the records of one group in the rounds of their turns, (turns, records) each."""
    if turns.pattern.kind is not PatternKind.CYCLE:
        return []
    b, parts = turns.pattern.number, list[schemes.Bools]()
    times = len(members[0]) // b
    for agent, of in enumerate(members):
        for first in range(b if times else 0):
            parts.append(of[first : times * b : b][:, turns.allowed(agent, first + 1)])
    return [part for part in parts if part.shape[1]]


_FEWEST_ROUNDS = 40
_VARIANCE = 25.0  # of an agent's participations, which decides how many rounds are drawn
_MOST_COINS = 2e4  # agents times rounds of coins, each of which has a stream of its own
_MOST_PLACES = 1e6  # agents times rounds of what is drawn for all of them together


class DrawnCohort(NamedTuple):
    """A cohort as declared, and who is in it in rounds 1, 2, and so on: (rounds, A).

    `drawing` says how it is drawn; None by coins.
    """

    declared: Cohort
    members: NDArray[np.bool_]
    drawing: Drawing | None = None


def drawn_cohorts(run: WatchedRun, *, rounds: int | None = None) -> list[DrawnCohort]:
    """The cohorts that something is averaged under, by default in as many rounds as tests ask."""
    every, agents = list[DrawnCohort](), run.setting.graph.agents
    for cohort in _declared(run):
        how = drawing_of_cohort(Draws((), cohort.rate, str(cohort.scheme)), agents=agents)
        count = rounds or max(_enough_of_cohorts(cohort, how, agents), len(run.rounds))
        drawn = [run.engine.draw_cohort(cohort, round=t + 1) for t in range(count)]
        members = np.array([one.cpu().numpy().ravel() for one in drawn], dtype=np.bool_)
        every.append(DrawnCohort(cohort, members, how))
    return every


def _test_cohorts(
    found: Finding, run: WatchedRun, every: Sequence[DrawnCohort]
) -> list[schemes.Drawn]:
    """All tests of cohorts; by coins they are batches of one holder, whose records are agents."""
    coins, drawn = list[Batches](), list[schemes.Drawn]()
    for cohort, members, how in every:
        if how is None:
            what = f"the secret cohort {cohort.call}, with agents as records"
            coins.append(Batches(what, cohort.rate, [members]))
        else:
            of = Sampler(drawn=(how,), order_seed=run.setting.order_seed)
            drawn += schemes.test_schemes(found, of, [members], call=cohort.call, rate=cohort.rate)
    test_batches(found, coins)
    return [*(one.drawn for one in coins), *drawn]


def cohort_words(every: Sequence[DrawnCohort]) -> str:
    """What cohorts were declared, after "batches were drawn at the declared ..."; or nothing.

    >>> every = [DrawnCohort(Cohort(call=0, rate=0.5, scheme=Scheme.FIXED), np.ones((100, 2)))]
    >>> cohort_words(every)
    ' and cohorts of agents as declared (fixed, 0.5 of them, in 100 rounds)'
    """
    coins = ", ".join(f"{c.rate:.4g}" for c, *_ in every if c.scheme is Scheme.POISSON)
    others = ", ".join(
        f"{c.scheme}, {c.rate:.4g} of them, in {len(members)} rounds"
        for c, members, _ in every
        if c.scheme is not Scheme.POISSON
    )
    said = f" and secret cohorts of agents at the declared rates ({coins})" if coins else ""
    return f"{said} and cohorts of agents as declared ({others})" if others else said


def _declared(run: WatchedRun) -> list[Cohort]:
    """The cohorts that something is averaged under, as declared, by the order of their calls."""
    found = {
        g.cohort: Cohort(call=g.cohort, rate=g.drawn.cohort, scheme=Scheme(g.drawn.scheme))
        for watched in run.rounds
        for g in watched.trace.groups
        if isinstance(g, Contributions) and g.cohort is not None
    }
    return [found[call] for call in sorted(found)]


def _note_recorded(found: Finding, run: WatchedRun, every: Sequence[DrawnCohort]) -> None:
    """Whether the rounds that ran had what the engine draws; nothing of that is left to chance."""
    for cohort, *_ in every:
        for watched in run.rounds:
            if cohort.call >= len(watched.recorded.cohorts):
                continue
            again = run.engine.draw_cohort(cohort, round=watched.number)
            same = bool((again.cpu() == watched.recorded.cohorts[cohort.call].cpu()).all())
            what = f"cohort {cohort.call} of round {watched.number} is not what the engine draws"
            found.exact(same, what)


def _enough_of_cohorts(cohort: Cohort, how: Drawing | None, agents: int) -> int:
    """Rounds that tell a cohort from another, as far as time allows."""
    if how is None:
        return _enough(cohort.rate, agents, most=_MOST_COINS / agents)
    wanted = schemes.enough_rounds([how])
    return _enough(cohort.rate, agents, most=_MOST_PLACES / agents, wanted=wanted)


def _enough(rate: float, holders: int, *, most: float, wanted: float = 0.0) -> int:
    """Rounds in which a coin, and a pair of coins, is told from another rate."""
    variance = rate * (1.0 - rate)
    wanted = max(wanted, _VARIANCE / variance if variance else 0.0)
    wanted = max(wanted, schemes.rounds_for_pairs(rate, holders=holders))
    return math.ceil(max(_FEWEST_ROUNDS, min(wanted, most)))


_NAME = "sampler"
_MOST_DRAWS = 2e7  # records times rounds
_MOST_LAG_WORK = 1e9  # records times rounds times lags


class Batches(NamedTuple):
    """The batches of one call of `draw` in all rounds."""

    call: int | str  # of the round
    rate: float  # q
    members: Sequence[np.ndarray]  # for each agent (T, n) whether a record took part in a round
    rounds: Sequence[int] | None = None  # (T,) their numbers; 1 to T when None
    agents: Sequence[int] | None = None  # the numbers of the agents; 0, 1, ... when None

    def round(self, t: int) -> int:
        """The number of a round by its place."""
        return t + 1 if self.rounds is None else self.rounds[t]

    def agent(self, place: int) -> int:
        """The number of an agent by its place."""
        return place if self.agents is None else self.agents[place]

    @property
    def drawn(self) -> schemes.Drawn:
        """All records of all agents, of which every two are drawn apart."""
        stops = np.cumsum([of.shape[1] for of in self.members])

        def named(place: int) -> str:
            agent = int(np.searchsorted(stops, place, side="right"))
            record = place - (stops[agent - 1] if agent else 0)
            return f"record {record} of agent {self.agent(agent)} (call {self.call})"

        return schemes.Drawn(self.rate, np.concatenate(self.members, axis=1), named)


def sampler_check(run: WatchedRun) -> Check:
    """Test the batches of a run, and those of rounds that would follow, for independence.

    Args:
        run: a watched run; planted batches are drawn as if they were not planted, in rounds enough
            to tell even from random participation.

    Returns:
        Passed if no test is beyond a false-alarm rate of 1e-6 for all of them together.
    """
    # What the run drew, and what further rounds would draw.
    finding = Finding()
    _test_recorded(finding, run)
    every = drawn_batches(finding, run)
    # Batches by how they are drawn: in turns, by a coin for each record, or of one scheme.
    sampler, turns, drawn = run.setting.sampler, run.setting.turns, list[schemes.Drawn]()
    if turns is not None:
        for one in every:
            test_turns(finding, turns, run.setting.shards, one.members, call=int(one.call))
            if groups := of_groups(turns, one.members):
                of_turns = Batches(one.call, turns.coin, groups)
                test_batches(finding, [of_turns])
                drawn.append(of_turns.drawn)
    elif sampler is None:
        test_batches(finding, every)
        drawn += [one.drawn for one in every]
    else:
        for one in every:
            drawn += schemes.test_schemes(
                finding, sampler, one.members, call=int(one.call), rate=one.rate
            )
    # Cohorts of agents, where the step draws any.
    cohorts = drawn_cohorts(run)
    _note_recorded(finding, run, cohorts)
    drawn += _test_cohorts(finding, run, cohorts)
    pairs, by_pair = schemes.test_pairs(drawn)
    rates = ", ".join(f"{of.rate:.4g}" for of in every) or "none"
    declared = f"sampling rates ({rates})"
    if sampler is not None:
        declared = f"scheme ({sampler.scheme}, {sampler.drawn[0].size} records)"
    if turns is not None:
        declared = f"participation {turns.pattern.entry}, with draws of {turns.coin:.4g} in turns"
    declared += cohort_words(cohorts)
    held = [*(of.members[0] for of in every), *(of.members for of in cohorts)]
    words = (
        f"batches of {run.setting.graph.agents} agents were drawn in "
        f"{max(map(len, held), default=0)} rounds at the "
        f"declared {declared}, {len(run.rounds) - 1} of which ran, and tested for "
        f"participations, sizes and what batches have in common{by_pair}"
    )
    return Finding.of([finding, pairs]).check(_NAME, words)


def test_batches(found: Finding, every: Sequence[Batches]) -> None:
    """Note all tests of batches, whoever drew them, one for each call of a round."""
    for batches in every:
        _test_counts(found, batches)
        if 0 < batches.rate < 1:
            _test_dispersion(found, batches)
            _test_lags(found, batches)
            _test_agents(found, batches)
    for i, one in enumerate(every):
        for other in every[i + 1 :]:
            _test_calls(found, one, other)


def _test_recorded(found: Finding, run: WatchedRun) -> None:
    """The batches that ran are those that the engine draws, and their sizes binomial."""
    for watched in run.rounds:
        absent = run.setting.graph.at(watched.number).absent
        for call, coins in declared_coins(run, watched).items():
            for agent, at in enumerate(watched.recorded.batches[call]):
                if at is None:
                    continue
                if agent in absent:  # exact: who takes no part draws nothing
                    what = f"absent agent {agent} drew {len(at)} records in round {watched.number}"
                    found.exact(not len(at), what)
                    continue
                where = f"batch {call} of agent {agent} in round {watched.number}"
                again = coins.draw(run, round=watched.number, call=call, agent=agent)
                same = np.array_equal(at.numpy(), again.numpy())
                found.exact(same, f"{where} is not what the engine draws")
                # Sizes of schemes and turns are tested with those of the rounds that follow.
                if run.setting.sampler is not None or run.setting.turns is not None:
                    continue
                count, rate = coins.many(run, agent), coins.rate
                there = len(coins.whose(found, run, at.numpy(), agent=agent, where=where))
                what = f"{where} has {there} of {count} {coins.named} at a rate of {rate:.4g}"
                found.note(binomial(there, count, rate), what=what)


def drawn_batches(
    found: Finding, run: WatchedRun, *, rounds: Callable[[float, int], int] | None = None
) -> list[Batches]:
    """Batches of further rounds, of calls whose rate does not change.

    Args:
        found: where it is noted if one holds a record twice, or a user in part.
        rounds: how many by the rate and the number of agents; as many as the tests of the sampler
            ask for when None.
    """
    by_round = [declared_coins(run, watched) for watched in run.rounds[1:]]
    steady = {
        c: q for c, q in (by_round or [{}])[0].items() if all(r.get(c) == q for r in by_round)
    }
    every = []
    for call, coins in sorted(steady.items()):
        rate, sizes = coins.rate, [coins.many(run, a) for a in range(run.setting.graph.agents)]
        # Rounds enough to tell the rate, as far as draws and turns go.
        if rounds is None:
            orders = schemes.enough_rounds(run.setting.sampler.drawn) if run.setting.sampler else 0
            most = _MOST_DRAWS / max(sum(sizes), 1)
            count = _enough(rate, len(sizes), most=most, wanted=orders)
        else:
            count = rounds(rate, len(sizes))
        if (turns := run.setting.turns) is not None:
            count = min(turns.rounds, count * turns.pattern.stretch(turns.rounds))
        count = max(count, len(run.rounds) - 1) if rounds is None else count
        members = [np.zeros((count, size), dtype=bool) for size in sizes]
        for t in range(count):
            for agent, of in enumerate(members):
                at = coins.draw(run, round=t + 1, call=call, agent=agent).numpy()
                where = f"batch {call} of agent {agent} in round {t + 1}"
                of[t, coins.whose(found, run, at, agent=agent, where=where)] = True
                once = bool((at[1:] > at[:-1]).all()) or len(np.unique(at)) == len(at)
                found.note(once * 1.0, tests=int(not once), what=f"{where} holds a record twice")
        every.append(Batches(call, rate, members))
    return every


def _test_counts(found: Finding, batches: Batches) -> None:
    """Participations of all records, of each record, and the size of each batch."""
    call, rate = batches.call, batches.rate
    for agent, of in enumerate(batches.members):
        T, n = of.shape
        whole, records, sizes = int(of.sum()), of.sum(axis=0), of.sum(axis=1)
        who = f"of agent {batches.agent(agent)} (call {call}, rate {rate:.4g})"
        what = f"{whole} participations of {n} records {who} in {T} rounds"
        found.note(binomial(whole, T * n, rate), what=what)
        if n:
            i, p = least(binomial(records, T, rate))
            found.note(p, tests=n, what=f"record {i} {who} is in {records[i]} of {T} batches")
        t, p = least(binomial(sizes, n, rate))
        what = f"the batch {who} in round {batches.round(t)} has {sizes[t]} records"
        found.note(p, tests=T, what=what)


def _test_dispersion(found: Finding, batches: Batches) -> None:
    """Participations and sizes vary as binomial counts do."""
    T = len(batches.members[0])
    records = [(T, of.sum(axis=0)) for of in batches.members]
    sizes = [(of.shape[1], of.sum(axis=1)) for of in batches.members]
    where = f"(call {batches.call}, {T} rounds)"
    _note_dispersion(found, f"participations of records {where}", records, batches.rate)
    _note_dispersion(found, f"sizes of batches {where}", sizes, batches.rate)


def _note_dispersion(
    found: Finding, what: str, counts: Sequence[tuple[int, np.ndarray]], rate: float
) -> None:
    """Both tails of a dispersion of binomial counts, each group with its number of trials."""
    groups: dict[int, list[np.ndarray]] = {}
    for trials, held in counts:
        if trials and len(held):
            groups.setdefault(trials, []).append(held)
    every = [(trials, np.concatenate(held)) for trials, held in groups.items()]
    if not every:
        return
    total = sum(float(_deviations(held, trials, rate).sum()) for trials, held in every)
    number = sum(len(held) for _, held in every)
    cumulants = [
        (len(held), _log_weights(trials, rate), _deviations(np.arange(trials + 1), trials, rate))
        for trials, held in every
    ]
    words = f"{what} vary {total / number:.3g} times as much as independent ones (n = {number})"
    for sign in (1.0, -1.0):
        found.note(math.exp(chernoff(cumulants, total, sign)), what=words)


def _deviations(counts: np.ndarray, trials: int, rate: float) -> np.ndarray:
    """Squared deviations of binomial counts over their variance."""
    variance = trials * rate * (1.0 - rate)
    return np.asarray(np.square(counts - trials * rate) / variance)


def _log_weights(trials: int, rate: float) -> np.ndarray:
    from scipy.stats import binom

    return np.asarray(binom.logpmf(np.arange(trials + 1), trials, rate))


def _test_lags(found: Finding, batches: Batches) -> None:
    """What batches some rounds apart have in common, over disjoint pairs of rounds."""
    rate, T = batches.rate, len(batches.members[0])
    records = sum(of.shape[1] for of in batches.members)
    affordable = int(_MOST_LAG_WORK / max(1, T * records))
    most = min(T // 2, math.ceil(2.0 / rate) + 1, max(1, affordable))
    for lag in range(1, most + 1):
        first = np.array([t for t in range(T - lag) if (t // lag) % 2 == 0])
        common = [
            (of.shape[1], (of[first] & of[first + lag]).sum(axis=1)) for of in batches.members
        ]
        whole, trials = sum(int(c.sum()) for _, c in common), records * len(first)
        what = f"batches {lag} rounds apart (call {batches.call})"
        words = f"{what} have {whole} records in common where {trials * rate**2:.4g} are expected"
        found.note(binomial(whole, trials, rate**2), what=words)
        _note_dispersion(found, f"records in common of {what}", common, rate**2)
        _test_repeats(found, batches, lag)


def _test_repeats(found: Finding, batches: Batches, lag: int) -> None:
    """No batch of an agent is much like that of an earlier round; of all pairs, not disjoint ones.

    The largest number of records on which two agree has the smallest p of an agent's.
    """
    from scipy.stats import binom

    alike = batches.rate**2 + (1.0 - batches.rate) ** 2
    for agent, of in enumerate(batches.members):
        if not of.size:
            continue
        agree = (of[:-lag] == of[lag:]).sum(axis=1)
        t, n = int(agree.argmax()), of.shape[1]
        found.note(
            float(binom.sf(agree[t] - 1, n, alike)),
            tests=len(agree),
            what=f"the batches (call {batches.call}) of agent {batches.agent(agent)} in rounds "
            f"{batches.round(t)} and {batches.round(t + lag)} agree on {agree[t]} of {n} records",
        )


def _test_agents(found: Finding, batches: Batches) -> None:
    """Two agents do not draw the same positions."""
    sizes = [of.shape[1] for of in batches.members]
    T, agents = len(batches.members[0]), len(sizes)
    common = np.zeros((agents, agents))
    padded = np.zeros((agents, max(sizes, default=0)), dtype=np.float32)
    for t in range(T):
        for agent, of in enumerate(batches.members):
            padded[agent, : sizes[agent]] = of[t]
        common += padded @ padded.T
    one, other = np.triu_indices(agents, k=1)
    trials = T * np.minimum(np.array(sizes)[one], np.array(sizes)[other])
    counts = common[one, other].round().astype(np.int64)
    if len(counts):
        found.worst(
            binomial(counts, trials, batches.rate**2),
            lambda i: (
                f"agents {batches.agent(int(one[i]))} and {batches.agent(int(other[i]))} "
                f"drew {counts[i]} equal positions in {T} rounds"
            ),
        )


def _test_calls(found: Finding, one: Batches, other: Batches) -> None:
    """Two batches of one round are drawn apart."""
    T = min(len(one.members[0]), len(other.members[0]))
    if [of.shape[1] for of in one.members] != [of.shape[1] for of in other.members]:
        return
    pairs = list(zip(one.members, other.members, strict=True))
    common = sum(int((a[:T] & b[:T]).sum()) for a, b in pairs)
    trials = T * sum(a.shape[1] for a, _ in pairs)
    what = f"batches {one.call} and {other.call} of a round have {common} records in common"
    p = float(binomial(common, trials, one.rate * other.rate))
    found.note(p, what=what)
