"""The wording, once: every finding, remedy and note has a sentence that names what it must."""

import re
import string
from dataclasses import replace
from typing import Any

import pytest

from overhear.reports.judgement import wording
from overhear.reports.judgement.facts import Facts, facts_of_report
from overhear.reports.judgement.findings import (
    ACTIONS,
    HEADLINES,
    KINDS,
    NOTES,
    PARTS,
    Action,
    Figure,
    Finding,
    Kind,
    Note,
    Quote,
    Remedy,
    fill,
    text_of,
)
from tests.conftest import typed

TEMPLATES = [*KINDS.values(), *ACTIONS.values(), *NOTES.values()]
UNWANTED = ("mend", "false alarm", "stands for")  # others: tests/test_words.py
WORDS: dict[str, Any] = {
    "adversary": "eavesdropper", "known": "final-models", "said": "as stated", "check": "residuals",
    "failed": "residuals", "measured": Figure("lower", 2.34567), "name": "advantage",
    "reached": Figure("precise", 0.13324), "limit_words": "advantage 0.1",
    "proven": Figure("precise", 2.0738), "confidence": Figure("given", 0.95),
    "called": "suspicious", "asked_unit": "agent", "asked_adjacency": "replace-one",
    "asked_delta": Figure("small", 1e-6), "end": 150, "missing": 4, "wanted": 1000, "canaries": 999,
    "preset": "dlg", "saw": "", "attacks": 2, "part": "", "best": "0.031",
    "cleared": "eavesdropper", "library": "dp-accounting 0.6.0", "ours": Figure("precise", 2.0),
    "optimistic": Figure("lower", 1.9), "pessimistic": Figure("precise", 2.1),
    "ratio": Figure("given", 0.95), "within": "1 %", "why": "it would take too long",
    "first": Figure("precise", 2.0), "second": Figure("precise", 2.5), "others": 90, "needed": 100,
    "attack": "LiRA online", "model": "average", "rate": Figure("bound", 0.2), "references": 16,
    "games": 4, "verdict_word": "within the proof",
}  # fmt: skip
FIX: dict[str, Any] = {
    "rounds": (Figure("whole", 25), " rounds"),
    "multiplier": Figure("precise", 2.81234),
    "why": "the run has 2000 agents",
    "tries": "--set a=b",
}


@pytest.fixture
def facts(report):
    return replace(facts_of_report(typed(report)), victim=3)


def found(facts: Facts, kind: Kind, **of: Any) -> Finding:
    claim = facts.head
    given = {"adversary": claim.adversary, "figure": claim.epsilon, "limit": 1.0, "claim": claim}
    return Finding(kind=kind, words=WORDS, **{**given, **of})


def test_every_kind_every_action_and_every_note_has_one_phrase():
    assert KINDS.keys() == set(Kind)
    assert ACTIONS.keys() == set(Action)
    assert NOTES.keys() == set(Note)


@pytest.mark.parametrize("which", TEMPLATES)
def test_a_phrase_is_sentences_without_words_that_only_we_use(which):
    parts = string.Formatter().parse(which)
    text = "".join(literal + "x" * (field is not None) for literal, field, *_ in parts)
    assert not [word for word in UNWANTED if word in text.lower()]
    assert text.count("`") % 2 == 0
    assert "  " not in text
    assert which.endswith((".", "{said}", "{more}", "{at_most}."))
    assert which[0] in '{`"' or which[0].isupper() or which.startswith("privacy.json")


@pytest.mark.parametrize("kind", list(Kind))
def test_every_finding_makes_a_sentence(facts, kind):
    said = text_of(wording.sentence(found(facts, kind), facts))
    assert not re.search(r"[{}]|None|  |\.\.", said)


@pytest.mark.parametrize("action", list(Action))
def test_every_remedy_makes_a_sentence_with_the_delta_of_its_figure(facts, action):
    remedy = Remedy(action=action, epsilon=0.97, words=FIX, over=True, others=facts.claims[1:3])
    for finding in (found(facts, Kind.OVER), found(facts, Kind.OVER, limit=facts.limit)):
        said = text_of(wording.action_sentence(remedy, finding, facts))
        assert not re.search(r"[{}]|None|  |\.\.", said)
        assert ("0.9700" not in said) or "0.9700 at delta 1e-5" in said
    smaller = replace(remedy, delta=1e-7)
    said = text_of(wording.action_sentence(smaller, found(facts, Kind.OVER), facts))
    assert ("0.9700" not in said) or "0.9700 at delta 1e-7" in said


@pytest.mark.parametrize("kind", [Kind.OVER, Kind.HEURISTIC, Kind.UNPROTECTED, Kind.WITHIN])
def test_a_finding_about_a_figure_names_it_with_its_limit_and_its_adversary(facts, kind):
    said = text_of(wording.sentence(found(facts, kind), facts)).lower()
    assert "the eavesdropper" in said
    assert ("infinite" if kind is Kind.UNPROTECTED else "delta 1e-5") in said
    assert "limit of 1" in said or "limit is 1" in said or "only a proven figure passes" in said


@pytest.mark.parametrize("kind", list(HEADLINES))
def test_a_headline_is_one_line_without_a_full_stop(facts, kind):
    said = text_of(wording.headline(found(facts, kind), facts))
    assert said[-1] not in ".,"
    assert len(said) < 90


def test_an_infinite_figure_without_a_target_is_still_said_to_protect_nothing(facts):
    said = text_of(wording.headline(found(facts, Kind.UNPROTECTED, limit=None), facts))
    assert said == "No target was set, and nothing protects a record from the eavesdropper"
    said = text_of(wording.headline(found(facts, Kind.HEURISTIC, limit=None), facts))
    assert said == "No target was set, so nothing is met or missed"


def test_a_figure_that_is_just_over_its_limit_is_written_with_every_digit(facts):
    claim = replace(facts.head, epsilon=4.000000000000001)
    finding = found(facts, Kind.OVER, claim=claim, limit=4.0)
    assert "4.000000000000001 at delta 1e-5, just over the limit of 4." in text_of(
        wording.sentence(finding, facts)
    )


def test_a_verdict_of_an_audit_alone_is_told_as_such(facts):
    finding = Finding(kind=Kind.SUSPICIOUS, words={"verdict": "suspicious"})
    assert wording.plain_sentences(finding, facts) == "The verdict of the audit is suspicious."


def test_an_audit_that_measured_nothing_is_not_given_a_figure(facts):
    words = {key: value for key, value in WORDS.items() if key != "measured"}
    finding = Finding(kind=Kind.SUSPICIOUS, adversary="eavesdropper", words=words)
    said = "The audit calls eavesdropper suspicious (as stated)."
    assert wording.plain_sentences(finding, facts) == said


@pytest.mark.parametrize(
    ("name", "worst", "said"),
    [
        ("eavesdropper", None, "the eavesdropper"),
        ("neighbour", "neighbour:1", "the worst single neighbour (agent 1)"),
        ("neighbour:3", None, "agent 3"),
        ("coalition:1,9", None, "agents 1 and 9 together"),
        ("all-others", "coalition:1,2", "all other agents together"),
        ("final-models", None, "a holder of the final models"),
        ("single-message", None, "a reader of one message"),
        ("<b>", None, "<b>"),
    ],
)
def test_an_adversary_has_one_name(facts, name, worst, said):
    assert wording.who(replace(facts.head, adversary=name, worst_adversary=worst), facts) == said


def test_an_eavesdropper_who_cannot_read_the_links_is_said_to_read_the_models(facts):
    for hidden in (replace(facts, encrypted=True), replace(facts, agents=1)):
        assert wording.who(hidden.head, hidden) == (
            "the eavesdropper (who reads the released models alone)"
        )


def test_what_somebody_else_chose_is_quoted_and_our_own_words_are_not():
    made = fill("`{code}` is {figure}{rest}", code="a`b\n", figure=Figure("bound", 2.07), rest=())
    assert made == ("`", Quote("a`b\n"), "` is ", Figure("bound", 2.07))
    assert text_of(made) == "`a`b\\n` is 2.07"


def test_a_field_that_is_not_given_is_an_error():
    with pytest.raises(KeyError, match="figure"):
        fill("{figure}")


def test_a_remedy_of_a_figure_below_zero_is_refused():
    with pytest.raises(ValueError, match="epsilon=-1 must be a number >= 0"):
        Remedy(action=Action.SEED, epsilon=-1)


def test_no_phrase_is_written_twice():
    every = [*TEMPLATES, *HEADLINES.values(), PARTS["closest"], PARTS["most"]]
    assert len(every) == len(set(every))
