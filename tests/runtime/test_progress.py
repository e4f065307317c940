"""Tasks count work; a display sees those of the main thread."""

import threading

from heed.runtime.progress import Task, displayed_on, duration, progress, track


class Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    def begin(self, task: Task) -> None:
        self.seen.append(("begin", task.title, task.done))

    def end(self, task: Task) -> None:
        self.seen.append(("end", task.title, task.done))


def test_a_display_sees_begin_and_end_of_nested_tasks_and_of_failed_ones():
    recorder = Recorder()
    with displayed_on(recorder):
        for _ in track(range(2), "outer", total=2, unit="steps"):
            try:
                with progress("inner") as task:
                    task.advance(3)
                    raise ValueError
            except ValueError:
                pass
    inner = [("begin", "inner", 0), ("end", "inner", 3)]
    assert recorder.seen == [("begin", "outer", 0), *inner, *inner, ("end", "outer", 2)]


def test_tasks_of_other_threads_and_without_a_display_are_not_shown():
    recorder = Recorder()
    with displayed_on(recorder):
        thread = threading.Thread(target=lambda: list(track("ab", "elsewhere", unit="letters")))
        thread.start()
        thread.join()
    assert list(track("ab", "afterwards", unit="letters")) == ["a", "b"]
    assert not recorder.seen


def test_the_time_left_follows_from_the_speed_since_the_start(monkeypatch):
    task = Task("Encoding", 1_200, "pairs", done=200, started=0.0, done_before=200)
    monkeypatch.setattr("time.monotonic", lambda: 10.0)
    assert task.seconds_left is None and str(task) == "Encoding: 200 of 1,200 pairs."
    task.advance(100)  # 100 in 10 s: the other 900 take 90 s
    assert str(task) == "Encoding: 300 of 1,200 pairs, 1m30s left."
    assert str(Task("Reading", unit="lines", done=50, started=0.0)) == "Reading: 50 lines, 5 a second."
    assert str(Task("Importing", started=0.0)) == "Importing: 10s so far."


def test_durations():
    assert [duration(s) for s in (0.5, 59, 75, 4000)] == ["0s", "59s", "1m15s", "1h06m"]
