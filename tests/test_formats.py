"""The number of each written format moves with its shape; what earlier ones wrote is in the museum.

Where a shape is another: raise the number where the format is defined, put what was written before
into `tests/museum/` with a line in its README, read it in `tests/test_museum.py`, and pin the
new digest. A format that is defined in a merge of unreleased work alone keeps its new number.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from overhear.privacy import Ledger
from overhear.privacy.releases import chained_file as ledger_lines
from overhear.privacy.releases import lines, person_ledger
from overhear.reports.schema import REPORT_SCHEMA, report_schema
from overhear.runs.folder.records import LedgerHeader
from overhear.runs.run_file.trust import Sources
from overhear.training.engine.tensor_file import FORMAT, Checkpoint, save_checkpoint

DOCS = Path(__file__).resolve().parents[1] / "docs"
PINNED = {
    "ledger": (4, "d23ff350fd0caff2"), "person's ledger": ("person-1", "2c2121fc6d832b5f"),
    "log of releases": ("releases-1", "fc633bcf176867f3"), "checkpoint": ("1", "e263d5829b06b4f7"),
    "privacy.json": (3, "0631110340b18e7c"), "sources.json": (1, "417b5ab670c3becc"),
}  # fmt: skip


def digest_of(shape: object) -> str:
    return hashlib.sha256(json.dumps(bare(shape), sort_keys=True).encode()).hexdigest()[:16]


def bare(schema: Any) -> Any:
    """A JSON schema without its words: what a file may hold, and nothing else."""
    if isinstance(schema, list | tuple):
        return [bare(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    words = {"title", "description", "default"}  # a property of these names is an object
    return {k: bare(of) for k, of in schema.items() if k not in words or isinstance(of, Mapping)}


def form(name: str, folder: Path) -> tuple[object, object]:
    """The number of a format, and what its files may hold."""
    if name == "ledger":
        path = folder / "ledger.jsonl"
        ledger = Ledger(path, {})
        ledger.append(0, [{"kind": "model"}], noise_tested={"rounds": 0, "numbers": 0})
        ledger.resume(0)
        ledger.close()
        return ledger_lines.SCHEMA, [LedgerHeader.model_json_schema(), *keys_of(path)]
    if name == "person's ledger":
        of = person_ledger
        keys = [sorted(one) for one in (of._RUN_KEYS, of._VIEW_KEYS, of._EVENT_KEYS)]
        return person_ledger.SCHEMA, [keys, person_ledger._STATUSES]
    if name == "log of releases":
        of = lines
        return of.SCHEMA, [of._HEADER_KEYS, of._RELEASE_KEYS, of._VECTOR_KEYS, of._NOISE_KEYS]
    if name == "checkpoint":
        save_checkpoint(folder / "c", Checkpoint(round=0, state={"x": torch.ones(2, 3)}))
        with safetensors.safe_open(folder / "c", framework="pt") as opened:
            return FORMAT, [sorted(opened.metadata()), sorted(opened.keys())]
    if name == "privacy.json":
        return REPORT_SCHEMA, report_schema()
    sources = Sources.model_json_schema()
    return sources["properties"]["schema"]["const"], sources


def keys_of(path: Path) -> list[list[str]]:
    """Of each line of a ledger its keys."""
    return [sorted(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", PINNED)
def test_a_format_that_changes_has_a_new_number(name, tmp_path):
    number, shape = form(name, tmp_path)
    assert (number, digest_of(shape)) == PINNED[name], f"{name} changed: {__doc__}"


def test_the_page_names_the_numbers():
    rows = (DOCS / "schema.md").read_text(encoding="utf-8").partition("## Numbers of formats")[2]
    told = re.findall(r"^\| .*? \| (?:`\"schema\": \"?([^\"`]+)\"?`|`format` (\d+)) \|", rows, re.M)
    assert {a or b for a, b in told} == {str(number) for number, _ in PINNED.values()}
