"""Price every table and figure of `overhear reproduce` by the parts of a timed run.

    python benchmarks/reproduction_prices.py [NAME or SCALE ...]

writes `reports/reproduced/prices.json`: of entries that are named, or of all whose price is missing
or was measured of another sweep, at all scales or those that are named, the smallest first.
Equal settings of several entries are timed once. The data lie below OVERHEAR_DATA; where one set
stands in for another of equal shape, a link is enough, since no price depends on its values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from overhear.reports.reproduced.paper_result import ENTRIES, SCALES, entry_named
from overhear.reports.reproduced.work_estimates import (
    Seconds,
    digest_of,
    price_of,
    run_seconds,
    stored_price,
)
from overhear.runs.attack.points import points_of
from overhear.runs.run_file.run_file import RunFile

STORED = Path(__file__).resolve().parents[1] / "reports" / "reproduced" / "prices.json"
_warm: list[float] = []
"""Seconds that the first run of a process takes more than later ones; the first is this one's."""
_timed: dict[tuple[object, ...], Seconds] = {}


def seconds_of(rows: Sequence[RunFile], attacked: bool) -> Seconds:
    """The seconds of a run file, of equal ones once."""
    config, training = rows[0], rows[0].training
    searched = (len(points_of(config)), config.attack) if attacked else None
    key = (config.data.name, config.data.agents, config.model.name, config.graph.name,
           config.algorithm.name, training.batch_size, searched)  # fmt: skip
    if key not in _timed:
        found = run_seconds(rows, attacked)
        _warm.append(found.first - found.row)
        _timed[key] = replace(found, first=found.row)
        print(*key, _timed[key], sep="  ", flush=True)
    return _timed[key]


def main(names: list[str]) -> None:
    """Price the entries and keep what was measured."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    scales = [scale for scale in SCALES if scale in names] or SCALES
    asked = [entry_named(name) for name in names if name not in SCALES]
    for scale, entry in ((s, e) for s in scales for e in asked or ENTRIES.values()):
        of = stored.setdefault(entry.name, {})
        stands = stored_price(entry, scale) is not None and not asked
        if entry.closed is not None or stands:
            continue
        try:
            price = price_of(entry, scale, jobs=1, seconds_of=seconds_of)
        except (FileNotFoundError, ValueError) as error:
            print(f"{entry.name} at scale {scale} is not priced: {error}")
            continue
        of[scale] = {
            "sweep": digest_of(entry, scale),
            "hours": float(f"{price.hours + _warm[0] / 3600:.3g}"),
            "device": price.device,
        }
        print(entry.name, scale, price.words(), flush=True)
        text = json.dumps({name: stored[name] for name in ENTRIES if stored.get(name)}, indent=2)
        STORED.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
