"""What crossed each link, kept and read back."""

import pytest
import torch

from overhear.training.engine.transcript import Message, Transcript


def message(round: int = 1, kind: str = "model") -> Message:
    return Message(
        round=round, call=0, kind=kind, senders=torch.tensor([0, 1, 2]),
        links=torch.tensor([[0, 1], [0, 2], [1, 0], [2, 0]]),
        rows=torch.arange(6.0).reshape(3, 2),
    )  # fmt: skip


def test_a_row_is_found_by_its_link():
    transcript = Transcript()
    transcript(message())
    assert transcript.sent(round=1, kind="model", sender=2, receiver=0).tolist() == [4.0, 5.0]
    with pytest.raises(LookupError, match="from agent 1 to 2"):
        transcript.sent(round=1, kind="model", sender=1, receiver=2)


def test_only_wanted_rounds_are_kept():
    transcript = Transcript([2])
    transcript(message(1))
    transcript(message(2))
    assert [m.round for m in transcript] == [2]


def test_only_what_touches_the_wanted_agents_is_kept():
    transcript = Transcript(agents=[1])
    transcript(message())
    (kept,) = transcript
    assert kept.senders.tolist() == [0, 1]
    assert sorted(kept.links.tolist()) == [[0, 1], [0, 2], [1, 0]]
    assert transcript.sent(round=1, kind="model", sender=1, receiver=0).tolist() == [2.0, 3.0]


def test_a_kept_message_does_not_change_with_the_run():
    transcript, sent = Transcript(), message()
    transcript(sent)
    sent.rows.zero_()
    assert next(iter(transcript)).rows.abs().sum() > 0


def test_a_saved_transcript_reads_back_and_is_not_overwritten(tmp_path):
    transcript = Transcript()
    transcript(message(1, "model"))
    transcript(message(3, "cross-gradient"))
    transcript.save(tmp_path)
    back = Transcript.load(tmp_path)
    assert [(m.round, m.kind) for m in back] == [(1, "model"), (3, "cross-gradient")]
    for mine, theirs in zip(transcript, back, strict=True):
        for name in ("senders", "links", "rows"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name))
    with pytest.raises(FileExistsError, match="never overwritten"):
        transcript.save(tmp_path)
