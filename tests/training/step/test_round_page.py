"""docs/round.md names every operation of a round, with every parameter, and no other."""

import inspect
import re
from pathlib import Path

import pytest

from overhear.training import Round

PAGE = Path(__file__).parents[3] / "docs" / "round.md"

PUBLIC = {name: member for name, member in vars(Round).items() if not name.startswith("_")}
OPERATIONS = sorted(name for name, member in PUBLIC.items() if callable(member))
ATTRIBUTES = sorted(
    {name for name in Round.__annotations__ if not name.startswith("_")}
    | PUBLIC.keys() - set(OPERATIONS)
)


def entries() -> dict[str, str]:
    """What the page's signatures say in parentheses behind each operation."""
    return dict(re.findall(r"^`round\.(\w+)\((.*?)\) -> ", PAGE.read_text("utf-8"), re.M))


def test_every_operation_has_an_entry_and_nothing_else_has():
    assert sorted(entries()) == OPERATIONS


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_entry_names_every_parameter_in_order_with_its_default(name):
    written = [re.sub(r":.*", "", part).strip() for part in split(entries()[name])]
    assert [part for part in written if part != "*"] == [
        shown(parameter)
        for parameter in list(inspect.signature(PUBLIC[name]).parameters.values())[1:]
    ]


def split(text: str) -> list[str]:
    """The text at its commas outside brackets."""
    return re.split(r",\s*(?![^()]*\))", text) if text else []


def shown(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    default = parameter.default
    written = f'"{default}"' if isinstance(default, str) else repr(default)
    return f"{parameter.name}={written}"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_every_attribute_is_on_the_page(name):
    assert re.search(rf"^`round\.{name}`", PAGE.read_text("utf-8"), re.M)


def test_the_page_names_nothing_that_a_round_does_not_have():
    named = set(re.findall(r"\bround\.(?!md\b)(\w+)", PAGE.read_text("utf-8")))
    assert named - set(OPERATIONS) - set(ATTRIBUTES) == set()
