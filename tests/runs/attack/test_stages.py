"""Every exact stage before everybody who says what it found: one stage, one answer."""

from pathlib import Path

import pytest
import torch

from overhear.attacks.exact.stages import STAGES, Proof, count_proven, part_name, proof_of
from overhear.attacks.interception.names import NEARER, NO_BETTER, found_in_all, what_was_found
from overhear.attacks.inversion.fallback import fall_back
from overhear.attacks.problem.problem import Found
from tests.attacks.inversion.test_fallback import network, problem_of, seen_of, truth
from tests.runs.attack.gradients.test_words import after

DOCS = Path(__file__).parents[3] / "docs"
PROVES = {stage.name: stage.proves for stage in STAGES}
OTHERS = ("optimisation", "denoiser", "posterior", "prior", "not identified", "exact, approximate")


def stays(stage: str) -> bool:
    """Whether an image that leaves all of a gradient replaces the guess."""
    model, x = network(), truth()
    problem = problem_of(model, seen_of(model, x, 1), x[0])
    found = Found(pixels=1 - x, labels=torch.tensor([0]), iterations=0, stage=stage)
    return fall_back(problem, found, torch.Generator(), search=lambda _: found).supported[0]


@pytest.mark.parametrize("stage", [*PROVES, *OTHERS])
def test_a_stage_is_the_same_to_whoever_tells_of_it(stage):
    proven = PROVES.get(stage) is Proof.RECORD
    assert (proof_of(stage) is Proof.RECORD) is proven
    assert count_proven([stage, stage]) == (2 if proven else 0)
    for left in (1e-5, 0.9):  # a certificate of its own does not ask what the gradient's norm says
        said = after(stage=[stage, stage], relative_residual=left)
        assert ("can be had from the gradient by algebra" in said) is proven
        assert ("Another batch" in said) is (not proven and left < 0.1 and stage != "signs")
    assert stays(stage) is proven
    # What algebra gives is rebuilt; an estimate is so only where it is nearer than the guess.
    words = what_was_found(stage, 0.0, 0.0)
    assert words.startswith("rebuilt") is (proven or stage == "exact, approximate")
    assert "rebuilt" not in what_was_found(stage, 0.07, 0.06)


def test_what_is_no_better_than_the_blind_guess_is_never_called_rebuilt():
    for error in (0.06, 0.05999999, 0.3, float("nan")):
        assert what_was_found("posterior", error, 0.06, 0.5) == NO_BETTER
        assert found_in_all([NO_BETTER, "blind guess"], error, 0.06) == NO_BETTER
    assert what_was_found("posterior", 0.05, 0.06, 0.04) == f"{NEARER} (posterior)"
    assert what_was_found("posterior", 0.03, 0.06, 0.04) == "rebuilt: posterior"
    assert what_was_found("not identified", 0.06, 0.06) == "blind guess, not identified"


def test_an_average_under_noise_and_what_several_records_make_prove_nothing():
    unproven = [name for name, proves in PROVES.items() if proves is Proof.NOTHING]
    assert unproven == ["first layer", "one direction", "signs"]


@pytest.mark.parametrize("stage", PROVES)
def test_a_stage_is_documented(stage):
    rows = (DOCS / "attack-stages.md").read_text().splitlines()
    assert any(f"`{stage}`" in row.split("|")[1] for row in rows if row.startswith("| `"))


def test_of_a_batch_that_is_certified_in_part_that_part_is_proven():
    name = part_name(1, 1)
    assert proof_of(name) is Proof.PART
    assert count_proven([name] * 4) == 2  # of two such batches
    assert count_proven([name, "prior"]) == 1  # the other is not supported
    more = part_name(4, 2)
    assert count_proven([more] * 2 + ["prior"] + [more] * 2 + ["prior"]) == 4
    said = after(stage=[name] * 2, relative_residual=0.9)
    assert said.startswith("A leak is shown: 1 of 2 records can be had")
    assert said.endswith("The others were searched for.")
