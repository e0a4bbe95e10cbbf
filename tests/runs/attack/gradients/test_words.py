"""What an attack on gradients concludes: from the gradient alone, and with the truth."""

from __future__ import annotations

import pytest

from overhear.runs.attack.gradients.words import conclusion

FOUND = {"supported": [True, True], "scores": None, "residual_of_noise": 0.0, "stage": ["o", "o"]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"relative_residual": 0.9}, "The attack failed"),
        ({"relative_residual": 0.1}, "A leak is possible"),
        ({"relative_residual": 1e-5}, "A leak is likely"),
        ({"relative_residual": 1e-5, "stage": ["exact", "prior"]}, "A leak is shown"),
        ({"relative_residual": 0.9, "residual_of_noise": 0.9}, "A leak is likely"),
        ({"relative_residual": 1e-5, "supported": [False, False]}, "No leak shown"),
    ],
)
def test_a_conclusion_follows_from_the_gradient(change, said):
    assert conclusion({**FOUND, **change}).startswith(said)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (1e-9, "A leak is shown: the error is less than 0.01%"),
        (0.04, "A leak is shown"),
        (0.06, "A weak leak is shown"),
        (0.095, "No leak shown"),
        (0.3, "No leak shown"),
    ],
)
def test_a_conclusion_with_the_truth_goes_by_the_blind_guess(error, said):
    scores = {"mean": {"mse": error}, "blind": {"mse": 0.1}}
    found = {**FOUND, "scores": scores, "relative_residual": 1e-9}
    assert conclusion(found).startswith(said)
    assert "protect" not in conclusion(found)


def test_an_attack_that_failed_names_that_another_may_succeed():
    for change in (
        {"relative_residual": 0.9},
        {"relative_residual": 1.0, "supported": [False] * 2},
    ):
        said = conclusion({**FOUND, **change})
        assert "another attack may succeed" in said
        assert "protect" not in said
