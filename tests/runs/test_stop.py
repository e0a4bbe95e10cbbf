"""What `Stop` ends at once, what it finishes first, and what it says then."""

import threading

import pytest

from overhear.runs.stop import Interrupted, Stop, naming


def test_what_is_not_held_ends_where_it_is():
    stop = Stop()
    stop.note("nothing was written")
    with pytest.raises(Interrupted, match=r"^stopped; nothing was written$") as ended:
        stop.ask(15)
    assert ended.value.code == 143


def test_the_first_signal_gives_the_code():
    stop = Stop()
    stop.finish()
    stop.ask(15)
    stop.ask(2)
    assert stop.ended("").code == 143


def test_a_second_signal_raises_nothing_on_the_way_out():
    stop = Stop()
    with pytest.raises(Interrupted):
        stop.ask(2)
    stop.ask(2)


def test_a_failure_of_what_is_held_is_told_in_place_of_the_stop():
    stop = Stop()

    def fails() -> None:
        stop.ask(2)
        raise OSError("full")

    with pytest.raises(OSError, match="full"), stop.held():
        fails()


def test_done_work_ends_as_if_nobody_had_asked_until_there_is_more():
    stop = Stop()
    with stop.held():
        stop.ask(2)
        stop.finish()
    with pytest.raises(Interrupted):
        stop.go_on()


def test_another_thread_asks_and_the_command_ends_where_it_is_checked():
    stop = Stop()
    asking = threading.Thread(target=stop.ask, args=(15,))
    asking.start()
    asking.join()
    with pytest.raises(Interrupted), stop.held():
        raise AssertionError("it is not begun")


def test_the_second_time_says_what_was_noted():
    stop, told = Stop(), []
    stop.at_once = told.append
    stop.signal = 1
    stop.note("rounds 3 to 5 are lost")
    stop.end_now()
    (ended,) = told
    assert (str(ended), ended.code) == ("ended at once; rounds 3 to 5 are lost", 129)


def test_a_run_that_is_part_of_a_command_names_how_it_goes_on(tmp_path):
    path = tmp_path / "run.toml"
    with pytest.raises(Interrupted, match=r"^stopped$"), naming("`go on`", run_file=path):
        raise Interrupted("stopped", signal=2)
    path.touch()
    with pytest.raises(Interrupted, match=r"^stopped: `go on`$"), naming("`go on`", run_file=path):
        raise Interrupted("stopped", signal=2)


def test_what_is_held_is_finished_first_and_then_the_command_ends():
    stop, done = Stop(), []

    def work() -> None:
        stop.ask(2)
        done.append("finished")

    with pytest.raises(Interrupted), stop.held():
        work()
    assert done == ["finished"]
