"""What a traced round writes down: its columns, what counts as seen, and the end state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...privacy.batches.sampling import Per
from ...privacy.errors import UndeclaredOperation
from ...privacy.participation import Draws, Reach
from ..step.floor import NO_FLOOR, TABLE, Floor
from ..step.perform import histories_of
from ..step.values import NUMBERS, Agents, Batch, Value
from .arguments import check_history, check_shown
from .cancellation import OTHER, PUBLIC, Cancelled, Columns, History, Origin, floor_of, holds, leave
from .linear_forms import Contributions, Group, Known, LinearForms, Messages, NoiseSources, only_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

GRADIENTS_AT = "model at which gradients are taken"  # why such a value counts as seen


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What a round sent and returned, over its columns.

    Attributes:
        groups: the columns, in the order in which the step made them.
        closure: rows that count as seen, each with the reason.
        end_state: the rows of every value of the returned state, by field.
        blames: why the view is heuristic; empty when it is not.
        reads_index: whether the step looked at the number of the round.
        agents: the number of agents.
        cancelled: what rounding may leave where terms cancel, operation by operation.
        residues: of every row of `closure`, and then of `end_state` in its order, over the
            residues of `cancelled`; None where nothing cancelled.
        units: (columns,) the size of each column in every coordinate, as far as it is known.
        given: what operations were given that counts as seen or is sent, and the secrets and fixed
            arguments of `bounded`, in the order of the step: rows, or the numbers of what is
            public, each as `Value.base` has it.
        absent: the agents that take no part in it.
        floor: what a run has to look at before it does the round.
        secrets: fields of the returned state that hold data without noise.
    """

    groups: Sequence[Group]
    closure: Sequence[tuple[str, csr_array]]
    end_state: dict[str, csr_array]
    blames: Sequence[str]
    reads_index: bool
    agents: int
    cancelled: Sequence[Cancelled] = ()
    residues: Sequence[csr_array | None] = ()
    units: np.ndarray = field(default_factory=lambda: np.zeros(0))
    given: Sequence[csr_array | Tensor] = ()
    absent: frozenset[int] = frozenset()
    floor: Floor = NO_FLOOR
    secrets: frozenset[str] = frozenset()

    def vectors(self) -> np.ndarray:
        """For each contribution the number of the clipped vector that it is a part of."""
        groups = [g for g in self.groups if isinstance(g, Contributions)]
        numbers = [g.first_vector + np.arange(g.size) for g in groups]
        return np.concatenate([np.zeros(0, dtype=int), *numbers])


class SecretBounds(NamedTuple):
    """What a value is made of when it holds clipped sums of one batch and nothing else.

    Attributes:
        bounds: (A,) of the norm by which a record of the owner changes its row.
        batch: the call of `draw`.
        draws: how a record takes part in it.
        reach: of the value: "ball" where all that it is made of is.
        centred: whether such a ball lies around 0, as it need not for a function of a secret.
    """

    bounds: np.ndarray
    batch: int
    draws: Draws
    reach: Reach
    centred: bool


class Recorder:
    """The columns of a round so far, and what counts as seen."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.closure: list[tuple[str, csr_array]] = []
        self.given: list[csr_array | Tensor] = []
        self.blames: list[str] = []
        self.reads_index = False
        self.width = 0
        self.columns = Columns(self.of_table)
        self._closed_residues: list[csr_array | None] = []
        self._vectors = 0
        self._taken: dict[int, tuple[int, ...]] = {}  # with which others each batch is taken
        self._clipped: dict[int, Per] = {}  # what of each batch is clipped as one

    def take(self, calls: tuple[int, ...], *, per: Per = Per.RECORD) -> None:
        """Note what batches are used for: those of several steps move one vector together.

        Raises:
            UndeclaredOperation: one of several is used for something else as well, or of one batch
                both records and users are clipped.
        """
        if any(self._clipped.setdefault(call, per) is not per for call in calls):
            raise UndeclaredOperation(
                "of one batch both the sums of users and something else are clipped, and a user "
                "moves the two by different bounds; draw a batch for each"
            )
        for call in calls:
            if self._taken.setdefault(call, calls) != calls:
                raise UndeclaredOperation(
                    "a batch that is one of several of a round.local_update is used again: a "
                    "record's part in both is indistinguishable; draw another batch for it"
                )

    def new_vectors(self, count: int) -> int:
        """The number of the first of `count` clipped vectors that have none yet."""
        first = self._vectors
        self._vectors += count
        return first

    def add(self, group: Group, *, sent: LinearForms | None = None) -> LinearForms:
        """New columns, as rows that are one column each; of messages with what they hold."""
        from scipy.sparse import csr_array

        self.groups.append(group)
        self.width += group.size
        ones, rows = np.ones(group.size), np.arange(group.size + 1)
        columns = group.start + rows[:-1]  # of each row its own; `rows` says where each begins
        matrix = csr_array((ones, columns, rows), shape=(group.size, self.width))
        secret = isinstance(group, Known) and group.secret_rounds
        origin = OTHER if sent is None else sent.origin.used()
        if isinstance(group, NoiseSources):
            origin = Origin(None, ([],))
        elif isinstance(group, Known) and not group.history and not secret:
            origin = PUBLIC
        history = self._noted(group, History() if sent is None else sent.history)
        forms = LinearForms(matrix, self.columns, group.block, history=history, origin=origin)
        if secret:
            forms.rounded = matrix * secret
        return forms

    def of_table(self, table: Tensor, block: int | None = None) -> LinearForms:
        """New columns that are the rows of a public table, of the block that its width names.

        Raises:
            UndeclaredOperation: an entry that is no finite number.
        """
        if not torch.isfinite(table).all():
            raise UndeclaredOperation(
                "a public table with an entry that is not finite, as a value: give finite numbers"
            )
        own = NUMBERS if table.shape[1] == 1 else 0
        made = Known(
            start=self.width,
            size=len(table),
            what=TABLE,
            block=own if block is None else block,
            table=table,
        )
        return self.add(made)

    def clipped(
        self,
        batch: Batch,
        blocks: Sequence[int],
        *,
        owners: np.ndarray,
        here: np.ndarray,
        bound: float | None,
        reach: Reach,
        per: Per,
        scaled: bool = False,
    ) -> list[LinearForms]:
        """A column for each row and block of sums; the blocks of a row are parts of one vector.

        What stands here is about a record. Of the clipped sum of a user it may turn round the whole
        vector, which stays in a ball; and where users are drawn as a whole its coin is that of
        others, which may show it, so it counts as always there. `tracing.agents` has users.

        Args:
            batch: of whose records.
            blocks: of the parameters.
            owners: (rows,) the agent whose data each row holds.
            here: (rows,) whether that agent takes part; an absent one computes nothing: its rows
                hold no column, and its columns no record.
            bound: of a vector; None of one without a bound.
            reach: of a record whose own vector is clipped.
            scaled: whether it is divided by what is seen before, or clipped in parts.
        """
        of_user = per is Per.USER
        most = math.inf if bound is None else 2.0 * bound if of_user else bound
        first, bounds = self.new_vectors(len(owners)), np.where(here, most, 0.0)
        start = self.width
        parts = [
            Contributions(
                start=start + i * len(owners),
                owners=owners,
                bounds=bounds,
                batch=batch.call,
                sampling_rate=batch.sampling_rate,
                first_vector=first,
                block=block,
                reach=Reach.BALL if of_user else reach,
                draws=Draws(()) if batch.per is Per.USER else None,
                users=batch.per if of_user else None,
                scaled=scaled,
            )
            for i, block in enumerate(blocks)
        ]
        return [only_of(here, self.add(part)) for part in parts]

    def contributed(self, active: np.ndarray, *, bounds: np.ndarray, **how: Any) -> Agents:
        """A contribution of every agent that takes part, by a mask of those."""
        made = self.add(
            Contributions(
                start=self.width,
                owners=np.arange(len(active)),
                bounds=np.where(active, bounds, 0.0),
                sampling_rate=None,
                first_vector=self.new_vectors(len(active)),
                **how,
            )
        )
        return Agents(only_of(active, made))

    def send(
        self, rows: LinearForms, *, kind: str, senders: np.ndarray, links: np.ndarray
    ) -> LinearForms:
        """Messages of these rows, and to whom each of them goes."""
        crosses = np.zeros(rows.shape[0], dtype=bool)
        crosses[links[:, 0]] = True
        check_shown(f"the message {kind!r}", rows.matrix, self.groups, crosses)
        self._leave(rows)
        message = Messages(
            start=self.width,
            kind=kind,
            rows=rows.matrix,
            senders=senders,
            links=links,
            block=rows.block,
            residue=rows.residue,
        )
        return self.add(message, sent=rows)

    def _leave(self, rows: LinearForms) -> None:
        """Note what rows ask for that are sent, or kept in the state."""
        if rows.rounded is not None:
            self.columns.meetings += leave(rows.matrix, rows.rounded, self.columns.kinds)

    def _noted(self, group: Group, sent: History) -> History:
        """Note the units of new columns; what rows of them alone hold."""
        if isinstance(group, Contributions):
            self.columns.add(group.bounds)
            return History(data=True)
        if isinstance(group, NoiseSources):
            own = np.array([len(knowers) <= 1 for knowers in group.known_to])
            self.columns.add(np.ones(group.size), own=own)
            return History(noise=True)
        if isinstance(group, Known):
            public, secret, units = not group.history, group.secret_rounds > 0, np.ones(group.size)
            if group.table is not None:
                units = np.maximum(units, group.table.abs().amax(dim=1).numpy())
            self.columns.add(units, known=True, public=public, secret=secret)
            return History(data=secret)
        held, variance = group.rows, self.columns.kinds.variance
        shares = np.asarray(held.multiply(held) @ variance[: held.shape[1]])
        self.columns.add(self.columns.sizes(held), public=True, variance=shares * (not sent.data))
        return History(data=sent.data, noise=sent.noise, early=sent.early, bare=sent.bare)

    def rows(self, value: Value, operation: str) -> LinearForms:
        """The rows of a value that this round's operations made; of a public table new ones.

        Raises:
            UndeclaredOperation: the value is of another round.
        """
        if isinstance(value, Value) and isinstance(value.rows, Tensor):
            return self.of_table(value.rows)
        if not isinstance(value, Value) or not isinstance(value.rows, LinearForms):
            raise UndeclaredOperation(
                f"round.{operation} takes values that the round's operations made, not "
                f"{type(value).__name__}"
            )
        if value.rows.made_by is not self.columns:
            raise UndeclaredOperation(
                f"round.{operation} of a value of another round: carry it in the state that the "
                "step returns"
            )
        value.rows.origin.used()
        return value.rows

    def is_private(self, value: Value, operation: str) -> bool:
        """Whether a value is a linear form, of this round; a public tensor is none."""
        if isinstance(value.base, Tensor):
            return False
        self.rows(value, operation)
        return True

    def note_given(self, *values: Value) -> None:
        """Note what an operation was given, private or public."""
        for value in values:
            base = value.base
            self.given.append(base if isinstance(base, Tensor) else base.matrix)

    def check_received(self, rows: LinearForms) -> None:
        """Refuse rows of what their agents hold and have not sent, whatever the weights are.

        Raises:
            UndeclaredOperation: they hold noise or a clipped contribution as it was made.
        """
        for g in self.groups:
            own = isinstance(g, Contributions | NoiseSources) and g.start < rows.matrix.shape[1]
            if own and rows.matrix[:, g.start : g.start + g.size].nnz:
                raise UndeclaredOperation(
                    "round.sum_in with weights of values that were not sent, in a round from which "
                    "agents may be missing: weights follow from who is there, and what was not "
                    "sent does not; send it first (round.broadcast), or leave missing out"
                )

    def count_as_seen(self, value: Value, why: str) -> None:
        """Count a value as seen by everybody."""
        if self.is_private(value, why):
            self.close(why, value.base)

    def close(self, why: str, rows: LinearForms) -> None:
        """Count rows as seen by everybody; what was rounded so far is seen then."""
        rows.rounded, rows.seen = None, True
        check_shown(why, rows.matrix, self.groups, np.ones(rows.shape[0], dtype=bool))
        self.closure.append((why, rows.matrix))
        self._closed_residues.append(rows.residue)

    def count_bare_as_seen(self, rows: LinearForms, why: str) -> None:
        """Count the rows that hold data and no noise as seen by everybody.

        Raises:
            UndeclaredOperation: they hold what earlier rounds carried so; it was seen in no round.
        """
        bare, carried = self.bare(rows.matrix), np.zeros(self.width, dtype=bool)
        for g in self.groups:
            if isinstance(g, Known) and g.secret_rounds:
                carried[g.start : g.start + g.size] = True
        if holds(rows.matrix, carried)[bare].any():
            raise UndeclaredOperation(
                f"the {why} holds data of earlier rounds without noise: no bound counts them; add "
                "noise before the state keeps it, or leave it out"
            )
        if len(bare):
            self.close(f"{why}, without noise", rows[bare])

    def bounds_of_secret(
        self, value: Agents, operation: str, *, absent: bool = False
    ) -> SecretBounds:
        """The bounds and the batch of a value that is made of clipped contributions alone.

        Where some agents are `absent` all of its rows may hold nothing.

        Raises:
            UndeclaredOperation: it holds noise, messages, known values, several batches, or data
                of another agent than the row's.
        """
        from scipy.sparse import csr_array

        if self.rows(value, operation).residue is not None:
            raise UndeclaredOperation(
                f"terms of the secret of {operation} cancel to rounding error, which its bound "
                "does not count; leave the terms out"
            )
        rows = self.rows(value, operation).matrix
        bounds, batches = np.zeros(rows.shape[0]), set[tuple[int, Draws]]()
        reaches, centred = set[Reach](), True
        explained = np.zeros(rows.shape[0])
        # Sum each row's bounds over the contributions in it, and count its entries on the way.
        for g in self.groups:
            if isinstance(g, Contributions) and g.start < rows.shape[1]:
                part = abs(rows[:, g.start : g.start + g.size])
                if not part.nnz:
                    continue
                at = part.tocoo().coords
                if (g.owners[at[1]] != at[0]).any():
                    raise UndeclaredOperation(
                        f"the secret of {operation} holds another agent's data"
                    )
                if g.users is not None:
                    raise UndeclaredOperation(
                        f"the secret of {operation} holds sums that are clipped by user, of which "
                        "no bound is known there; clip records, or leave the operation out"
                    )
                bounds += part @ g.bounds[: part.shape[1]]
                explained += np.diff(csr_array(part).indptr)
                batches.add((g.batch, g.drawn))
                reaches.add(g.reach)
                centred = centred and g.blame is None
        # An entry that was not counted is noise, a message or a known value.
        if absent and not rows.nnz:  # nobody whose data could be in it takes part
            return SecretBounds(bounds, 0, Draws(), Reach.SUM, centred=True)
        if (explained != np.diff(rows.indptr)).any() or len(batches) != 1:
            raise UndeclaredOperation(
                f"the secret of {operation} must be made of clipped sums of one batch alone, "
                "without noise, messages or known values"
            )
        ((batch, draws),) = batches
        # A sum of balls is a ball; a sum beside it moves as one that a record is added to.
        reach = Reach.BALL if reaches == {Reach.BALL} else Reach.SUM
        return SecretBounds(bounds, batch, draws, reach, centred)

    def finish(
        self, state: Any, *, agents: int, absent: frozenset[int] = frozenset()
    ) -> RoundRecord:
        """The record of the round, once the step has returned its state."""
        if not isinstance(state, tuple) or not hasattr(state, "_asdict"):
            raise UndeclaredOperation(
                f"the step returned {type(state).__name__}; a state is a NamedTuple of Agents and "
                "public tensors, and `init` and `step` return the same one"
            )
        # What the state holds outlives the round, and so does what rounding left in it.
        end: dict[str, csr_array] = {}
        residues = list(self._closed_residues)
        fields: dict[str, Any] = state._asdict()  # pyright: ignore[reportAttributeAccessIssue]
        histories = histories_of(state)
        for name, value in fields.items():
            if isinstance(value, Agents):
                rows = self.rows(value, "state")
                if name in histories:
                    check_history(name, rows.matrix, self.groups)
                self._leave(rows)
                end[name] = rows.matrix
                residues.append(rows.residue)
            elif not isinstance(value, Tensor):
                raise UndeclaredOperation(
                    f"state field {name!r} holds {type(value).__name__}; a state is a NamedTuple "
                    "of Agents and public tensors"
                )
        return RoundRecord(
            groups=self.groups,
            closure=self.closure,
            end_state=end,
            blames=list(dict.fromkeys(self.blames)),
            reads_index=self.reads_index,
            agents=agents,
            cancelled=self.columns.cancelled,
            residues=residues,
            units=self.columns.units,
            given=self.given,
            absent=absent,
            floor=self._floor(),
            secrets=frozenset(name for name, rows in end.items() if len(self.bare(rows))),
        )

    def bare(self, rows: csr_array) -> np.ndarray:
        """The numbers of the rows that hold data and no noise."""
        kinds = self.columns.kinds
        return np.flatnonzero(holds(rows, kinds.data) & ~holds(rows, kinds.noise))

    def _floor(self) -> Floor:
        held = [
            (g.start, g.rows if isinstance(g, Messages) else g.what)
            for g in self.groups
            if isinstance(g, Messages | Known)
        ]
        columns = self.columns
        return floor_of(columns.meetings, held, columns.units, columns.kinds)
