"""Output that goes away, and text of files and jobs on the terminal."""

import errno
import logging
import os
import signal
import sys
from contextlib import chdir
from itertools import repeat
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from support.commands import COMMAND, command_undone, example, run_command, said, sets, started, summary, wait_until
from support.lost_output import Failing
from support.shards import write_shards

from singa_dask.cli import main

LONG = sets(train_steps=100_000, test_freq=0, test_steps=0, checkpoint_freq=0, disp_freq=20)
HOSTILE = "a\x1b[31m\x1b]0;owned\x07\u202e"
SHOWN = r"a\x1b[31m\x1b]0;owned\x07\u202e"

JOB = """
name: "points" train_steps: 8 disp_freq: 2
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "shards" batchsize: 10 } }
  LAYER
  layer { name: "scores" type: kInnerProduct srclayers: "SOURCE" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""
CHATTY = """
import os
import sys

from singa_dask.layers import Layer


class Chatty(Layer):
    def setup(self, *src):
        return src[0]

    def forward(self, ctx, *x):
        print("forward", flush=True)
        print("forward", file=sys.stderr, flush=True)
        with open("descriptors", "w") as file:
            print(*(os.readlink(f"/proc/self/fd/{number}") for number in range(3)), file=file)
        return x[0]

    def backward(self, ctx, dy):
        return dy
"""


@pytest.fixture
def job(tmp_path):
    """A job whose layer prints in the workers."""
    write_shards(tmp_path / "shards", np.zeros((30, 4), np.float32), np.arange(30) % 3)
    (tmp_path / "chatty.py").write_text(CHATTY)
    layer = 'layer { name: "chatty" user_type: "chatty:Chatty" srclayers: "data" }'
    (tmp_path / "job.conf").write_text(JOB.replace("LAYER", layer).replace("SOURCE", "chatty"))
    return tmp_path / "job.conf"


@pytest.fixture
def to(monkeypatch, environment, tmp_path, capsys):
    """Run `singa-dask ARGS` in this process, with a stream as standard output: the exit code, and standard error."""

    def ran(stream, *args):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with command_undone(), chdir(tmp_path):
            sys.stdout = stream
            with pytest.raises(SystemExit) as end:
                main.main([*map(str, args)], prog_name="singa-dask")
        return end.value.code, capsys.readouterr().err

    return ran


COMMANDS = [("--version",), ("check", "--help"), ("check", example())]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_a_command_that_cannot_print_says_so_in_a_sentence_and_fails(to, command):
    with open("/dev/full", "w") as full:
        code, said = to(full, *command)
    sentence = "error: standard output cannot be written (No space left on device)."
    assert code == 1 and said.splitlines()[-1] == sentence and "Traceback" not in said


def test_a_command_without_standard_output_says_so(to):
    assert to(None, "--version") == (1, "error: standard output cannot be written (Bad file descriptor).\n")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_a_command_whose_reader_has_enough_ends_as_it_would_have(to, command):
    assert to(Failing(errno.EPIPE), *command) == (0, "")


def test_a_rank_that_trains_leaves_it_to_the_driver_to_tell_of_its_output(to, monkeypatch):
    monkeypatch.setattr("singa_dask.cli.run._join_mpi", lambda *args: print("a layer's", flush=True))
    with open("/dev/full", "w") as full:
        assert to(full, "train", example(), "--mpi") == (0, "")


def test_a_run_whose_last_line_is_lost_has_not_failed(to, monkeypatch):
    monkeypatch.setattr("singa_dask.cli.run._join_mpi", lambda *args: "a client")
    monkeypatch.setattr("singa_dask.cli.run._drive", lambda *args, **kwargs: SimpleNamespace(interrupted=False))
    with open("/dev/full", "w") as full:
        code, said = to(full, "train", example(), "--mpi")
    assert code == 0 and said.startswith("the output of the run cannot be written (No space left on device)")


def test_an_error_is_an_error_whoever_reads(to, tmp_path):
    code, said = to(Failing(errno.EPIPE), "check", "missing.conf")
    assert code == 2 and said.startswith("error: ") and len(said.splitlines()) == 1


def test_a_run_goes_on_after_its_pipe_was_closed_and_a_stop_saves(environment, tmp_path, job, no_leaks):
    """As in `singa-dask train job.conf 2>&1 | head -1`; the workers' prints go there too."""
    command = ["sh", "-c", '"$@" 2>&1 | head -1', "sh", "sh", "-c", 'echo $$ > pid; exec "$@"', "sh", *COMMAND]
    lines, pid = tmp_path / "run/metrics.jsonl", tmp_path / "pid"
    with started("train", job, "--workspace", "run", *LONG, folder=tmp_path, env=environment, command=command) as pipe:
        wait_until(lambda: lines.exists() and lines.stat().st_size, pipe, tmp_path)
        os.kill(int(pid.read_text()), signal.SIGTERM)
        pipe.wait(timeout=60)
    assert len(said(tmp_path).splitlines()) == 1
    told = summary(tmp_path / "run")
    assert (told["status"], told["stopped_by"], told["output_lost"]) == ("interrupted", "SIGTERM", True)
    assert told["error"] is None
    assert told["checkpoint"].endswith(f"step-{told['step']:08d}.h5") and os.path.exists(told["checkpoint"])


def test_a_run_without_standard_streams_trains(environment, tmp_path, job, no_leaks):
    """Neither sockets nor files may take the numbers of standard output and error, to which libraries write."""
    command = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *COMMAND, "train", job, "--workspace", "run"]
    run_command(command, cwd=tmp_path, env=environment)
    told = summary(tmp_path / "run")
    assert (told["status"], told["step"], told["output_lost"]) == ("completed", 8, True)
    assert (tmp_path / "descriptors").read_text().split() == ["/dev/null"] * 3


def test_names_of_columns_and_classes_are_printed_escaped_and_never_paths(here, tmp_path):
    table = pd.DataFrame({HOSTILE: np.arange(8.0), "../../../a": np.arange(8.0), "y": ["../../evil", "b/c"] * 4})
    (tmp_path / "in").mkdir()
    table.to_csv(tmp_path / "in/table.csv", index=False)
    ran = here("shard", "csv", "--source", "in/table.csv", "--label", "y", "--out", "in/out")
    assert "2 classes: ../../evil, b/c" in ran.out
    told = here("shard", "csv", "--source", "in/table.csv", code=None)
    assert "\x1b" not in ran.out + told.out and SHOWN in told.out
    assert sorted(os.listdir(tmp_path)) == ["in"] and sorted(os.listdir(tmp_path / "in")) == ["out", "table.csv"]


@pytest.mark.parametrize("name", ["../../../a", "km/h", "..", "."])
def test_a_column_that_cannot_have_its_name_in_the_shards_is_refused(here, tmp_path, name):
    pd.DataFrame({"a": np.arange(8.0), "b": np.arange(8.0), name: np.arange(8.0)}).to_csv(tmp_path / "t.csv")
    ran = here("shard", "csv", "--source", "t.csv", "--target", "b", "--target", name, "--out", "out", code=2)
    assert len(ran.err.splitlines()) == 1 and f"Received: {name!r}. Rename it" in ran.err
    assert os.listdir(tmp_path) == ["t.csv"]


@pytest.mark.parametrize(
    ("part", "name", "shown"),
    [
        ('"scores"', f'"{HOSTILE}"', SHOWN),
        ('"scores" type: kInnerProduct', f'"{HOSTILE}" type: kInnerProduct', SHOWN),
        ('srclayers: "data" inner', f'srclayers: "{HOSTILE}" inner', SHOWN),
        ('path: "shards"', f'path: "{HOSTILE}"', SHOWN),
        ('"scores"', '"[/b][red]:smile:"', "[/b][red]:smile:"),
    ],
    ids=["table", "error", "source", "file", "no markup"],
)
def test_text_of_jobs_is_printed_as_it_is_but_for_control_characters(here, job, part, name, shown):
    job.write_text(JOB.replace("LAYER", "").replace("SOURCE", "data").replace(part, name))
    ran = here("check", "job.conf", code=None)
    assert shown in ran.out + ran.err and not set("\x1b\x07\u202e") & set(ran.out + ran.err)


def test_log_messages_are_printed_escaped(capsys):
    with command_undone():
        main.main(["check", "--help"], standalone_mode=False)
        logging.getLogger("singa_dask").warning("%s: raised %s", HOSTILE, ValueError(HOSTILE))
    assert capsys.readouterr().err == f"{SHOWN}: raised {SHOWN}\n"


def test_a_sample_whose_reader_has_enough_ends(to, job, monkeypatch):
    endless = SimpleNamespace(separator="", write=lambda **drawing: repeat("a"))
    monkeypatch.setattr("singa_dask.training.sample.Sampler", lambda *args: endless)
    stream = Failing(errno.EPIPE, 20)
    assert to(stream, "sample", job) == (0, "")
    assert stream.getvalue() == 19 * "a"


def test_a_sample_that_cannot_be_written_has_failed(to, job, monkeypatch):
    nothing = SimpleNamespace(separator="", write=lambda **drawing: ())
    monkeypatch.setattr("singa_dask.training.sample.Sampler", lambda *args: nothing)
    with open("/dev/full", "w") as full:
        assert to(full, "sample", job) == (1, "error: standard output cannot be written (No space left on device).\n")
