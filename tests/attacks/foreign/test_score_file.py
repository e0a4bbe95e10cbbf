import numpy as np
import pytest

from overhear.attacks.foreign import scores_audit as score_file
from overhear.attacks.foreign.scores_audit import read_scores
from overhear.privacy.errors import InputError


def written(tmp_path, text):
    path = tmp_path / "s.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_columns_may_come_in_any_order(tmp_path):
    text = "\ufeffIncluded, score ,canary\nin,0.5,a\nFALSE,-inf,b\n\n"
    read = read_scores(written(tmp_path, text))
    assert read.scores.tolist() == [0.5, -np.inf]
    assert read.included.tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the column 'score' is missing"),
        ("score\n1\n", "the column 'included' is missing"),
        ("score,included,score\n1,1,1\n", "is there twice"),
        ("score,included,weight\n1,1,1\n", "there is a column 'weight'"),
        ("score,included\n1\n", "line 2: 1 values for 2 columns"),
        ("score,included\nhigh,1\n", "line 2: score 'high' must be a number"),
        ("score,included\nnan,1\n", "line 2: the score is not a number"),
        ("score,included\n1,maybe\n", "included 'maybe' must be one of"),
        ("score,included,split\n1,1,test\n", "there is a column 'split'"),
        ("score,included,canary\n1,1,a\n2,0,a\n", "line 3: canary 'a' was there"),
        ("score,included,canary\n1,1,\u00e9\n2,0,e\u0301\n", "line 3: canary .* was there"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
        ("score,included\n" + "1" * 200_000 + ",1\n", "line 2: field larger"),
    ],
)
def test_what_holds_no_scores_is_refused_with_its_line(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        read_scores(written(tmp_path, text))


def test_a_large_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = written(tmp_path, "score,included\n1,1\n")
    monkeypatch.setattr(score_file, "MOST", 0)
    with pytest.raises(InputError, match="more than 0 canaries"):
        read_scores(path)
    monkeypatch.setattr(score_file, "_MOST_BYTES", 5)
    with pytest.raises(InputError, match="at most 5 are read"):
        read_scores(path)
