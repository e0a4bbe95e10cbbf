"""Which errors are told in a sentence, and in which words."""

from __future__ import annotations

import pytest

from overhear.privacy.errors import InputError, InputTypeError, NotFiniteError
from overhear.privacy.view.view import UnsupportedView
from overhear.runs.errors import STATED, ContradictedProof, sentence
from overhear.training.engine.checkpoint import BrokenCheckpoint
from overhear.training.engine.transcript import MissingMessage
from overhear.training.exposure.guarantees import UnsupportedMechanism
from overhear.training.step.values import UndeclaredOperation


@pytest.mark.parametrize(
    "kind",
    [
        *(InputError, InputTypeError, NotFiniteError, UnsupportedView, UnsupportedMechanism),
        *(UndeclaredOperation, BrokenCheckpoint, MissingMessage, FileNotFoundError),
    ],
)
def test_what_we_say_about_the_users_input_is_told_in_a_sentence(kind: type[Exception]) -> None:
    assert issubclass(kind, STATED)


@pytest.mark.parametrize("kind", [ValueError, TypeError, KeyError, ArithmeticError, RuntimeError])
def test_what_a_library_or_a_slip_of_ours_raises_is_not(kind: type[Exception]) -> None:
    assert not issubclass(kind, STATED)


def test_a_contradicted_proof_is_neither() -> None:
    assert not issubclass(ContradictedProof, STATED)


def test_a_file_that_the_system_refuses_is_named() -> None:
    with pytest.raises(STATED) as caught:
        open("/nowhere/at/all")  # noqa: SIM115, PTH123
    assert sentence(caught.value) == "/nowhere/at/all: No such file or directory"
