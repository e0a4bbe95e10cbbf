"""A report as `overhear report` writes it, and a run file as a user writes it."""

import gc
import io
import math
import os
import signal
from typing import Any

import numpy as np
import pytest
from PIL import Image

from overhear.privacy.formats.codec import as_text
from overhear.reports.schema import Report
from overhear.runs.audit.assumptions import DECLARED
from overhear.runs.audit.evidence import measured
from overhear.runs.audit.evidence_schema import Audit
from tests.seconds import key_of, long_ones
from tests.small_run import run_text

RUN_FILE = run_text(
    "dpdl", model={"name": "mlp"}, algorithm={"momentum": 0.5},
    privacy={"epsilon": 4, "delta": 1e-05}, training={"rounds": 200, "sampling_rate": 0.02},
)  # fmt: skip

ROWS = ("blind guess", "no defence", "clipping only", "defended")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests to the slow ones, and of many cases so many, evenly spread, to the quick."""
    long = long_ones()
    for item in items:
        if key_of(item.nodeid) in long and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.slow)
    for item in _others([i for i in items if not i.get_closest_marker("slow")], "some_quick"):
        item.add_marker(pytest.mark.slow)
    if os.environ.get("OVERHEAR_TESTS") == "all":
        return
    left = set(map(id, _others(items, "some_cases")))
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left])
    items[:] = [item for item in items if id(item) not in left]


def _others(items: list[pytest.Item], marker: str) -> list[pytest.Item]:
    """Of tests with a marker the cases that are not among its number, evenly spread."""
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker(marker):
            name = getattr(item, "originalname", item.name)
            cases.setdefault((str(item.path), name), []).append(item)
    found = []
    for of_one in cases.values():
        most = of_one[0].get_closest_marker(marker).args[0]  # type: ignore[union-attr]
        kept = {round(i * len(of_one) / most) for i in range(most)}
        found += [item for number, item in enumerate(of_one) if number not in kept]
    return found


def pytest_collection_finish() -> None:
    """What is imported and collected stays until the end: the collector need not look again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory):
    """What trainings of a suite are remembered by is not the developer's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _hears_signals():
    """A suite under `nohup`, or in the background of a script, ignores what commands then would."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture
def run_file(tmp_path, request):
    """The run file RUN of the module of a test, where it has one as a text, or the usual one."""
    path = tmp_path / "run.toml"
    run = getattr(request.module, "RUN", None)
    path.write_text(run if isinstance(run, str) else RUN_FILE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    """The folder of that run, trained once."""
    from overhear.runs.folder.run import train_run
    from overhear.runs.run_file.run_file import load_run_file

    place = tmp_path_factory.mktemp("trained")
    (place / "run.toml").write_text(request.module.RUN, encoding="utf-8")
    train_run(load_run_file(place / "run.toml"), place / "run")
    return place / "run"


def png(pixels: np.ndarray) -> bytes:
    held = io.BytesIO()
    Image.fromarray((pixels * 255).astype(np.uint8)).save(held, format="PNG")
    return held.getvalue()


@pytest.fixture
def report():
    return sample_report()


@pytest.fixture
def images():
    return sample_images()


def sample_images() -> dict[str, bytes]:
    draw = np.random.default_rng(0)
    paths = [f"attacks/original{k}.png" for k in range(2)]
    paths += [f"attacks/{name.replace(' ', '-')}{k}.png" for name in ROWS for k in range(2)]
    return {path: png(draw.random((8, 8))) for path in paths}


def sample_risk(relation: str) -> dict[str, Any]:
    return {
        "from": "trade-off curve",
        "relation": relation,
        "advantage": 0.3381,
        "mu": 0.8762,
        "right": {"times": 67.0, "of": 100},
        "hits": [
            {"false_positives": 1, "of": 1000, "hit_rate": 0.0241, "hits": 25.0},
            {"false_positives": 1, "of": 100, "hit_rate": 0.1301, "hits": 14.0},
            {"false_positives": 10, "of": 100, "hit_rate": 0.4012, "hits": 41.0},
        ],
    }


def sample_audit(verdict: str = "consistent") -> dict[str, Any]:
    """An audit of `sample_report`, whose eavesdropper has a proven epsilon of 2.0738."""
    return {
        "schema": 1,
        "canaries": 5000,
        "confidence": 0.95,
        "delta": 1e-5,
        "adjacency": "add-or-remove-one",
        "verdict": verdict,
        "adversaries": [
            {
                "name": "eavesdropper",
                "proven_epsilon": 2.0738,
                "status": "proven",
                "measured_epsilon": 1.7777,
                "measured_confidence": 0.95,
                "single_epsilon": 1.7777,
                "ideal_epsilon": 1.8123,
                "ratio": 0.98,
                "canaries": 5000,
                "threshold": 0.0,
                "false_alarms": 1203,
                "misses": 1187,
                "verdict": "consistent" if verdict == "failed checks" else verdict,
                "estimators": [
                    {"name": "total error", "epsilon": 1.7777, "assumptions": "fair assignments"}
                ],
                "words": "what was measured lies under the proof",
            },
            {
                "name": "neighbour:1",
                "proven_epsilon": "inf",
                "status": "heuristic",
                "measured_epsilon": 0.0,
                "measured_confidence": 0.95,
                "single_epsilon": 0.0,
                "ideal_epsilon": None,
                "ratio": None,
                "canaries": 5000,
                "threshold": 0.0,
                "false_alarms": 2500,
                "misses": 2500,
                "verdict": "nothing proven",
                "estimators": [],
                "words": "nothing was found",
            },
        ],
        "checks": [
            {
                "name": name,
                "passed": not (verdict == "failed checks" and name == "residuals"),
                "p": None if name == "messages" else 0.2,
                "tests": 310,
                "words": f"{name} were compared",
            }
            for name in (of.check for of in DECLARED)
        ],
    }


def with_audit(report: dict[str, Any], verdict: str = "consistent") -> dict[str, Any]:
    audit = sample_audit(verdict)
    return report | {"audit": audit, "measured": measured_json(audit)}


def measured_json(audit: dict[str, Any]) -> dict[str, Any]:
    """The "measured" of a report with this audit."""
    found = measured(Audit.model_validate(audit))
    return {name: one.dump() for name, one in found.items()}


def typed(report: dict[str, Any]) -> Report:
    """The report of a test, as it would be read back."""
    return Report.parse(as_text(report), refusal="{}: {}".format)


def sample_report() -> dict[str, Any]:
    def row(name: str, *, joint: float, epsilon: float, status: str = "proven") -> dict[str, Any]:
        return {
            "name": name,
            "victim": 0,
            "worst_adversary": "neighbour:1" if name == "neighbour" else None,
            "joint_sensitivity": joint,
            "effective_noise_multiplier": 2.5134 / joint,
            "mu_per_round": joint / 2.5134,
            "epsilon": epsilon,
            "delta": 1e-5,
            "unit": "record",
            "adjacency": "add-or-remove-one",
            "sampling": "poisson",
            "status": status,
            "bound": "privacy loss distribution",
            "because": "3 contributions of one batch are released, counted jointly",
        }

    rounds = [1, 25, 50, 75, 100, 125, 150, 175, 200]
    curve = [[r, 0.2 + 0.1325 * math.sqrt(r)] for r in rounds]
    spent = curve[-1][1]
    single = [[r, 0.15 + 0.06 * math.sqrt(r)] for r in rounds]
    scores = {
        "blind guess": (0.061, 12.1, 0.62),
        "no defence": (3.2e-7, 64.9, 1.0),
        "clipping only": (0.00021, 36.8, 0.998),
        "defended": (0.172, 7.64, -0.021),
    }
    found = ["estimate, no better than the blind guess", "blind guess"]
    words = dict.fromkeys(scores, (found, found[0])) | {
        "blind guess": (["", ""], ""),
        "no defence": (["rebuilt: adam", "blind guess"], "1 of 2 rebuilt"),
    }
    return {
        "schema": 3,
        "tool": {"name": "overhear", "version": "0.1.0"},
        "made": "2026-11-20T17:20:00Z",
        "run": {
            "name": "dpdl-ring",
            "algorithm": "dpdl",
            "form": "repaired",
            "graph": "ring",
            "agents": 10,
            "edges": [[i, (i + 1) % 10] for i in range(10)],
            "edges_in_all": 10,
            "one_way": [],
            "graphs_in_turn": 1,
            "server": False,
            "links_used": True,
            "links": "clear",
            "data": "digits",
            "records": 1438,
            "duplicate_records": 0,
            "model": "mlp",
            "parameters": 2410,
            "rounds": 200,
            "rounds_done": 200,
            "finished": True,
            "stopped": None,
            "sampling_rate": 0.02,
            "clip_norm": 1.0,
            "noise_multiplier": 2.5134,
            "evaluation_noise_seed": None,
            "device": "cpu",
        },
        "plan": {
            "schema": 1,
            "noise_multiplier": 2.5134,
            "target": {"epsilon": 4.0, "delta": 1e-5, "adversary": "eavesdropper"},
            "adversaries": [
                row("eavesdropper", joint=math.sqrt(3), epsilon=spent),
                row("neighbour", joint=math.sqrt(3), epsilon=spent),
                row("final-models", joint=math.sqrt(3), epsilon=spent),
                row("single-message", joint=1.0, epsilon=single[-1][1], status="heuristic"),
            ],
            "published_bound": None,
            "warnings": [],
        },
        "ledger": {
            "rounds_accounted": 200,
            "rounds": 200,
            "entries": 200,
            "resumed_after": [],
            "repeated": [],
            "torn": False,
            "epsilon": {
                "eavesdropper": spent,
                "neighbour": spent,
                "final-models": spent,
                "single-message": single[-1][1],
            },
            "reading": {
                "eavesdropper": spent,
                "neighbour": spent,
                "final-models": spent,
                "single-message": single[-1][1],
            },
        },
        "epsilon_by_round": {
            "eavesdropper": curve,
            "neighbour": curve,
            "final-models": curve,
            "single-message": single,
        },
        "risk": {
            name: sample_risk("at least" if name == "single-message" else "at most")
            for name in ("eavesdropper", "neighbour", "final-models", "single-message")
        },
        "within_limit": {},
        "fixes": [],
        "utility": {
            "rounds": [0, *rounds],
            "consensus_accuracy": [0.1, 0.14, 0.41, 0.62, 0.7, 0.79, 0.82, 0.85, 0.86, 0.861],
            "consensus_loss": [2.3, 2.2, 1.8, 1.3, 1.0, 0.8, 0.7, 0.6, 0.58, 0.571],
            "agent_accuracy_min": [0.1, 0.11, 0.3, 0.5, 0.61, 0.7, 0.74, 0.78, 0.79, 0.793],
            "agent_accuracy_median": [0.1, 0.15, 0.4, 0.6, 0.7, 0.8, 0.8, 0.81, 0.82, 0.831],
            "agent_accuracy_last": [0.793, 0.884, *[0.8 + 0.007 * i for i in range(8)]],
            "agent_accuracy_max": [0.1, 0.17, 0.45, 0.66, 0.74, 0.81, 0.85, 0.87, 0.88, 0.884],
            "consensus_distance": [0.0, 0.2, 0.4, 0.5, 0.6, 0.6, 0.7, 0.7, 0.7, 0.713],
        },
        "attack": {
            "schema": 1,
            "scenarios": [
                {
                    "scenario": "cross-gradient",
                    "round": 100,
                    "model_owner": 1,
                    "victim": 0,
                    "preset": "inverting-gradients",
                    "rows": [
                        {
                            "name": name,
                            "mse": [scores[name][0], scores[name][0] * 1.3],
                            "psnr": [scores[name][1], scores[name][1] - 1.0],
                            "ssim": [scores[name][2], scores[name][2] * 0.9],
                            "mean": dict(zip(("mse", "psnr", "ssim"), scores[name], strict=True)),
                            "stage": ["", ""] if name == "blind guess" else ["adam", "prior"],
                            "found": words[name][0],
                            "found_in_all": words[name][1],
                            "images": [
                                f"attacks/{name.replace(' ', '-')}{k}.png" for k in range(2)
                            ],
                        }
                        for name in ROWS
                    ],
                    "originals": ["attacks/original0.png", "attacks/original1.png"],
                    "records": "public test records planted in the victim's batch",
                    "conclusion": "No leak shown: the attack is no better than the blind guess.",
                    "adversary": "eavesdropper",
                    "bound": {
                        "most": 0.3,
                        "rebuilt": 0,
                        "images": 2,
                        "exceeded": False,
                        "sentence": "None of two was rebuilt; the proof allows 30 in 100.",
                    },
                }
            ],
        },
        "audit": None,
        "measured": {},
        "assumptions": [
            {
                "name": name,
                "text": f"An assumption that is {status}",
                "status": status,
                "how": f"how it is {status}",
            }
            for name, status in (("a", "verified"), ("b", "assumed"), ("c", "gap"))
        ],
        "reproduce": {
            "commands": ["overhear train run.toml --out DIR", "overhear attack DIR"],
            "check": ["sha256sum --check SHA256SUMS"],
            "environment": {"python": "3.11.7", "packages": {"torch": "2.13.0"}},
            "files": {
                "run.toml": "d58f77918cb63171335bbec7dfd637d836a9787f5c1c976a1ea14b01a1d6c9d1"
            },
        },
    }
