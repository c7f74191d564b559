"""Who is called with what, and what becomes of exceptions."""

from pathlib import Path
from unittest.mock import Mock, call

import pytest

from singa_dask import Callback
from singa_dask.errors import ConfigError, TrainingError
from singa_dask.supervision.callbacks import Callbacks, RunEvent

METRICS = {"kind": "metrics", "group": 1, "step": 8, "time": 5.0, "metrics": {"loss": 0.5}}
TRAIN = {**METRICS, "phase": "train", "samples_per_s": 9.0, "wait": [0.1, 0.2], "loading": [0.3, 0.4]}
TEST = {**METRICS, "phase": "test"}
SAVED = {"kind": "checkpoint", "group": 0, "step": 8, "time": 6.0, "path": "/w/step-8.h5"}


def made(*callbacks):
    return Callbacks(callbacks, "digits", Path("/w"), 100)


def test_every_event_goes_to_its_method_and_to_functions_in_order():
    recorder, events = Mock(spec=Callback), []
    callbacks = made(recorder, events.append)
    for event in (TRAIN, {"kind": "progress", "group": 0, "step": 9}, TEST, SAVED):
        assert callbacks.put_from_worker(event) == (event["kind"] != "progress")
    assert not events, "whoever puts is not the one that calls"
    callbacks.put("restart", group=1, step=8, cause="its process died")
    callbacks.put("end", step=8, status="completed")
    callbacks.call()
    assert [event.kind for event in events] == ["step", "test", "checkpoint", "restart", "end"]
    assert recorder.method_calls == [getattr(call, f"on_{event.kind}")(event) for event in events]
    shares = {"samples_per_s": 9.0, "wait": (0.1, 0.2), "loading": (0.3, 0.4)}
    about = {"group": 1, "step": 8, "time": 5.0, "phase": "train", "metrics": {"loss": 0.5}}
    assert events[0] == RunEvent("step", "digits", Path("/w"), 100, **about, **shares)
    assert (events[1].phase, events[1].wait, events[2].path) == ("test", (), Path("/w/step-8.h5"))
    callbacks.call()
    assert len(events) == 5, "each is told once"


def test_one_that_raises_is_called_again_only_at_the_end_and_the_others_go_on(caplog):
    boom, other = Mock(side_effect=ValueError("boom"), __qualname__="boom"), Mock()
    callbacks = made(boom, other)
    for event in (TRAIN, TEST):
        callbacks.put_from_worker(event)
    callbacks.put("end", step=8)
    callbacks.call()
    told = [[given.args[0].kind for given in each.call_args_list] for each in (boom, other)]
    assert told == [["step", "end"], ["step", "test", "end"]]
    assert isinstance(callbacks.error, TrainingError) and isinstance(callbacks.error.__cause__, ValueError)
    assert str(callbacks.error) == "the callback boom raised ValueError at step 8 (step): boom"
    assert "(end)" in caplog.text, "the second is not lost"


def test_the_method_of_an_object_that_raises_is_named():
    class Bad(Callback):
        def on_test(self, event):
            raise SystemExit("enough")

    callbacks = made(Bad())
    callbacks.put_from_worker(TRAIN)
    callbacks.call()
    assert callbacks.error is None
    callbacks.put_from_worker(TEST)
    callbacks.call()
    assert "Bad.on_test raised SystemExit" in str(callbacks.error)


def test_a_second_ctrl_c_in_a_callback_aborts():
    callbacks = made(Mock(side_effect=KeyboardInterrupt))
    callbacks.put_from_worker(TRAIN)
    with pytest.raises(KeyboardInterrupt):
        callbacks.call()


def test_without_callbacks_nothing_is_kept():
    assert not made().put_from_worker(TRAIN)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([Callback], r"must be objects, not classes\. Received: .*Callback.*Write Callback\(\)\."),
        ([3], "must be functions, or objects of classes derived from singa_dask.Callback. Received: 3"),
        (print, r"must be a list.*Write callbacks=\[\.\.\.\]"),
        (Callback(), "must be a list"),
    ],
)
def test_what_cannot_be_called_is_refused(given, says):
    with pytest.raises(ConfigError, match=f"callbacks: {says}"):
        Callbacks(given, "digits", Path("/w"), 100)
