"""What an adversary saw, as equations over all columns of all rounds of a re-enactment.

    given       what the adversary saw, the public initial model, its own data, noise and state, and
                results of `postprocess` whose inputs it can compute
    unknown     the contributions of everybody else (or noise, see `Equations.solve`), the state
                before the first round, and results of `postprocess` that it cannot compute
    noise       sources that it does not know

Shape letters: A agents, D parameters, R equations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.guarantee import Adversary, Sees
from ...training.engine.recording import GradientCall, LocalCall, WholeCall
from ...training.own.names import algorithm_named
from ...training.step.values import SERVER, Parts, Quantile
from ...training.tracing.linear_forms import Contributions, Known, Messages, NoiseSources
from ...training.tracing.scripts import state_column
from ...training.tracing.sparse_rows import widened
from ..checks.recording import WatchedRound
from .replay import Replay, Weights, best_weights, determined, seen_combination

if TYPE_CHECKING:
    from scipy.sparse import csr_array


# What an attacker estimates: a contribution of the victim, or a combination of several.


class Target(NamedTuple):
    """A contribution of the victim, or a combination of its contributions from one batch.

    Attributes:
        name: what it is called.
        columns: those of the contributions.
        factors: what each is multiplied by.
        points: models at which its gradients were taken, for one contribution after another.
        call: what the gradients were asked for; the same of each contribution but the models.
        bound: on each contribution.
        owner: agent at whose model they were taken.
        local: number and size of the local steps, where it is the change of a model over these.
    """

    name: str
    columns: tuple[int, ...]
    factors: tuple[float, ...]
    points: Tensor  # (P, D')
    call: GradientCall
    bound: float
    owner: int
    local: tuple[int, float] | None = None


class Series(NamedTuple):
    """Contributions of one agent that are made alike in one round after another.

    Attributes:
        owner: whose they are.
        columns: theirs, one a round.
        values: (D,) each, where the adversary is their owner; else nothing.
        target: position among the targets of each that is one; -1 of others.
    """

    owner: int
    columns: list[int]
    values: list[Tensor]
    target: list[int]


def local_target(made: LocalCall, *, row: int, column: int, round: int) -> Target | None:
    """The change of a victim's model over local steps, as a mean of their gradients.

    None where the change is clipped, is made with momentum or is pulled back to its start: no
    gradients along plain steps explain it then.
    """
    asked = made.asked
    if asked.clip_norm is not None or asked.momentum or asked.proximal:
        return None
    rows = torch.arange(len(made.start))
    call = GradientCall(
        models=made.start[None], owners=rows, holders=rows, coefs=(1.0,), batch=asked.call,
        clip_norm=None,
    )  # fmt: skip
    return Target(
        name=f"round {round}, change over {asked.steps} local steps",
        columns=(column,),
        factors=(1.0,),
        points=made.start[None, row],
        call=call,
        bound=math.inf,
        owner=row,
        local=(asked.steps, asked.learning_rate),
    )


_NOTHING = 1e-13  # share of an equation that rounding may leave
_MOST_EQUATIONS = 2500  # a dense decomposition takes a quarter of a minute or so


class Equations:
    """The equations of one adversary, over all columns of all rounds.

    Column j of a round stands at `offset + j`. Columns of messages that are not seen, and of a
    state that an earlier round of the replay left, are replaced by what they are made of.
    """

    def __init__(self, replay: Replay, who: Adversary) -> None:
        from scipy.sparse import csr_array, vstack

        self.who, self.replay = who, replay
        # After a round's columns come those of its models, where they are released.
        agents = replay.trial.setting.graph.agents
        widths = {n: played.trace.columns + agents for n, played in replay.rounds.items()}
        self.offsets = dict(
            zip(widths, np.cumsum([0, *widths.values()])[:-1].tolist(), strict=True)
        )
        self.width = sum(widths.values())
        self._given: dict[int, Tensor] = {}
        self._noise: list[int] = []
        self._unknown: list[int] = []
        self._bounds: dict[int, float] = {}  # of contributions of agents who are not attacked
        self._open: list[tuple[int, Tensor, csr_array]] = []  # column, value, inputs
        self.targets: list[Target] = []
        self.series: dict[tuple[int, int, int], Series] = {}
        equations: list[csr_array] = []
        carried: Mapping[str, csr_array] | None = None
        for number, played in replay.rounds.items():
            made = _Columns(self, number, played, carried)
            equations += made.equations
            carried = made.carried
        none = csr_array((0, self.width))
        self._equations = csr_array(vstack([none, *equations]))
        self._compute()

    def solve(self, targets: Sequence[Target], *, spread: float | None = None) -> Weights:
        """Weights of the equations that estimate targets.

        Args:
            spread: the size of a coordinate of other agents' contributions, in units of their
                bounds, to take those that are bounded for noise; None leaves them unknown.
        """
        hidden = self._hidden()
        E = self._equations[hidden]
        if E.shape[0] > _MOST_EQUATIONS:
            raise InputError(
                f"the view of {self.who.name} has {E.shape[0]} messages in "
                f"{len(self.replay.rounds)} rounds, more than the {_MOST_EQUATIONS} that can be "
                "solved; attack the view of one neighbour, or a smaller graph"
            )
        # Bounded contributions of others count as noise of their size where a spread is given.
        nuisance: dict[int, float] = {}
        if spread is not None:
            nuisance = {c: b * spread for c, b in self._bounds.items() if math.isfinite(b)}
        unknown = [column for column in self._unknown if column not in nuisance]
        at = {column: i for i, column in enumerate(unknown)}
        others = E[:, list(nuisance)].toarray() * np.fromiter(nuisance.values(), dtype=float)
        wanted = np.zeros((len(targets), len(unknown)))
        for row, target in zip(wanted, targets, strict=True):
            row[[at[column] for column in target.columns]] = target.factors
        weights = best_weights(
            E[:, unknown].toarray(),
            np.hstack([E[:, self._noise].toarray(), others]),
            targets=wanted,
        )
        rows = np.zeros((len(weights.rows), len(hidden)))
        rows[:, hidden] = weights.rows
        return replace(weights, rows=rows)

    def seen(self) -> tuple[np.ndarray, csr_array, list[int], list[int]]:
        """The equations that say something: which, their coefficients, unknowns and noise."""
        hidden = self._hidden()
        return hidden, self._equations[hidden], list(self._unknown), list(self._noise)

    def combined(self, targets: Sequence[Target]) -> list[Target]:
        """What is told of targets of one batch together, where none of them is told alone.

        Returns:
            A target for each batch of which exactly one combination of all its targets is told.
        """
        # Targets of one batch that were clipped and scaled alike.
        batches: dict[tuple[object, ...], list[Target]] = {}
        for target in targets:
            call = target.call
            key = (target.name, call.clip_norm, call.mean_of, len(call.coefs))
            batches.setdefault(key, []).append(target)
        E = self._equations[self._hidden()][:, self._unknown].toarray()
        made = []
        for first, *others in batches.values():
            if not others or first.call.mean_of is not None:
                continue
            parts = [first, *others]
            columns = [column for part in parts for column in part.columns]
            factors = seen_combination(E, columns=[self._unknown.index(c) for c in columns])
            if factors is None:
                continue
            each = [
                tuple(coef * float(factor) for coef in part.call.coefs)
                for part, factor in zip(parts, factors, strict=True)
            ]
            made.append(
                first._replace(
                    columns=tuple(columns),
                    factors=tuple(factors.tolist()),
                    points=torch.cat([part.points for part in parts]),
                    call=first.call._replace(coefs=tuple(c for of in each for c in of)),
                )
            )
        return made

    @property
    def enters_open(self) -> bool:
        """Whether a result of `postprocess` that cannot be computed enters a message."""
        columns = [column for column, _, _ in self._open]
        return bool(columns) and self._equations[:, columns].nnz > 0

    def _hidden(self) -> np.ndarray:
        """Which equations say something: rounding is all that others leave of what is hidden."""
        squares = self._equations.multiply(self._equations)
        whole = np.asarray(squares.sum(axis=1)).ravel()
        columns = [*self._unknown, *self._noise]
        return np.asarray(squares[:, columns].sum(axis=1)).ravel() > _NOTHING**2 * whole

    def value(self, weights: np.ndarray) -> Tensor:
        """(D,) estimate that weights of the equations give."""
        coefficients = -(self._equations.T @ weights)
        total: Tensor | None = None
        for column, vector in self._given.items():
            if coefficients[column] != 0:
                part = float(coefficients[column]) * vector.double()
                total = part if total is None else total + part
        if total is None:
            raise InputError("an estimate is made of nothing that was seen")
        return total

    def _compute(self) -> None:
        """Results of `postprocess` whose inputs are determined are given, one after the other."""
        from scipy.sparse import csr_array, vstack

        while self._open:
            hidden = [*self._unknown, *self._noise]
            rows = csr_array(vstack([inputs for _, _, inputs in self._open]))
            counts = [inputs.shape[0] for _, _, inputs in self._open]
            equations = self._equations[self._hidden()]
            known = determined(rows[:, hidden].toarray(), equations[:, hidden].toarray())
            each = np.split(known, np.cumsum(counts)[:-1])
            done = [i for i, of in enumerate(each) if of.all()]
            if not done:
                return
            for i in done:
                column, value, _ = self._open[i]
                self._given[column] = value
                self._unknown.remove(column)
            self._open = [entry for i, entry in enumerate(self._open) if i not in done]

    def note(self, column: int, *, value: Tensor | None, noise: bool = False) -> None:
        """Count a column as given, or as unknown noise, or as unknown."""
        if value is not None:
            self._given[column] = value
        elif noise:
            self._noise.append(column)
        else:
            self._unknown.append(column)

    def note_bound(self, column: int, bound: float) -> None:
        """Keep the bound of a contribution that the adversary does not know."""
        self._bounds[column] = bound

    def rounding(self, weights: np.ndarray) -> float:
        """Norm of what rounding of the given vectors may leave in an estimate."""
        coefficients = self._equations.T @ weights
        total = 0.0
        for column, vector in self._given.items():
            if coefficients[column] != 0 and vector.dtype != torch.float64:
                size = float(torch.linalg.vector_norm(vector.double()))
                total += (float(coefficients[column]) * size * torch.finfo(vector.dtype).eps) ** 2
        return math.sqrt(total)

    def leave_open(self, column: int, value: Tensor, inputs: csr_array) -> None:
        """An unknown that becomes given once its inputs can be computed."""
        self._unknown.append(column)
        self._open.append((column, value, inputs))


class _Columns:
    """The columns of one round: what each is over the columns of all rounds."""

    def __init__(
        self,
        system: Equations,
        number: int,
        played: WatchedRound,
        carried: Mapping[str, csr_array] | None,
    ) -> None:
        from scipy.sparse import csr_array

        self._system, self._number, self._played = system, number, played
        self._carried_in = carried
        self._offset = system.offsets[number]
        self._stands: csr_array = csr_array((0, system.width))
        self.equations: list[csr_array] = []
        kinds: dict[type, int] = {}
        for group in played.trace.groups:
            place = kinds.get(type(group), 0)
            kinds[type(group)] = place + 1
            if isinstance(group, Known):
                kinds[Known] -= self._known(group, place)
            elif isinstance(group, Messages):
                self._messages(group, place)
            elif isinstance(group, NoiseSources):
                self._noise(group, played.recorded.noise[place])
            else:
                self._contributions(group, place)
        ends = played.trace.record.end_state
        self.carried = {field: self._over_all(rows) for field, rows in ends.items()}
        self._end_states()

    def _over_all(self, rows: csr_array) -> csr_array:
        """Rows over this round's columns as rows over all."""
        from scipy.sparse import csr_array

        return csr_array(widened(rows, self._stands.shape[0]) @ self._stands)

    def _add(self, stands: csr_array) -> None:
        from scipy.sparse import csr_array, vstack

        self._stands = csr_array(vstack([self._stands, stands]))

    def _units(self, group: Any, at: Sequence[int] | None = None) -> csr_array:
        from scipy.sparse import csr_array

        chosen = np.arange(group.size) if at is None else np.asarray(at, dtype=int)
        columns = self._offset + group.start + chosen
        return csr_array(
            (np.ones(len(chosen)), (np.arange(len(chosen)), columns)),
            shape=(len(chosen), self._system.width),
        )

    def _column(self, group: Any, i: int) -> int:
        return int(self._offset + group.start + i)

    def _known(self, group: Known, place: int) -> int:
        """Columns that came from outside; 1 where the value is none of `recorded.known`."""
        mine, played = self._system.who.agents, self._played
        # Tables, fields of the state before, or values that came out of what was received.
        if group.table is not None:
            self._add(self._units(group))
            for i, value in enumerate(group.table):
                self._system.note(self._column(group, i), value=value)
            return 1
        for field, rows in played.before.items():
            if group.what == state_column(field):
                if self._carried_in is not None:
                    self._add(self._carried_in[field])
                    return 1
                for i in range(group.size):
                    value = rows[i] if i in mine else None
                    self._system.note(self._column(group, i), value=value)
                self._add(self._units(group))
                return 1
        values = played.recorded.known[place]
        self._add(self._units(group))
        for i in range(group.size):
            column = self._column(group, i)
            inputs = [self._over_all(rows[holders == i]) for rows, holders in group.inputs]
            if inputs:
                from scipy.sparse import csr_array, vstack

                self._system.leave_open(column, values[i], csr_array(vstack(inputs)))
            else:
                self._system.note(column, value=values[i])  # the public initial model
        return 0

    def _noise(self, group: NoiseSources, values: Tensor) -> None:
        self._add(self._units(group))
        for i, knowers in enumerate(group.known_to):
            value = values[i] if knowers & self._system.who.agents else None
            self._system.note(self._column(group, i), value=value, noise=True)

    def _contributions(self, group: Contributions, place: int) -> None:
        self._add(self._units(group))
        recorded, replay = self._played.recorded, self._system.replay
        values, call = recorded.contributions[place], recorded.calls[place]
        # A contribution is known if it is the adversary's own, and bounded if another's.
        for i, owner in enumerate(group.owners.tolist()):
            own = owner in self._system.who.agents
            if not own and owner != replay.trial.victim:
                self._system.note_bound(self._column(group, i), float(group.bounds[i]))
            self._system.note(self._column(group, i), value=values[i] if own else None)
            wanted = owner == replay.trial.victim and self._number in replay.attacked
            # One owner's gradients at one model make a series over the rounds.
            if _is_plain(call) and group.block == 0:
                key = (owner, place, int(call.owners[i]))
                series = self._system.series.setdefault(key, Series(owner, [], [], []))
                series.columns.append(self._column(group, i))
                series.values.extend([values[i]] if own else [])
                series.target.append(len(self._system.targets) if wanted else -1)
            # The victim's contributions in attacked rounds are the targets.
            if wanted and group.block == 0 and place in recorded.local:
                change = local_target(
                    recorded.local[place], row=i, column=self._column(group, i), round=self._number
                )
                self._system.targets.extend([] if change is None else [change])
            if wanted and _is_plain(call) and group.block == 0:
                owner = int(call.owners[i])
                name = f"round {self._number}, batch {group.batch}, at agent {owner}'s model"
                self._system.targets.append(
                    Target(
                        name,
                        (self._column(group, i),),
                        (1.0,),
                        call.models[:, call.owners[i]],
                        call,
                        float(group.bounds[i]),
                        owner,
                    )
                )

    def _messages(self, group: Messages, place: int) -> None:
        from scipy.sparse import csr_array

        held = self._over_all(group.rows)
        sent = self._system.replay.transcript.of(round=self._number)[place].rows
        who = self._system.who
        if who.sees is Sees.LINKS:
            seen = group.crossing
        elif who.sees is Sees.OWN_LINKS:
            seen = group.seen_by(who.agents)
        else:
            seen = np.zeros(group.size, dtype=bool)
        units = self._units(group)
        at = np.flatnonzero(seen)
        for i in at.tolist():
            self._system.note(self._column(group, i), value=sent[i])
        if self._number in self._system.replay.crafted:  # not made of what the step makes it of
            at = at[~np.isin(group.senders[at], list(who.agents))]
        if len(at) and group.block == 0:
            self.equations.append(csr_array(held[at] - units[at]))
        mask = seen.astype(float)[:, None]
        self._add(csr_array(units.multiply(mask) + held.multiply(1.0 - mask)))

    def _end_states(self) -> None:
        """Released models: of every round to those who see end states, of the last to all."""
        from scipy.sparse import csr_array

        trial, number = self._system.replay.trial, self._number
        last = number == trial.rounds
        if number == 0 or not (last or self._system.who.sees is Sees.END_STATES):
            return
        field = algorithm_named(trial.algorithm).model
        models = self._played.after[field]
        columns = self._offset + self._played.trace.columns + np.arange(len(models))
        for column, model in zip(columns.tolist(), models, strict=True):
            self._system.note(column, value=model)
        ones, shape = np.ones(len(models)), (len(models), self._system.width)
        units = csr_array((ones, (np.arange(len(models)), columns)), shape=shape)
        self.equations.append(csr_array(self.carried[field] - units))


def _is_plain(call: object) -> TypeGuard[GradientCall]:
    """Whether a contribution is of gradients that are clipped as they are, each as one vector."""
    return (
        isinstance(call, GradientCall)
        and call.scales is None
        and not isinstance(call.clip_norm, Parts | Quantile)
    )


# Why a view does not single out a victim's gradients: what is told where an attack has nothing.

_LOCAL = "what an agent adds is its change over local steps, and no gradient of one batch"
_TRUSTED = "the server releases a trusted sum over agents, and nothing else is sent"
_OTHERWISE = (
    "gradients are scaled, or clipped in parts or at a quantile, for which an estimate has no rule"
)
_FUNCTIONS = (
    "messages hold functions of gradients, such as compressed differences, into which a linear "
    "estimate does not look"
)
_BEFORE = (
    "messages hold an estimate that goes on from round to round, of which only what was sent from "
    "round {} on was taken; attack one of the first {} rounds, which are re-enacted from the start"
)
FROM_START = 5
"""The last round up to which a min-max run is re-enacted from its start."""

_UNDETERMINED = "the messages that this adversary sees do not determine it"


def why_hidden(replay: Replay, system: Equations) -> str:
    """Why nothing is observed, in words without a capital and a full stop.

    Args:
        replay: the re-enacted rounds.
        system: the equations of the adversary, which determine no contribution of the victim.
    """
    rounds, trial = replay.rounds.values(), replay.trial
    sent = [of for played in rounds for of in played.trace.groups if isinstance(of, Messages)]
    crossing = [of for of in sent if of.crossing.any()]
    why = []
    if crossing and all((of.senders[of.crossing] == SERVER).all() for of in crossing):
        why.append(_TRUSTED)
    calls = [call for played in rounds for call in played.recorded.calls]
    if any(isinstance(c, WholeCall) and c.operation == "local_update" for c in calls):
        why.append(_LOCAL)
    if (
        not why
        and not any(map(_is_plain, calls))
        and any(isinstance(c, GradientCall) for c in calls)
    ):
        why.append(_OTHERWISE)
    if not why and system.enters_open:
        why.append(_FUNCTIONS)
    if not why and trial.snapshot is not None and algorithm_named(trial.algorithm).blocks > 1:
        why.append(_BEFORE.format(trial.snapshot_round + 1, FROM_START))
    return "; ".join(why) or _UNDETERMINED
