"""The tables [privacy], what is met and for whom, and [report], who answers for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from ...privacy.accounting.request import Accountant, Adjacency
from ...privacy.batches.patterns import pattern_of
from ...privacy.errors import InputError
from ...privacy.guarantee import NO_CAP, Statement, Unit
from ...privacy.participation import MOST_RECORDS
from ...privacy.target import Goal
from .refusals import PRIVACY
from .tables import Count, Index, Indices, Names, Positive, Table

if TYPE_CHECKING:
    _AccountantName = str
else:  # those that prove what they say
    _AccountantName = Literal[tuple(str(one) for one in Accountant if one.bound.is_upper)]
_Share = Annotated[float, Field(gt=0, lt=1)]
ParticipationPattern = Annotated[
    Any,
    PlainValidator(lambda value: pattern_of(value).entry),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["every"]},
                *(
                    {
                        "type": "object",
                        "properties": {kind: {"type": "integer", "minimum": 1}},
                        "required": [kind],
                        "additionalProperties": False,
                    }
                    for kind in ("cycle", "apart", "most")
                ),
                {"type": "array", "items": {"type": "integer", "minimum": 1}},
            ]
        }
    ),
]
_Words = Annotated[str, Field(min_length=1, max_length=300)]
_TARGETS = ("epsilon", "advantage", "tpr", "fpr")


class PrivacyTable(Table):
    """[privacy]: the target and what the statement speaks of."""

    unprovable = PRIVACY
    epsilon: Positive | None = None
    """Target for `adversary`; the noise is calibrated to it."""
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Instead of epsilon: noise on a sum of clipped gradients / clip_norm; 0 adds none."""
    advantage: _Share | None = None
    """Instead of epsilon: largest TPR minus FPR of any membership test of `adversary`."""
    tpr: _Share | None = None
    """Instead of epsilon: largest true-positive rate of any such test at `fpr`."""
    fpr: _Share | None = None
    """False-positive rate at which `tpr` holds; it is smaller than that."""
    delta: Annotated[float, Field(gt=0, lt=1)]
    """Delta of every epsilon of the run; keep it well below 1 / number of records."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Bound on the L2 norm of one example's gradient; inf does not clip."""
    adversary: str = "eavesdropper"
    """Whose figure must meet the target."""
    adversaries: Names = ()
    """Adversaries that plan and report name; by default outsiders and the worst insider."""
    victim: Index | None = None
    """Agent whose record is meant; by default the worst one."""
    unit: Literal["record", "user", "agent"] = "record"
    """Whose data are hidden: one record, all records of a user, up to records_per_person at one
    agent, or all data of an agent, of which whole vectors are clipped."""
    records_per_person: Annotated[int, Field(ge=1, le=MOST_RECORDS)] = 1
    """States epsilon of so many records of one person at one agent besides that of one record;
    of unit = "user" the cap on the records of a user."""
    holders: Indices | None = None
    """Agents that hold records of one person; every figure is then about all of these together."""
    records_held: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """How many each of `holders` holds; by default one each."""
    adjacency: Literal["add-or-remove-one", "zero-out", "replace-one"] = "add-or-remove-one"
    """How two neighbouring data sets differ; of unit = "agent" zero-out by default."""
    participation: ParticipationPattern = "every"
    """Rounds that one record may be in: "every" (any of them), { cycle = b }, { apart = b },
    { most = k } or a list; the sampler enforces it."""
    accountant: _AccountantName = "pld"
    """How rounds are added up; each is an upper bound."""

    @model_validator(mode="after")
    def _check_unit(self) -> Self:
        unit = Unit(self.unit)
        said = "adjacency" in self.model_fields_set
        adjacency = Adjacency(self.adjacency) if said else unit.usual_adjacency
        if unit is Unit.USER and "records_per_person" not in self.model_fields_set:
            raise InputError(NO_CAP)
        if unit is not Unit.RECORD:
            # The statement itself refuses what does not go together.
            Statement(
                delta=self.delta,
                adjacency=adjacency,
                unit=unit,
                accountant=Accountant(self.accountant),
                records_per_person=self.records_per_person,
                holders=tuple((agent, 1) for agent in self.holders or ()),
            )
        return self.model_copy(update={"adjacency": str(adjacency)})

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        aims = ("epsilon", "noise_multiplier", "advantage", "tpr")
        given = [name for name in aims if getattr(self, name) is not None]
        if self.fpr is not None and self.tpr is None:
            raise InputError(
                f"fpr={self.fpr:g} needs tpr beside it, the true-positive rate that is allowed at "
                "that false-positive rate"
            )
        if len(given) != 1:
            found = " and ".join(given) if len(given) > 1 else "none"
            raise InputError(
                "give epsilon, noise_multiplier, advantage or tpr, exactly one of them; "
                f"{found} given"
            )
        if (goal := self.goal) is not None:
            goal.check_accountant(Accountant(self.accountant))
        if self.clip_norm == math.inf and self.goal is not None:
            raise InputError(
                "clip_norm=inf does not clip, so no noise bounds what a record gives away; set a "
                "finite clip_norm, or noise_multiplier=0 for a run without protection"
            )
        return self

    @model_validator(mode="after")
    def _check_holders(self) -> Self:
        # Holders and their records go together.
        if self.holders is None:
            if self.records_held is not None:
                raise InputError(
                    "records_held has no effect without holders, the agents that hold the records"
                )
            return self
        if not self.holders:
            raise InputError("holders=[] must name an agent; leave it out for one record of one")
        if len(set(self.holders)) < len(self.holders):
            raise InputError(
                f"holders={list(self.holders)} must name each agent once; records_held says how "
                "many records each of them holds"
            )
        if self.records_held is not None and len(self.records_held) != len(self.holders):
            raise InputError(
                f"records_held={list(self.records_held)} must have one number for each of holders="
                f"{list(self.holders)}"
            )
        if sum(held for _, held in self.held_by) > MOST_RECORDS:
            raise InputError(
                f"records_held={list(self.records_held or ())} must sum to at most {MOST_RECORDS}; "
                "a person with more is better protected by a unit that is clipped as a whole"
            )
        # What else would say how many records are meant, or how rounds are added up.
        for name, value, idle in (
            ("victim", self.victim, None),
            ("records_per_person", self.records_per_person, 1),
        ):
            if value != idle:
                raise InputError(
                    f"{name}={value} is about the records of one agent, and holders="
                    f"{list(self.holders)} about a person with records at these; give one of them"
                )
        if self.accountant != "pld":
            raise InputError(
                f"holders={list(self.holders)} are added up by accountant='pld' alone, not "
                f"'{self.accountant}'; leave accountant out"
            )
        return self

    @property
    def goal(self) -> Goal | None:
        """What is met for `adversary`; None where the noise is given."""
        if self.noise_multiplier is not None:
            return None
        return Goal(epsilon=self.epsilon, advantage=self.advantage, tpr=self.tpr, fpr=self.fpr)

    @property
    def held_by(self) -> tuple[tuple[int, int], ...]:
        """(agent, records) of every holder; empty where one record of one agent is meant."""
        if self.holders is None:
            return ()
        return tuple(zip(self.holders, self.records_held or (1,) * len(self.holders), strict=True))

    def with_noise(self, noise_multiplier: float, **others: object) -> PrivacyTable:
        """The same at a noise multiplier in place of its target, and with other keys replaced."""
        update = dict.fromkeys(_TARGETS) | {"noise_multiplier": noise_multiplier} | others
        return self.model_copy(update=update)


class ReportTable(Table):
    """[report]: what the first page of the report tells its reader about people; no figure."""

    responsible: _Words | None = None
    """Who answers for the run: a person or an office."""
    contact: _Words | None = None
    """Where questions about it go."""
    data: _Words | None = None
    """Which data they are, in words for a reader who does not know the name of the data set."""
    purpose: _Words | None = None
    """What the models are for."""
    controller: _Words | None = None
    """Who decides on the processing, by law; `responsible` where it is left out."""
    processors: _Words | None = None
    """Who else handles the data, and in which role."""
    legal_basis: _Words | None = None
    """What allows the processing."""
    retention: _Words | None = None
    """How long data and models are kept."""
    review_by: _Words | None = None
    """When the decision is looked at again."""
    reference: _Words | None = None
    """The number under which the report is filed."""
    records_per_person: Count | None = None
    """Most records of one person, as far as is known; the report says if figures cover fewer."""
