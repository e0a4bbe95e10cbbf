"""What an attack on gradients concludes: from the gradient alone, and with the truth."""

from pathlib import Path

import pytest

from overhear.attacks.interception.names import NEARER, NO_BETTER
from overhear.runs.attack.gradients_schema import GradientAttack, TruthScores
from overhear.runs.attack.words import conclusion, summary_lines
from overhear.runs.audit.evidence_schema import Means

FOUND = GradientAttack(
    version=1, model="linear", parameters_from="the file", parameters=26, intercepts=2,
    preset="matched", input_shape=[1, 2, 2], classes=4, records=2, clip_norm=None,
    clip_batch=False, noise_std=0.0, labels=[3, 1], labels_given=False, stage=["o", "o"],
    supported=[True, True], objective=0.1, iterations=10, relative_residual=1e-9,
    residual_of_noise=0.0, scores=None, images=[], originals=[],
    reconstruction="reconstruction.safetensors", notes=[], conclusion="A leak is shown.",
)  # fmt: skip


def after(**change: object) -> str:
    return conclusion(FOUND.model_copy(update=change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"relative_residual": 0.9}, "Undecided: the attack failed"),
        ({"relative_residual": 0.1}, "A leak is possible"),
        ({"relative_residual": 1e-5}, "A leak is likely"),
        ({"relative_residual": 1e-5, "stage": ["exact", "prior"]}, "A leak is shown"),
        ({"relative_residual": 0.9, "residual_of_noise": 0.9}, "A leak is likely"),
        ({"relative_residual": 1e-5, "supported": [False, False]}, "Undecided"),
    ],
)
def test_a_conclusion_follows_from_the_gradient(change, said):
    assert after(**change).startswith(said)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (1e-9, "A leak is shown: the error is less than 0.01%"),
        (0.04, "A leak is shown"),
        (0.06, "A weak leak is shown"),
        (0.095, "Undecided"),
        (0.3, "Undecided"),
    ],
)
def test_a_conclusion_with_the_truth_goes_by_the_blind_guess(error, said):
    mean, blind = (Means(mse=mse, psnr=10.0, ssim=0.5) for mse in (error, 0.1))
    scores = TruthScores(mse=[error], psnr=[10.0], ssim=[0.5], order=[0], mean=mean, blind=blind)
    assert after(scores=scores).startswith(said)
    assert "protect" not in after(scores=scores)
    found = FOUND.model_copy(update={"stage": ["posterior", "o"], "scores": scores})
    said = summary_lines(found, Path("found"))[1]
    how = NO_BETTER if error > 0.1 else f"{NEARER} (posterior)"
    how = "rebuilt: posterior" if error < 1e-4 else how
    assert said == f"record 0: label 3, {how}, 10.0 dB to record 0 of the truth"
    # What algebra gives and the truth does not know is a matter of the truth, and no protection.
    by_algebra = after(scores=scores, stage=["exact", "prior"])
    assert by_algebra.startswith(("A leak", "A weak leak", "The truth speaks against")), by_algebra


def test_an_attack_that_failed_names_that_another_may_succeed():
    for change in (
        {"relative_residual": 0.9},
        {"relative_residual": 1.0, "supported": [False] * 2},
    ):
        said = after(**change)
        assert "another attack may succeed" in said
        assert "protect" not in said
        assert "No leak" not in said
        assert after(**change, noise_std=1.0).startswith("No leak shown")


def test_the_summary_names_every_record_what_is_unexplained_and_the_folder():
    found = FOUND.model_copy(update={"stage": ["exact", "prior"], "relative_residual": 2e-7})
    assert summary_lines(found, Path("found")) == [
        "2 records from 2 intercepts of 26 parameters, preset matched",
        "record 0: label 3, exact",
        "record 1: label 1, the public guess, nothing better is supported",
        "unexplained: 2e-7 of the gradient's norm",
        "A leak is shown.",
        "Written to found.",
    ]
