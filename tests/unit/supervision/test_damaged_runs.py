"""Runs whose folder is damaged: sound checkpoints are used, and what is damaged is named in a sentence."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
from support.shards import write_shards
from support.special_files import CALLED, put

from singa_dask.errors import CheckpointError, SingaError
from singa_dask.job import Job
from singa_dask.layers import InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.monitor.progress import Display
from singa_dask.supervision.driver import train
from singa_dask.updaters import SGD

pytestmark = pytest.mark.timeout(20, method="signal", func_only=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 4 steps with checkpoints at 2 and 4, and its job."""
    folder = tmp_path_factory.mktemp("trained")
    labels = np.arange(60) % 2
    write_shards(folder / "data", np.stack([labels, 1 - labels], 1).astype(np.float32), labels)
    layers = [RecordInput(path=str(folder / "data"), batchsize=30), InnerProduct(num_output=2), SoftmaxLoss()]
    often = {"checkpoint_freq": 2, "disp_freq": 1}
    make = partial(Job, name="points", layers=layers, updater=SGD(lr=0.1), **often)
    train(make(train_steps=4), processes=False, workspace=folder / "run", display=Display(), curves=False)
    return folder / "run", make


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def resumes(trained, run, caplog):
    """Resumes the run for some more steps; returns what was said."""

    def resume(steps=6):
        said, display = [], Display()
        display.say = said.append
        job = trained[1](train_steps=steps)
        result = train(job, processes=False, workspace=run, resume=True, display=display, curves=False)
        assert result.summary["status"] == "completed" and result.checkpoint.name == f"step-{steps:08d}.h5"
        return "\n".join([caplog.text, *said])

    return resume


# A file of a run, and what is written to it, added as a line, or put in its place.
RECORDS = {
    "summary: a list": ("summary.json", "write", b"[]"),
    "summary: other types": ("summary.json", "write", b'{"groups": 7, "step": "x"}'),
    "summary: of groups": ("summary.json", "write", b'{"status": "completed", "groups": {"a": {}}}'),
    "summary: torn": ("summary.json", "write", b'{"status": "comp'),
    "summary: bytes": ("summary.json", "write", b"\xff\xfe\x00"),
    "summary: deep": ("summary.json", "write", b"[" * 100_000),
    "summary: fifo": ("summary.json", "put", "fifo"),
    "summary: folder": ("summary.json", "put", "folder"),
    "metrics: folder": ("metrics.jsonl", "put", "folder"),
    "metrics: fifo": ("metrics.jsonl", "put", "fifo"),
    "metrics: device": ("metrics.jsonl", "put", "null"),
    "metrics: a list": ("metrics.jsonl", "add", b"[1]"),
    "metrics: no step": ("metrics.jsonl", "add", b'{"phase": "train", "group": 0}'),
    "metrics: step": ("metrics.jsonl", "add", b'{"phase": "train", "group": 0, "step": "many"}'),
    "metrics: zeros": ("metrics.jsonl", "add", b"\x00" * 100),
    "metrics: half a line inside": ("metrics.jsonl", "add", b'{"gro{"group": 0}'),
    "metrics: a line without end": ("metrics.jsonl", "add", b" " * (3 << 20)),
    "events: fifo": ("events.jsonl", "put", "fifo"),
    "events: folder": ("events.jsonl", "put", "folder"),
    "events: a number": ("events.jsonl", "add", b"7"),
    "events: no fields": ("events.jsonl", "add", b'{"event": "restart"}'),
    "events: a replica": ("events.jsonl", "add", b'{"event": "replica outdated", "server_group": "x"}'),
    "events: half a pair": ("events.jsonl", "add", b'{"event": "begun", "group": 0, "steps": [[1]]}'),
    "events: begun": ("events.jsonl", "add", b'{"event": "begun", "group": 0, "steps": {"0": 1}}'),
}


@pytest.fixture
def named(run, request):
    """What is named of the damage that the test is about, which has been done."""
    name, act, content = RECORDS[request.param]
    if act == "put":
        put(content, run / name)
        return name
    before = (run / name).read_bytes() if act == "add" else b""
    (run / name).write_bytes(before + content + b"\n" * (act == "add"))
    return f"{name}: line {before.count(10) + 1}" if act == "add" else name


@pytest.mark.parametrize("named", RECORDS, indirect=True)
def test_an_audit_names_what_is_damaged_and_goes_on(here, run, named):
    ran = here("audit", run)
    assert ran.code in (0, 1) and ran.out.splitlines()[-1].startswith(("clean: 4", "not clean: 4")), ran
    told = json.loads(here("audit", run, "--json").out)["damaged"]
    assert len(told) == 1 and named in told[0] and " ".join(told) in " ".join(ran.out.split()), (told, ran.out)


@pytest.mark.parametrize("named", [damage for damage in RECORDS if not damage.startswith("summary")], indirect=True)
def test_a_run_whose_record_is_damaged_resumes(resumes, run, named):
    if (run / named).is_dir():
        with pytest.raises(SingaError, match=rf"{named}.*folder"):
            resumes()
        return
    assert named in resumes()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 6 and all(isinstance(row["step"], int) for row in rows)
    if named.startswith("metrics.jsonl: line"):
        assert [row["step"] for row in rows if row["phase"] == "train"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["fifo", "folder", "zero"])
def test_a_run_whose_id_is_no_file(resumes, run, kind):
    put(kind, run / ".run")
    with pytest.raises(SingaError, match=rf"\.run.*({CALLED[kind]}|symbolic link)"):
        resumes()


def test_a_run_whose_id_is_damaged_gets_another_one(resumes, run):
    (run / ".run").write_bytes(b"\xff" * 5000)
    resumes()
    assert len((run / ".run").read_text()) == 12


CHECKPOINTS = "checkpoint/step-00000002.h5", "checkpoint/step-00000004.h5"
BEST = ("checkpoint/best.h5",)


@pytest.mark.parametrize("kind", CALLED)
@pytest.mark.parametrize(
    ("command", "names", "code"),
    [
        *((command, CHECKPOINTS, 1) for command in ("audit", "test", "predict")),  # without a sound one
        *((command, BEST, 1) for command in ("test", "predict")),
        *((command, ("job.conf",), 2) for command in ("audit", "attach")),
    ],
)
def test_what_is_no_file_is_called_what_it_is(here, run, command, names, code, kind):
    for name in names:
        put(kind, run / name)
    ran = here(command, run)
    assert ran.code == code and CALLED[kind] in ran.err and names[-1] in ran.err and "not found" not in ran.err


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "events.jsonl"])
def test_an_audit_of_a_record_without_an_end(here, run, name):
    put("zero", run / name)
    ran = here("audit", run)
    assert ran.code in (0, 1) and f"{name}: cannot be read (it is {CALLED['zero']}" in " ".join(ran.out.split())


def test_without_a_sound_checkpoint_nothing_is_resumed(resumes, run):
    for name in CHECKPOINTS:
        put("fifo", run / name)
    with pytest.raises(CheckpointError, match=rf"step-00000004\.h5.*{CALLED['fifo']}"):
        resumes()


@pytest.mark.parametrize(
    ("name", "steps", "kind"),
    [*((CHECKPOINTS[1], 3, kind) for kind in CALLED), *((*BEST, 5, k) for k in ("fifo", "folder"))],
)
def test_a_checkpoint_that_is_passed_over_is_named(resumes, run, name, steps, kind):
    put(kind, run / name)
    assert any(name in line and CALLED[kind] in line for line in resumes(steps).splitlines())


@pytest.mark.parametrize(("target", "code"), [("gone.h5", 1), ("elsewhere.h5", 0)])
def test_a_checkpoint_may_be_a_link_to_a_file(here, run, target, code):
    (run / CHECKPOINTS[0]).unlink()
    (run / CHECKPOINTS[1]).rename(run / "elsewhere.h5")
    (run / CHECKPOINTS[1]).symlink_to(run / target)
    ran = here("audit", run)
    assert ran.code == code and ("leads to nothing" in ran.err) == bool(code)
