"""Which errors are told in a sentence, and in which words."""

import pytest
import torch

from overhear.privacy.errors import (
    InputError,
    InputTypeError,
    NotFiniteError,
    UndeclaredOperation,
    UnsupportedView,
)
from overhear.runs.errors import STATED, ContradictedProof, as_stated, sentence
from overhear.training.engine.tensor_file import BrokenCheckpoint
from overhear.training.engine.transcript import MissingMessage
from overhear.training.exposure.sensitivity import UnsupportedMechanism


@pytest.mark.parametrize(
    "kind",
    [
        *(InputError, InputTypeError, NotFiniteError, UnsupportedView, UnsupportedMechanism),
        *(UndeclaredOperation, BrokenCheckpoint, MissingMessage, FileNotFoundError),
    ],
)
def test_what_we_say_about_the_users_input_is_told_in_a_sentence(kind):
    assert issubclass(kind, STATED)


@pytest.mark.parametrize("kind", [ValueError, TypeError, KeyError, ArithmeticError, RuntimeError])
def test_what_a_library_or_a_slip_of_ours_raises_is_not(kind):
    assert not issubclass(kind, STATED)


def test_a_contradicted_proof_is_neither():
    assert not issubclass(ContradictedProof, STATED)


def test_a_file_that_the_system_refuses_is_named():
    with pytest.raises(STATED) as caught:
        open("/nowhere/at/all")  # noqa: SIM115, PTH123
    assert sentence(caught.value) == "/nowhere/at/all: No such file or directory"


def test_what_torch_says_when_memory_runs_out_is_told_in_a_sentence():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    found = as_stated(caught.value)
    assert isinstance(found, STATED)
    assert "DefaultCPUAllocator: can't allocate memory" in sentence(found)
    assert "\n" not in sentence(found)


def test_another_error_of_torch_stays_a_crash():
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert as_stated(error) is error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RecursionError("maximum recursion depth exceeded"), "nested too deep"),
        (MemoryError("Unable to allocate 7 EiB"), r"memory ran out (Unable to allocate 7 EiB)"),
        (MemoryError(), "memory ran out; lower what makes the run large"),
    ],
)
def test_what_comes_of_too_large_an_input_is_told_with_a_remedy(error, words):
    assert isinstance(error, STATED)
    assert words in sentence(error)
