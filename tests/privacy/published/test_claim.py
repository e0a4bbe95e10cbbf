"""What a published claim must say, and what it refuses."""

import math

import pytest

from overhear.privacy.published.claim import PublishedClaim

WORDS = {"paper": "P", "statement": "S", "adversary": "A", "proven_by": "B", "caveats": ("C",)}
FIGURES = {"epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 1.0, "proven_epsilon": 2.0}


@pytest.mark.parametrize("name", list(WORDS))
def test_a_claim_says_where_it_is_from_and_what_is_wrong_with_it(name):
    empty: object = () if name == "caveats" else ""
    with pytest.raises(ValueError, match=name):
        PublishedClaim(**{**WORDS, **FIGURES, name: empty})  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize("name", ["epsilon", "noise_multiplier", "proven_epsilon"])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_figure_of_a_claim_is_a_figure(name, value):
    with pytest.raises(ValueError, match=f"{name}="):
        PublishedClaim(**{**WORDS, **FIGURES, name: value})  # type: ignore[arg-type] # wrong on purpose


def test_delta_of_a_claim_lies_between_0_and_1():
    with pytest.raises(ValueError, match="delta=0"):
        PublishedClaim(**{**WORDS, **FIGURES, "delta": 0.0})  # type: ignore[arg-type] # wrong on purpose
