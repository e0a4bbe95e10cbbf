"""A membership.json as `overhear membership` writes it."""

from typing import Any

from overhear.runs.audit.evidence import Membership

__all__ = ["membership"]


def _row(model: str, attack: str, *, high: float | None, above: bool | None) -> dict[str, Any]:
    rate = None if high is None else 0.5 * high
    return {
        "model": model,
        "attack": attack,
        "auc": 0.625,
        "auc_error": 0.0125,
        "rates": [
            {
                "asked": 0.001, "needed": 1000, "true_positive_rate": None, "low": None,
                "high": None, "allowed": 0.0024,
            },
            {
                "asked": 0.01, "needed": 100, "true_positive_rate": rate,
                "low": None if rate is None else 0.5 * rate, "high": high, "allowed": 0.02,
            },
        ],
        "above_limit": above,
    }  # fmt: skip


def membership(
    *, verdict: str = "within the proof", high: float | None = 0.04, **changes: Any
) -> Membership:
    """One with 4 games, in which the loss threshold has the largest upper limit."""
    rows = [
        _row("owner", "LiRA online", high=None if high is None else 0.5 * high, above=False),
        _row("average", "loss threshold", high=high, above=verdict == "suspicious"),
    ]
    part = {
        "members": 359,
        "others": 359,
        "rows": rows,
        "agents": [],
        "curves": [
            {"model": "owner", "attack": "LiRA online", "points": [(0.0, 0.0), (0.1, 0.2), (1, 1)]}
        ],
    }
    given = {
        "version": 1,
        "references": 16,
        "games": 4,
        "records": 718,
        "rounds": 200,
        "noise_multiplier": 2.0,
        "confidence": 0.95,
        "delta": 1e-5,
        "proven_epsilon": 1.0,
        "status": "proven",
        "because": "",
        "limit": [(1e-4, 3e-4), (0.01, 0.02), (1.0, 1.0)],
        "run": part,
        "played": part,
        "guessed": {
            "model": "owner", "attack": "LiRA online", "right": 150, "guesses": 287,
            "coins": 2872, "epsilon": 0.0,
        },
        "verdict": verdict,
        "words": "Half of the guesses were right",
    } | changes  # fmt: skip
    return Membership.model_validate(given, strict=False)
