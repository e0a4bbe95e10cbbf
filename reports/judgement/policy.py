"""The policy: which figures a run may have, and which evidence must stand beside them.

    schema = 1
    [[limits]]   an adversary, its epsilon and delta, unit and adjacency; one table for each limit
    [evidence]   the audit, the attacks, the second opinion and the complete run that are asked for
    [code]       the SHA-256 of files of the user's own that may be run, and what is called of them

Unknown keys are refused: a misspelt limit must not pass for no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from ...privacy.errors import InputError, all_problems, did_you_mean
from ...privacy.formats.toml_text import read_toml
from ...privacy.guarantee import ALL_OTHERS, WORST_NEIGHBOUR, parse_adversary
from ...privacy.participation import MOST_RECORDS
from ...privacy.plain_text import plain
from ...privacy.releases.values import SERVER
from ...privacy.target import Goal
from ...runs.run_file.hyper_parameters import given, stated, unknown_key
from ...runs.run_file.tables import Call, PresetName, Table

DIALECT = "https://json-schema.org/draft/2020-12/schema"
UnitName = Literal["record", "user", "agent", "client"]
KeyName = Literal["data.name", "model.name", "model.loss", "algorithm.name", "attack.denoiser"]
DeclaredName = Literal["checked", "trusted"]
AdjacencyName = Literal["add-or-remove-one", "zero-out", "replace-one"]
_USUAL_DELTA = 1e-5
_ANY_NETWORK = 10**9  # the policy does not know how many agents there are
_OUTSIDERS = ("eavesdropper", "final-models", "single-message", WORST_NEIGHBOUR, ALL_OTHERS)


class RateLimit(Table):
    """The largest true-positive rate of a membership test at a false-positive rate."""

    tpr: Annotated[float, Field(gt=0, lt=1)]
    """Largest true-positive rate that passes."""
    fpr: Annotated[float, Field(gt=0, lt=1)]
    """False-positive rate at which it holds; it is smaller than that."""


class Limit(Table):
    """[[limits]]: the largest epsilon, advantage or TPR that one adversary may have."""

    adversary: str
    """Its name as in [privacy]: eavesdropper, neighbour, coalition:K,L, all-others, and so on.

    Of declared releases also server.
    """
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Largest epsilon that passes; only a proven one does."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Largest delta at which that epsilon may be stated."""
    max_advantage: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Largest TPR minus FPR of any membership test that passes; only a proven one does."""
    max_tpr_at: RateLimit | None = None
    """Largest TPR of any membership test at an FPR, such as {tpr = 0.05, fpr = 0.01}."""
    unit: UnitName = "record"
    """Whose presence is hidden."""
    records_per_person: Annotated[int, Field(ge=1, le=MOST_RECORDS)] | None = None
    """For unit "user": how many records of one user the figure has to be about, or more."""
    adjacency: AdjacencyName = "add-or-remove-one"
    """How two neighbouring data sets differ."""

    @model_validator(mode="after")
    def _check_unit(self) -> Self:
        if (self.unit == "user") != (self.records_per_person is not None):
            raise InputError(
                "records_per_person is missing; a limit of unit='user' says how many records of "
                "one user a figure has to be about"
                if self.unit == "user"
                else f"records_per_person={self.records_per_person} has no effect at "
                f"unit='{self.unit}'; leave it out, or ask for unit='user'"
            )
        if self.unit != "agent" or self.adjacency != "add-or-remove-one":
            return self
        if "adjacency" in self.model_fields_set:
            raise InputError(
                f"adjacency='{self.adjacency}' means nothing at unit='agent': an agent cannot "
                "join or leave a fixed graph; use zero-out or replace-one"
            )
        return self.model_copy(update={"adjacency": "zero-out"})

    @field_validator("adversary")
    @classmethod
    def _check_adversary(cls, value: str) -> str:
        if value not in (WORST_NEIGHBOUR, ALL_OTHERS, SERVER):
            try:
                parse_adversary(value, _ANY_NETWORK)
            except ValueError as error:
                raise InputError(f"{error}{did_you_mean(value, _OUTSIDERS)}") from None
        return value

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.epsilon is None and self.delta is not None:
            others = "" if not self.goals else ", or leave delta out"
            raise InputError(f"epsilon is missing; it must {_DEMANDS['epsilon']}{others}")
        if self.epsilon is None and not self.goals:
            raise InputError(
                f"epsilon is missing; it must {_DEMANDS['epsilon']}, with its delta, or give "
                "max_advantage or max_tpr_at"
            )
        if self.epsilon is not None and self.delta is None:
            raise InputError(f"delta is missing; it must {_DEMANDS['delta']}")
        return self

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What membership tests may achieve at most.

        Raises:
            ValueError: a true-positive rate that is not above its false-positive rate.
        """
        asked = []
        if self.max_advantage is not None:
            asked.append(Goal(advantage=self.max_advantage))
        if (rates := self.max_tpr_at) is not None:
            asked.append(Goal(tpr=rates.tpr, fpr=rates.fpr))
        return tuple(asked)

    @property
    def at_delta(self) -> float:
        """Where epsilon is stated; without a limit on epsilon at a usual one."""
        return _USUAL_DELTA if self.delta is None else self.delta


class Evidence(Table):
    """[evidence]: what must stand beside the figures."""

    audit_canaries: Annotated[int, Field(ge=1)] | None = None
    """Fewest canaries of an audit of every adversary that has a limit; by default no audit."""
    audit_confidence: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Lowest confidence of its lower bounds; asks for an audit too."""
    audit_ideal: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Least share of a figure that a perfect audit of as many canaries shows; asks for an audit.

    By default a tenth, where an audit is asked for.
    """
    attack_presets: Annotated[tuple[PresetName, ...], Field(strict=False)] = ()
    """Attacks that must have been tried."""
    membership: bool = False
    """Whether membership must have been inferred from the final models, and not contradict."""
    membership_tpr_at_1_percent: Annotated[float, Field(gt=0, le=1)] | None = None
    """Most members that any attack may find at 1 % false positives, its interval included."""
    second_opinion: bool = False
    """Whether dp-accounting must confirm the figure of every adversary that has a limit.

    A second tracer must find no more in what is sent, too.
    """
    records_alone: bool = False
    """Whether it must be shown that every item is made of one record: by an own reader of rows, or
    by a data function that was called with records left out. Shown, and not proven."""
    declared: DeclaredName | None = None
    """Whether figures of declared releases pass: those that kept releases agree with, or all.

    By default none do. It says nothing of runs of overhear's own engine.
    """
    complete_run: bool = True
    """Whether the ledger must hold every planned round, and no torn line."""
    signed_by: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """Keys of which one must have signed every file, by `overhear sign`; by default none must.

    Lines of public keys of OpenSSH, or files that hold such a line or the secret of an HMAC."""

    @property
    def wants_audit(self) -> bool:
        """Whether an audit must be there."""
        asked = (self.audit_canaries, self.audit_confidence, self.audit_ideal)
        return any(one is not None for one in asked)

    @property
    def wants_membership(self) -> bool:
        """Whether membership must have been inferred."""
        return self.membership or self.membership_tpr_at_1_percent is not None


class CodeName(Table):
    """A name of [code], as a run file may say it."""

    key: KeyName
    """Where it may stand."""
    name: str
    """What may stand there, such as "mine:net"; its own file must define it."""
    options: dict[str, Any] = Field(default_factory=dict)
    """What the run file hands to it, all of it: arguments, or hyper-parameters."""


class Code(Table):
    """[code]: which code of the user's own may be run to compute a run's figures anew."""

    allow: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    """SHA-256 of each file, by its path; of an installed module by its name."""
    names: Annotated[tuple[CodeName, ...], Field(strict=False)] = ()
    """What of these files a run file may name, and with which options."""

    @property
    def calls(self) -> list[Call]:
        """The names, as run files call them."""
        found = []
        for one in self.names:
            table, _, key = one.key.partition(".")
            found.append(Call(key=f"[{table}] {key}", name=one.name, options=one.options))
        return found


class Policy(Table):
    """A whole policy.

    >>> policy = Policy.model_validate({
    ...     "schema": 1, "limits": [{"adversary": "eavesdropper", "epsilon": 8, "delta": 1e-5}],
    ... })
    >>> policy.limits[0].epsilon, policy.evidence.wants_audit
    (8.0, False)
    """

    version: Annotated[Literal[1], Field(alias="schema")]
    """Version of this format."""
    limits: Annotated[tuple[Limit, ...], Field(strict=False, min_length=1)]
    """What must hold of the figures; a policy without a limit would pass everything."""
    evidence: Evidence = Evidence()
    """What must stand beside them."""
    code: Code = Code()
    """Code of run folders that is trusted."""


def load_policy(path: str | Path) -> Policy:
    """Read and check a policy.

    Raises:
        FileNotFoundError: no such file.
        ValueError: with one sentence for each problem.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no policy at {path}")
    values = read_toml(path)
    return policy_of(values, where=str(path))


def policy_of(values: Mapping[str, Any], *, where: str = "policy") -> Policy:
    """Check the tables of a policy.

    Args:
        where: what sentences about them begin with.

    Raises:
        ValueError: with one sentence for each problem.
    """
    try:
        return Policy.model_validate(values)
    except ValidationError as error:
        # A limit that is wrong is not a limit that is missing.
        told = [
            d for d in error.errors(include_url=False) if d["type"] != "too_short" or not d["input"]
        ]
        raise all_problems(where, [_sentence(details) for details in told]) from None


def policy_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a policy."""
    found = Policy.model_json_schema()
    return {"$schema": DIALECT, **found, "description": "What a run of overhear must satisfy."}


_TABLES: dict[str, type[Table]] = {"limits": Limit, "evidence": Evidence, "code": Code}
_CHOICES: dict[str, tuple[str, ...]] = {
    "unit": get_args(UnitName),
    "adjacency": get_args(AdjacencyName),
    "attack_presets": get_args(PresetName),
    "declared": get_args(DeclaredName),
}
_DEMANDS = {
    "schema": "be 1, the only version of the format",
    "limits": "be tables; write each as [[limits]]",
    "evidence": "be a table; write it as [evidence]",
    "code": "be a table; write it as [code]",
    "names": 'be tables such as {key = "model.name", name = "mine:net", options = {}}',
    "key": f"be one of {', '.join(get_args(KeyName))}",
    "name": 'be the name of a run file, such as "mine:net"',
    "options": "be a table of what the run file hands to it, such as {decay = 0.5}",
    "allow": 'be SHA-256 by path, such as {"mine.py" = "4f2a..."}, each of 64 digits 0-9 and a-f',
    "adversary": "be a string",
    "epsilon": "be a finite number greater than 0",
    "delta": "be a number in (0, 1)",
    "max_advantage": "be a number in (0, 1)",
    "max_tpr_at": "be two rates in (0, 1), such as {tpr = 0.05, fpr = 0.01}",
    "tpr": "be a number in (0, 1), above fpr",
    "fpr": "be a number in (0, 1), below tpr",
    "records_per_person": f"be an integer from 1 to {MOST_RECORDS}",
    "unit": f"be one of {', '.join(_CHOICES['unit'])}",
    "adjacency": f"be one of {', '.join(_CHOICES['adjacency'])}",
    "audit_canaries": "be an integer of at least 1",
    "audit_confidence": "be a number in (0, 1)",
    "audit_ideal": "be a number in (0, 1)",
    "attack_presets": f"be a list of {', '.join(_CHOICES['attack_presets'])}",
    "complete_run": "be true or false",
    "declared": f"be one of {', '.join(_CHOICES['declared'])}",
    "membership": "be true or false",
    "membership_tpr_at_1_percent": "be a number in (0, 1]",
    "records_alone": "be true or false",
    "second_opinion": "be true or false",
    "signed_by": 'be a list of keys, such as ["team.pub"]',
}


def _sentence(details: ErrorDetails) -> str:
    """A problem in the words of a policy."""
    loc, kind, value = details["loc"], details["type"], details["input"]
    # Which table and key the problem is in.
    table = str(loc[0])
    place, key = "", table
    if table == "limits" and len(loc) > 2:
        place, key = f"[[limits]] number {int(loc[1]) + 1}: ", str(loc[2])
    elif table in ("evidence", "code") and len(loc) > 1:
        place, key = f"[{table}] ", str(loc[1])
    if kind == "value_error":
        return f"{place}{stated(details)}"
    if key == "names" and len(loc) > 3:
        at, inner = f"names number {int(loc[2]) + 1}", str(loc[3])
        if inner not in _DEMANDS:
            return f"{place}{at}: {plain(inner)} is unknown; names must {_DEMANDS[key]}"
        return f"{place}{at}: {inner} must {_DEMANDS[inner]}"
    if key == "max_tpr_at" and len(loc) > 3:  # of one of its two rates
        unknown = f"{key}.{plain(str(loc[3]))} is not one of its two rates: {key}"
        wrong = f"{key}.{loc[3]} must {_DEMANDS[str(loc[3])]}" if loc[3] in ("tpr", "fpr") else ""
        return f"{place}{wrong or f'{unknown} must {_DEMANDS[key]}'}"
    if kind == "extra_forbidden":
        return f"{place}{_unknown(key, table=table if place else None)}"
    if kind == "missing":
        return f"{place}{key} is missing; it must {_DEMANDS[key]}"
    if kind == "too_short" and not place:
        return "limits is empty, and a policy without a limit passes everything; add a [[limits]]"
    remedy = did_you_mean(value, _CHOICES.get(key, ())) if isinstance(value, str) else ""
    return f"{place}{key}={given(value)} must {_DEMANDS[key]}{remedy}"


def _unknown(key: str, *, table: str | None) -> str:
    homes = [name for name, of in _TABLES.items() if key in of.model_fields]
    return unknown_key(
        plain(key),
        [*_TABLES[table].model_fields] if table else ["schema", *_TABLES],
        homes=["[[limits]]" if name == "limits" else f"[{name}]" for name in homes],
    )
