"""Sentences have a subject, a verb and the field's term: what stands in its place is refused.

Checked are the messages in string literals, the help of the commands, the sentences of the
judgement, the pages of docs/ and the README, but for code, keys and other things in backticks.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = {"tests", "benchmarks", ".venv", ".venv-flower", "build", "dist"}
PAGES = [
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
]
MODULES = [
    path
    for path in ROOT.rglob("*.py")
    if not SKIPPED & set(path.relative_to(ROOT).parts) and not path.name.startswith(".")
]
PATTERNS = {
    r"\btold\b": "prints, reports, learns, is distinguished", r"\bheard\b": "observes, is observed",
    r"\bsaid\b": "declares, states, prints",
    r"\b(?:is|are|was|were|been|be|not|none was|what|as) asked\b": "is requested, is required",
    r"\basked (?:for|about)\b": "requested, required", r"\bto be had\b": "exists, is supported",
    r"\bwhoever\b": "anyone who", r"\bnobody\b": "no one, no adversary, no agent",
    r"\bworst off\b": "at highest risk", r"\bat stake\b": "targets",
    r"\bcoins\b": "an assignment, draws",
    r"\b(?:held|holds?|holding) (?:(?!holds? )[^.|:;,]){0,50}?\bagainst\b": "check X against Y",
    r"\bcounts? as seen\b": "is treated as public", r"\bonlooker": "adversary",
}  # fmt: skip
HELP = re.compile(r"^(?:With|For|Of)\b[^.]*[:,]")
UNWANTED = re.compile("|".join(PATTERNS))


def plain(text: str) -> str:
    """Words alone: without fenced code, code in backticks, comments of HTML and addresses."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`]*`|<!--.*?-->|\]\([^)\s]*\)|\{[^{}]*\}", "", text, flags=re.S)


def messages(source: str) -> str:
    """The literals of a module of more than a word that are no docstrings, one a line."""
    code = re.sub(r'""".*?"""', "", source, flags=re.S)
    whole = re.sub(r'"\s*\n\s*[rf]*"', "", code)
    return "\n".join(text for text in re.findall(r'"([^"\n]*)"', whole) if " " in text)


def helps(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of options and arguments, and the docstrings of commands."""
    for node in ast.walk(module):
        if isinstance(node, ast.keyword) and node.arg == "help":
            yield node.value.lineno, str(getattr(node.value, "value", ""))
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.lineno, ast.get_docstring(node) or ""


# Names of a finding in the JSON of `check` and `report`, which stay as they are.
KEYS = re.compile(r"^(?:not )?held against a second tracer$", re.M)


def faults(text: str) -> list[str]:
    return [match[0] for match in UNWANTED.finditer(KEYS.sub("", plain(text).lower()))]


def test_messages_say_it_in_the_words_of_the_field():
    found = {str(path): faults(messages(path.read_text(encoding="utf-8"))) for path in MODULES}
    assert not {name: words for name, words in found.items() if words}


def test_help_says_it_in_the_words_of_the_field():
    found = {
        (path.name, line): [*faults(text), *HELP.findall(text)]
        for path in sorted((ROOT / "commands").glob("*.py"))
        for line, text in helps(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not {place: words for place, words in found.items() if words}


def test_sentences_of_the_judgement_say_it_in_the_words_of_the_field():
    table = tomllib.loads((ROOT / "reports/judgement/phrases.toml").read_text(encoding="utf-8"))
    assert not faults("\n".join(str(text) for part in table.values() for text in part.values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_it_in_the_words_of_the_field(page):
    assert not faults(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "the record is told from others",
        "what is heard of a run",
        "as said above",
        "every figure that is asked for",
        "scenario is not to be had",
        "Whoever reads it",
        "nobody knows",
        "the agent that is worst off",
        "200 records at stake",
        "fair coins",
        "the run is held against a policy",
        "it holds each reply against the message",
        "what counts as seen",
        "an onlooker",
    ],
)
def test_an_unwanted_word_is_found(text):
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "a command that asks, and a process that it asked to end",
        "keep `told` in backticks, and {said} in braces",
        "It holds a message. Against noise it does nothing.",
        "each record has a coin of its own",
        "the proof holds: against an eavesdropper epsilon is 3",
        "For worst-case gradients it is more",
    ],
)
def test_a_sentence_of_the_field_is_left_alone(text):
    assert not faults(text)
