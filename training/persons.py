"""Joint sensitivities of one person whose records several agents hold.

All of the person's records are there, or none is, or all are replaced. The columns v of the view
are those of all holders together, and a certificate diag(lam) >= M = A_v^T (B B^T)^+ A_v turns the
view into a post-processing of releases with independent noise, one for each column
(`privacy.view.view.certificate`). Each holder draws its batches on its own, so each
of its batches is an event with

    mu_a^2 = sum over the columns c of holder a of lam_c b_c^2

and all events are composed as rounds are. A mixture over who takes part is dominated term by term
when all moves align (docs/mathematics.md), and aligned the releases of different batches are
independent: so it does not matter in which order contributions of different holders are made.

Where the contributions of several holders enter everything that is seen as one sum, the columns are
one: the person moves it by as many bounds as records of it are drawn, at whichever holder.

What stays in a ball is no such mixture under zero-out or replace-one, and is refused for several
holders there (`exposure.sensitivity.counted`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..privacy import guarantee
from ..privacy.accounting import accountant as accounting
from ..privacy.errors import InexpressibleView, InputError, UnsupportedView
from ..privacy.participation import Event, Reach
from .exposure.events import counted, spent_releases
from .exposure.guarantees import check_traced_at
from .exposure.local_views import AdversaryView, LocalColumns, LocalViews
from .exposure.rounding_error import Residues
from .exposure.sensitivity import JointSensitivity, Release, cost, effective_of, worst
from .tracing.round_trace import UNCLIPPED, RoundTrace
from .tracing.trace import AlgorithmTrace, Part, parts_of

Holders = Sequence[tuple[int, int]]


def person_joint_sensitivities(
    traces: AlgorithmTrace,
    names: Sequence[str],
    *,
    holders: Holders,
    sampling_rate: float,
    encrypted: bool = False,
) -> list[tuple[str, JointSensitivity]]:
    """The joint sensitivity of all records of one person to each named adversary.

    Args:
        traces: of the run; figures are those of noise multiplier 1, whatever theirs is.
        names: as in a run file; "neighbour" is the worst agent that holds none of the records,
            "all-others" the coalition of all of these.
        holders: (agent, records) of every agent that holds some.
        sampling_rate: of batches that the step draws without a rate of its own.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.

    Returns:
        By name one with a release for each holder and batch; the victim is the first holder.

    Raises:
        ValueError: an unknown adversary, or a holder that does not exist.
        UnsupportedView: the adversary contains a holder, or no view can be proven.

    Two holders on a ring, whose noise cancels between neighbours, are charged together what the
    certificate of both costs:

    >>> from overhear.training import ALGORITHMS, bind, build_graph
    >>> from overhear.training.tracing.trace import trace
    >>> known = ALGORITHMS["dp-dpsgd"]
    >>> run = bind(known, known.settings(), learning_rate=0.1, clip_norm=1.0, noise_std=1.0,
    ...     batch_size=1.0)
    >>> traces = trace(run.init, run.step, graph=build_graph("ring", 6), rounds=9,
    ...     noise_multiplier=1.0)
    >>> ((_, found),) = person_joint_sensitivities(traces, ["eavesdropper"],
    ...     holders=[(0, 3), (1, 2)], sampling_rate=0.02)
    >>> [(r.records, round(r.joint_sensitivity, 6)) for r in found.releases]
    [(3, 1.0), (2, 1.0)]
    """
    agents = traces.start.record.agents
    for agent, _ in holders:
        if not 0 <= agent < agents:
            raise InputError(f"holders has agent {agent}, and agents are 0..{agents - 1}")
    run = _Run(traces, holders, rate=sampling_rate, encrypted=encrypted)
    return [(name, run.worst_of(_candidates(name, holders, agents))) for name in names]


def _candidates(name: str, holders: Holders, agents: int) -> list[guarantee.Adversary]:
    """The adversaries that a name asks for; none of them holds a record of the person.

    Raises:
        ValueError: an unknown adversary.
        UnsupportedView: everybody who is meant holds one, or a single message is meant.
    """
    held = {agent for agent, _ in holders}
    outside = [k for k in range(agents) if k not in held]
    listed = ", ".join(map(str, sorted(held)))
    if name in (guarantee.WORST_NEIGHBOUR, guarantee.ALL_OTHERS):
        if not outside:
            raise UnsupportedView(
                f"adversary {name!r} leaves no one: every agent holds records of the person "
                f"(holders {listed}); ask about the eavesdropper or the final models"
            )
        together = [guarantee.coalition(set(outside))]
        return (
            together if name == guarantee.ALL_OTHERS else [guarantee.neighbour(k) for k in outside]
        )
    who = guarantee.parse_adversary(name, agents)
    if who.sees is guarantee.Sees.ONE_MESSAGE:
        raise UnsupportedView(
            f"adversary {name!r} sees one message, and a person with records at several agents is "
            "in several; ask about the eavesdropper"
        )
    if who.agents & held:
        raise UnsupportedView(
            f"{name} contains agent {min(who.agents & held)}, which holds records of the person "
            f"(holders {listed}); choose another adversary"
        )
    return [who]


class _Block(NamedTuple):
    """What one holder contributes from one batch, or several into one sum."""

    columns: tuple[int, ...]
    bounds: tuple[float, ...]
    sampling_rate: float
    reach: Reach
    interleaved: bool
    records: int


class _Run:
    """A traced run, whose local views are found once for all adversaries."""

    def __init__(
        self, traces: AlgorithmTrace, holders: Holders, *, rate: float, encrypted: bool
    ) -> None:
        self._traces, self._holders = traces, holders
        self._rate, self._encrypted = rate, encrypted
        self._parts = parts_of(traces)
        bases = {id(part.base): part.base for part in self._parts}
        self._views = {key: LocalViews(base) for key, base in bases.items()}
        different = {id(part.trace): part.trace for part in self._parts}
        self._residues = [Residues.of(one) for one in different.values()]

    def worst_of(self, adversaries: Sequence[guarantee.Adversary]) -> JointSensitivity:
        """The one that costs most; where none is worst in every round, the worst of each round."""
        found = []
        for who in adversaries:
            seeing = effective_of(who, encrypted=self._encrypted)
            for residues in self._residues:
                residues.check(seeing)
            found.append(self._stated(who, seeing))
        try:
            return worst(found)
        except UnsupportedView as error:
            top = max(found, key=cost).adversary.name
            raise UnsupportedView(
                "the records of the person enter one sum for some adversaries and several for "
                f"others; name one adversary, such as {top}"
            ) from error

    def _stated(self, who: guarantee.Adversary, seeing: guarantee.Adversary) -> JointSensitivity:
        try:
            views = {key: view.of_adversary(seeing) for key, view in self._views.items()}
            return self._sensitivity(who, views)
        except InexpressibleView as reason:
            return self._infinite(who, str(reason))

    def _sensitivity(
        self, who: guarantee.Adversary, views: dict[int, AdversaryView]
    ) -> JointSensitivity:
        releases, reasons = list[Release](), list[tuple[float, str]]()
        found = {key: self._blocks(view, self._views[key]) for key, view in views.items()}
        for part in self._parts:
            for block, mu in found[id(part.base)]:
                releases.append(self._release(part, block, mu))
                reasons.append((mu, self._reason(part.base, block, mu)))
        infinite = [said for mu, said in reasons if math.isinf(mu)]
        if infinite:
            status, because = guarantee.Status.CANNOT_BE_EXPRESSED, max(infinite, key=len)
            if UNCLIPPED in infinite:
                status, because = guarantee.Status.NO_PROTECTION, UNCLIPPED
        else:
            blamed = any(part.base.blames for part in self._parts)
            status = guarantee.Status.HEURISTIC if blamed else guarantee.Status.PROVEN
            because = max(reasons, default=(0.0, "nothing about the data is released"))[1]
        return JointSensitivity(
            who,
            self._holders[0][0],
            tuple(releases),
            status,
            because,
            noise_multiplier=self._traces.noise_multiplier,
        )

    def _release(self, part: Part, block: _Block, mu: float) -> Release:
        several = len(self._holders) > 1 and block.reach is Reach.BALL
        return Release(
            self._traces.per_multiplier(mu * part.factor),
            block.sampling_rate,
            part.rounds,
            part.base.count(block.columns),
            part.first,
            block.reach,
            block.interleaved or several,
            block.records,
        )

    def _reason(self, base: RoundTrace, block: _Block, mu: float) -> str:
        if math.isinf(mu):
            if any(math.isinf(b) for b in block.bounds):
                return UNCLIPPED
            return (
                "a combination of what is seen, and of what the view is closed with, shows a "
                "contribution of a holder without noise, and all rounds together are not looked "
                "at for several holders"
            )
        if base.blames:
            return "; ".join(base.blames)
        held = sum(records for _, records in self._holders)
        merged = block.records == held and len(self._holders) > 1
        agents = " and ".join(str(agent) for agent, _ in self._holders)
        if merged:
            return f"all records of the person, at agents {agents}, enter one noisy sum"
        if len(self._holders) == 1:
            return base.reason(mu, block.bounds, count=base.count(block.columns))
        return f"what agents {agents} contribute is counted jointly, and drawn by each on its own"

    def _infinite(self, who: guarantee.Adversary, because: str) -> JointSensitivity:
        """Where no figure can be expressed: every batch of a holder counts as shown."""
        releases = [
            self._release(part, block, math.inf if any(block.bounds) else 0.0)
            for part in self._parts
            for block in self._of_holders(part.base)
        ]
        return JointSensitivity(
            who, self._holders[0][0], tuple(releases), guarantee.Status.CANNOT_BE_EXPRESSED, because
        )

    def _of_holders(self, base: RoundTrace) -> list[_Block]:
        """What each holder contributes from each of its batches."""
        found = []
        for agent, records in self._holders:
            batches = base.of_victim(agent).values()
            for (columns, bounds, draws), (reach, meets) in zip(
                batches, base.reaches(agent), strict=True
            ):
                if draws.cohort < 1:
                    raise UnsupportedView(
                        "records of several holders have no bound under a secret cohort, whose "
                        "draws they share; leave holders out"
                    )
                moved = [(c, b) for c, b in zip(columns, bounds, strict=True) if b > 0]
                found.append(
                    _Block(
                        tuple(c for c, _ in moved),
                        tuple(b for _, b in moved),
                        draws.rate(self._rate),
                        reach,
                        meets,
                        records,
                    )
                )
        return found

    def _blocks(self, view: AdversaryView, views: LocalViews) -> list[tuple[_Block, float]]:
        """The blocks that are charged apart, and mu of each."""
        base = views.trace
        blocks = self._of_holders(base)
        local = view.local_to([c for block in blocks for c in block.columns])
        merged = _merged(blocks, local)
        inside = [
            [(local.names[c], b) for c, b in zip(block.columns, block.bounds, strict=True)
             if c in local.names]
            for block in merged
        ]  # fmt: skip
        shares = local.view.shares([([c for c, _ in of], [b for _, b in of]) for of in inside])
        return list(zip(merged, shares, strict=True))


def _merged(blocks: Sequence[_Block], local: LocalColumns) -> list[_Block]:
    """Blocks of different holders that enter all that is seen as one sum, as one block.

    They do if their columns are the same, one by one, in every row: then only the sum of what they
    hold is in the view. The bounds, the rate and the parts of vectors have to be the same, too.
    """
    found: dict[object, _Block] = {}
    for number, block in enumerate(blocks):
        key: object = number
        inside = all(c in local.names for c in block.columns) and block.columns
        if inside and block.reach is Reach.SUM:
            key = (block.bounds, block.sampling_rate, *_seen(block, local))
        # Two batches of one holder are drawn apart, as those of two holders are.
        known = found.get(key)
        found[key] = (
            block
            if known is None
            else known._replace(
                records=known.records + block.records,
                interleaved=known.interleaved or block.interleaved,
            )
        )
    return list(found.values())


def _seen(block: _Block, local: LocalColumns) -> tuple[bytes, ...]:
    """The columns of a block as they stand in the view, and which of them are one vector's."""
    from scipy.sparse import csc_array

    seen = csc_array(local.view.contributions)
    names = [local.names[c] for c in block.columns]
    columns = csc_array(seen[:, names])
    columns.eliminate_zeros()
    columns.sort_indices()
    vectors = [int(local.view.vectors[c]) for c in names] if len(local.view.vectors) else names
    order = list(dict.fromkeys(vectors))
    parts = bytes(str([order.index(v) for v in vectors]), "ascii")
    return columns.data.tobytes(), columns.indices.tobytes(), columns.indptr.tobytes(), parts


# What several runs cost together.


def total_epsilon(
    runs: Sequence[tuple[JointSensitivity, float]], *, statement: guarantee.Statement
) -> float:
    """Epsilon of several runs together, whose noise and batches were drawn apart.

    All releases are composed as those of one run are, by privacy loss distribution, whatever
    accountant the runs name.

    Args:
        runs: of each the joint sensitivity at noise multiplier 1, and its noise multiplier.
        statement: what epsilon is said of; its accountant is not used.

    Raises:
        ValueError: a rate or a sensitivity that is none, or more rounds than are added up.
    """
    together: Counter[Event] = Counter()
    for sensitivity, noise_multiplier in runs:
        check_traced_at(sensitivity, noise_multiplier)
        releases = spent_releases(sensitivity.releases)
        if releases and (noise_multiplier == 0 or math.isinf(sensitivity.largest)):
            return math.inf
        if releases:
            together += counted(releases, noise_multiplier, statement.adjacency)
    if not together:
        return 0.0
    return accounting.composed_epsilon(
        together, delta=statement.delta, adjacency=statement.adjacency
    )
