"""The JSON Schema of privacy.json, against real reports."""

import copy
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from overhear.privacy.formats.codec import schema_of
from overhear.reports.document.collect import collect, report_run
from overhear.reports.judgement.policy import policy_schema
from overhear.reports.schema import PersonTotal, Total, report_schema
from overhear.runs.audit.evidence import LastModel, Membership
from overhear.runs.folder.folder import AUDIT, write_sums
from tests.runs.evidence.evidence import AUDIT as AUDITED
from tests.small_run import run_text

RUN = run_text(
    "dpdl", agents=4, privacy={"epsilon": 8, "delta": 0.0001},
    training={"rounds": 3, "sampling_rate": 0.1},
)  # fmt: skip
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
    "boolean": bool, "null": type(None),
}  # fmt: skip
_KNOWN = {
    "$schema", "$defs", "$ref", "title", "description", "default", "type", "properties",
    "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "anyOf",
    "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
}  # fmt: skip


def problems(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str = "") -> Any:
    """What of a value a schema refuses; a keyword that is not known here is a mistake."""
    assert schema.keys() <= _KNOWN, schema.keys() - _KNOWN
    if "$ref" in schema:
        yield from problems(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    choices = schema.get("anyOf", ())
    if choices and all(list(problems(value, one, root, at)) for one in choices):
        yield f"{at}: {value!r} is none of {len(choices)}"
    if "type" in schema:
        right = isinstance(value, _TYPES[schema["type"]])
        if not right or (isinstance(value, bool) and schema["type"] != "boolean"):
            yield f"{at}: {value!r} is no {schema['type']}"
            return
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not in {schema['enum']}"
    if isinstance(value, int | float):
        low = schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf)
        high = schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf)
        if not (low[0] <= value <= high[0] and low[1] < value < high[1]):
            yield f"{at}: {value} is out of range"
    if isinstance(value, dict):
        yield from _object_problems(value, schema, root, at)
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf):
            yield f"{at}: {len(value)} items"
        for index, one in enumerate(value):
            of = first[index] if index < len(first) else schema.get("items", {})
            yield from problems(one, of, root, f"{at}/{index}")


def _object_problems(
    value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    yield from (f"{at}: {key} is missing" for key in schema.get("required", ()) if key not in value)
    other = schema.get("additionalProperties", True)
    for key, one in value.items():
        of = schema.get("properties", {}).get(key, other)
        if of is False:
            yield f"{at}: {key} is unknown"
        elif isinstance(of, dict):
            yield from problems(one, of, root, f"{at}/{key}")


def closed(schema: Any) -> Any:
    """The schema with every object closed, so that what it does not describe is a problem."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(one) for key, one in schema.items()}
    if "properties" in found and found.get("additionalProperties") is True:
        found["additionalProperties"] = False
    return found


def found(report: Any, schema: Any = None) -> list[str]:
    schema = schema or report_schema()
    return list(problems(report, schema, schema))


@pytest.fixture(scope="module")
def real(trained):
    report_run(trained)
    return json.loads((trained / "privacy.json").read_text(encoding="utf-8"))


def test_a_real_report_is_valid(real):
    assert found(real) == []


def test_everything_in_a_real_report_is_described(real):
    assert found(real, closed(report_schema())) == []


def test_a_report_with_an_audit_is_valid(real, trained):
    (trained / AUDIT).write_text(json.dumps(AUDITED), encoding="utf-8")
    write_sums(trained)
    report = collect(trained).dump()
    assert report["audit"] is not None
    assert found(report, closed(report_schema())) == []


def test_the_sample_report_of_the_tests_has_an_attack_that_is_valid(report):
    schema = report_schema()
    attack = report["attack"] | {"schema": 1}
    for scenario in attack["scenarios"]:
        scenario["bound"].setdefault("exceeded", False)
    assert list(problems(attack, schema["$defs"]["Attack"], schema)) == []


def _spoilt(report: Any, *path: str | int, value: Any) -> Any:
    report = copy.deepcopy(report)
    at = report
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return report


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 1),
        (("ledger", "epsilon", "eavesdropper"), -1.0),
        (("ledger", "epsilon", "eavesdropper"), "infinite"),
        (("plan", "adversaries", 0, "delta"), 0.0),
        (("plan", "adversaries", 0, "status"), "nearly proven"),
        (("plan", "adversaries", 0, "unit"), "household"),
        (("ledger", "torn"), 1),
        (("epsilon_by_round", "eavesdropper", 0), [1]),
        (("assumptions", 0), {"text": "x"}),
        (("run", "rounds"), 1.5),
    ],
)
def test_a_spoilt_report_is_not_valid(real, path, value):
    assert found(_spoilt(real, *path, value=value))


def test_an_infinite_epsilon_is_valid(real):
    assert found(_spoilt(real, "ledger", "epsilon", "eavesdropper", value="inf")) == []


def test_a_later_key_is_valid(real):
    assert found(_spoilt(real, "later", value=1)) == []


@pytest.mark.parametrize(
    ("schema", "version"),
    [
        (report_schema(), 3),
        (policy_schema(), 1),
        *((schema_of(kind, ""), 1) for kind in (Total, PersonTotal, Membership, LastModel)),
    ],
)
def test_a_schema_names_its_dialect_and_its_version(schema, version):
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["properties"]["schema"]["const"] == version
    assert "schema" in schema["required"]


def test_the_schema_of_a_policy_accepts_a_policy_and_no_other_key():
    schema = policy_schema()
    limit = {"adversary": "eavesdropper", "epsilon": 8, "delta": 1e-5}
    assert found({"schema": 1, "limits": [limit]}, schema) == []
    assert found({"schema": 1, "limits": [limit | {"epsilom": 8}]}, schema)
    assert found({"schema": 1, "limits": []}, schema)
