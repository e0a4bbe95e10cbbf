"""Plans of small runs; what is planned twice is planned once a session."""

import tomllib
from functools import cache

from overhear.runs.plan.plan import Plan, make_plan
from overhear.runs.run_file.run_file import RunFile

RUN = """
data.name = "digits"
data.agents = 4
model.name = "linear"
algorithm = {name = "dpdl", form = "repaired"}
privacy = {epsilon = 2, delta = 1e-5}
training = {sampling_rate = 0.1}
"""


def config_of(rounds: int, **changes: dict[str, object]) -> RunFile:
    """A run of so many rounds, with other keys in its tables; None takes a key away."""
    tables = tomllib.loads(RUN)
    tables["training"]["rounds"] = rounds
    for table, keys in changes.items():
        tables[table] = tables.get(table, {}) | keys
        tables[table] = {key: value for key, value in tables[table].items() if value is not None}
    return RunFile.model_validate(tables)


def plan_of(run: RunFile) -> Plan:
    return _plan_of(run.model_dump_json(exclude_unset=True))


@cache
def _plan_of(text: str) -> Plan:
    return make_plan(RunFile.model_validate_json(text))
