"""A policy: what is read, and what is refused in which words."""

from pathlib import Path

import pytest

from overhear.reports.judgement.policy import load_policy, policy_schema

LIMIT = '[[limits]]\nadversary = "eavesdropper"\nepsilon = 8\ndelta = 1e-5\n'
BASIC = f"schema = 1\n{LIMIT}"


def load(tmp_path: Path, text: str):
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return load_policy(path)


def test_a_limit_has_the_units_of_the_run_file_by_default(tmp_path):
    (limit,) = load(tmp_path, BASIC).limits
    assert (limit.adversary, limit.epsilon, limit.delta) == ("eavesdropper", 8.0, 1e-5)
    assert (limit.unit, limit.adjacency) == ("record", "add-or-remove-one")


def test_a_complete_run_is_asked_for_by_default_and_an_audit_is_not(tmp_path):
    evidence = load(tmp_path, BASIC).evidence
    assert evidence.complete_run
    assert not evidence.wants_audit


@pytest.mark.parametrize(
    "key", ["audit_canaries = 1000", "audit_confidence = 0.9", "audit_ideal = 0.5"]
)
def test_either_key_of_an_audit_asks_for_one(tmp_path, key):
    assert load(tmp_path, f"{BASIC}[evidence]\n{key}\n").evidence.wants_audit


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LIMIT, "schema is missing; it must be 1"),
        (BASIC.replace("= 1\n", "= 2\n"), "schema=2 must be 1"),
        ("schema = 1\n", "limits is missing; it must be tables; write each as [[limits]]"),
        ("schema = 1\nlimits = []\n", "a policy without a limit passes everything"),
        (BASIC.replace("[[limits]]", "[limits]"), "must be tables; write each as [[limits]]"),
        (
            BASIC.replace("epsilon", "epsilom"),
            "[[limits]] number 1: epsilom is unknown; did you mean epsilon?",
        ),
        (
            BASIC + '[code]\nnames = [{key = "data", name = "m:f"}]\n',
            "[code] names number 1: key must be one of data.name, model.name",
        ),
        (
            BASIC + '[code]\nnames = [{key = "data.name", name = "m:f", option = {}}]\n',
            "[code] names number 1: option is unknown; names must be tables such as",
        ),
        (BASIC + '[code]\nnames = "mine:net"\n', "[code] names='mine:net' must be tables such as"),
        (BASIC + "[evidense]\n", "evidense is unknown; did you mean evidence?"),
        (
            BASIC + "[evidence]\ncanaries = 3\n",
            "[evidence] canaries is unknown; did you mean audit_canaries?",
        ),
        (BASIC + "[evidence]\nepsilon = 3\n", "it belongs under [[limits]]"),
        (BASIC.replace("= 8", "= 0"), "epsilon=0 must be a finite number greater than 0"),
        (BASIC.replace("= 8", "= inf"), "epsilon=inf must be a finite number greater than 0"),
        (BASIC.replace("= 8", "= nan"), "epsilon=nan must be a finite number greater than 0"),
        (BASIC.replace("= 8", '= "8"'), "must be a finite number greater than 0"),
        (BASIC.replace("= 1e-5", "= 1"), "delta=1 must be a number in (0, 1)"),
        (
            BASIC.replace('"eavesdropper"', '"eavesdroper"'),
            "number 1: adversary 'eavesdroper' is unknown; use one of",
        ),
        (BASIC.replace('"eavesdropper"', '"eavesdroper"'), "did you mean eavesdropper?"),
        (
            BASIC + 'adjacency = "replace_one"\n',
            "must be one of add-or-remove-one, zero-out, replace-one; did you mean replace-one?",
        ),
        (
            BASIC + '[evidence]\nattack_presets = ["match"]\n',
            "must be a list of dlg, idlg, inverting-gradients, matched, posterior; did you mean "
            "matched?",
        ),
        (BASIC + "[evidence]\naudit_canaries = 0\n", "must be an integer of at least 1"),
        (BASIC + "[evidence]\naudit_ideal = 1\n", "audit_ideal=1 must be a number in (0, 1)"),
        (BASIC + "[evidence]\ncomplete_run = 1\n", "complete_run=1 must be true or false"),
        (BASIC + "evidence = 3\n", "evidence is unknown"),
        ("schema = 1\nevidence = 3\n" + LIMIT, "evidence=3 must be a table"),
        (BASIC + "x = [\n", "is not TOML"),
    ],
)
def test_a_wrong_policy_is_refused_in_its_own_words(tmp_path, text, words):
    with pytest.raises(ValueError, match=r"policy\.toml") as refusal:
        load(tmp_path, text)
    assert words in str(refusal.value)


def test_every_problem_is_told_at_once(tmp_path):
    with pytest.raises(ValueError, match="has 3 problems") as refusal:
        load(tmp_path, BASIC.replace("= 8", "= -1").replace("1e-5", "2").replace("= 1\n", "= 7\n"))
    assert len(str(refusal.value).splitlines()) == 4


def test_no_policy_is_no_policy(tmp_path):
    with pytest.raises(FileNotFoundError, match="no policy at"):
        load_policy(tmp_path / "none.toml")


def test_a_hostile_key_is_shown_harmless(tmp_path):
    with pytest.raises(ValueError, match="unknown") as refusal:
        load(tmp_path, f'{BASIC}"\\u001b[2J\\nPASSED" = 1\n')
    assert "\x1b" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["eavesdropper", "neighbour", "neighbour:3", "coalition:1,9", "all-others"]
)
def test_every_adversary_of_a_run_file_can_have_a_limit(tmp_path, name):
    assert load(tmp_path, BASIC.replace("eavesdropper", name)).limits[0].adversary == name


def test_every_key_of_the_schema_has_a_demand():
    from overhear.reports.judgement import policy

    found = policy_schema()
    keys = {*found["properties"]}
    for table in found["$defs"].values():
        keys |= {*table["properties"]}
    assert keys == policy._DEMANDS.keys()


def test_the_example_is_a_policy():
    path = Path(__file__).parents[3] / "examples/policy.toml"
    assert load_policy(path).limits[0].adversary == "eavesdropper"


def test_a_limit_may_be_on_membership_tests_alone(tmp_path):
    (limit,) = load(
        tmp_path,
        'schema = 1\n[[limits]]\nadversary = "eavesdropper"\nmax_advantage = 0.1\n'
        "max_tpr_at = {tpr = 0.05, fpr = 0.01}\n",
    ).limits
    assert (limit.epsilon, limit.delta) == (None, None)
    assert [goal.words for goal in limit.goals] == ["advantage 0.1", "TPR 0.05 at FPR 0.01"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("max_advantage = 0", "max_advantage=0 must be a number in (0, 1)"),
        ("max_advantage = 1.0", "max_advantage=1.0 must be a number in (0, 1)"),
        ("max_advantage = nan", "max_advantage=nan must be a number in (0, 1)"),
        ("max_tpr_at = 0.1", "max_tpr_at=0.1 must be two rates in (0, 1), such as"),
        ("max_tpr_at = {tpr = 0.1}", "max_tpr_at.fpr must be a number in (0, 1), below tpr"),
        ("max_tpr_at = {tpr = 2, fpr = 0.1}", "max_tpr_at.tpr must be a number in (0, 1)"),
        ("max_tpr_at = {tpr = 0.1, fpr = 0.1}", "tpr above fpr"),
        ("max_tpr_at = {tpr = 0.2, fpr = 0.1, at = 1}", "max_tpr_at.at is not one of its two"),
        ("max_advantage = 0.1\ndelta = 1e-5", "epsilon is missing"),
        ("epsilon = 1", "delta is missing"),
        ("unit = 'record'", "or give max_advantage or max_tpr_at"),
    ],
)
def test_a_limit_on_membership_tests_that_is_none_is_refused(tmp_path, keys, words):
    with pytest.raises(ValueError, match=r"policy\.toml") as refused:
        load(tmp_path, f'schema = 1\n[[limits]]\nadversary = "eavesdropper"\n{keys}\n')
    assert words in str(refused.value)
