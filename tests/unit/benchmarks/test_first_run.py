"""The first run on a machine with a GPU: its arguments, its limits, what it skips, and what it writes."""

import json
import os
import subprocess
import sys
import time
import zipfile
from importlib import import_module
from pathlib import Path

import psutil
import pytest
from support.programs import imported

FOLDER = Path(__file__).parents[3] / "benchmarks" / "gpu"
HERE = "import os, sys; print('line'); "


@pytest.fixture
def modules():
    with imported("first_run", "benchmarks/gpu"):
        yield {name: import_module(name) for name in ("first_run", "stages", "wheels")}


@pytest.fixture
def first_run(modules):
    return modules["first_run"]


@pytest.fixture
def stage(modules):
    def make(name, code, **options):
        return modules["stages"].Stage(name, options.pop("limit_s", 60), ["-c", HERE + code], **options)

    return make


@pytest.fixture
def play(first_run, monkeypatch, tmp_path):
    """Runs a part of these stages; returns the exit code, and what it wrote by name of stage."""

    def run(*stages, arguments=()):
        monkeypatch.setattr(first_run, "stages_of", lambda *_: list(stages))
        code = first_run.main(["a", "--results", str(tmp_path / "results"), *arguments])
        told = json.loads((tmp_path / "results" / "first-run-a.json").read_text())
        return code, {each["stage"]: each for each in told["stages"]}, told

    return run


def facts(stage, tmp_path, **found):
    """A stage that finds this of the machine."""
    told = {"devices": [], "modules": {}, "faults": {}} | found
    file = tmp_path / "results" / "facts.json"
    return stage("facts", f"open({str(file)!r}, 'w').write({json.dumps(told)!r})")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "part"),
        (["a"], "--results"),
        (["c", "--results", "out"], "invalid choice: 'c'"),
        (
            ["a", "--results", "out", "--only", "two-ranks"],
            "no stage 'two-ranks'. It has: facts, install, preflight, step-profile, steps, tests",
        ),
        (["b", "--results", "out", "--stage-limit", "steps=3"], "no stage 'steps'"),
        (["b", "--results", "out", "--stage-limit", "memcheck=long"], "--stage-limit"),
        (["b", "--results", "out", "--limit", "long"], "--limit"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_arguments_that_are_refused(first_run, capsys, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        first_run.main(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_it_needs_python_alone():
    ran = subprocess.run(
        [sys.executable, "-S", "-E", FOLDER / "first_run.py", "--help"], capture_output=True, text=True
    )
    assert ran.returncode == 0 and "--wheels" in ran.stdout, ran.stderr


@pytest.mark.parametrize(("part", "limit_s"), [("a", 330), ("b", 300)])
def test_the_parts_hold_their_limits_and_name_files_that_exist(first_run, tmp_path, part, limit_s):
    stages = first_run.stages_of(part, tmp_path / "results", tmp_path / "scratch", 8)
    assert sum(stage.limit_s for stage in stages) <= first_run.LIMITS_S[part] == limit_s
    for stage in stages:
        files = [word for word in stage.command if isinstance(word, Path) and word.suffix == ".py"]
        assert all(file.exists() for file in [*files, *stage.paths]), stage.name
        for word in map(str, [*stage.prefix, *stage.command]):
            if word.startswith(("tests/", "examples/")):
                assert (FOLDER.parents[1] / word).exists()
            if word.startswith("/"):
                assert word.startswith((str(tmp_path), str(FOLDER)))


def test_a_stage_that_fails_hangs_or_cannot_start_does_not_stop_the_next_one(stage, play):
    code, stages, told = play(
        stage("fails", "sys.exit('why')"),
        stage("hangs", "sys.stdout.flush(); import time; time.sleep(600)", limit_s=1),
        stage("absent", "", prefix=["no-such-program"]),
        stage("passes", "assert os.environ['STAGE_LIMIT_S'] == '60'; assert os.environ['SINGA_DASK_KERNELS']"),
    )
    assert code == 1 and told["part"] == "a" and told["limit_s"] == 330
    assert {name: each["status"] for name, each in stages.items()} == {
        "fails": "failed",
        "hangs": "late",
        "absent": "failed",
        "passes": "passed",
    }
    assert stages["fails"]["reason"] == "exit code 1; last line: why"
    assert stages["hangs"]["reason"] == "ended at its limit; last line: line"
    assert "no-such-program" in stages["absent"]["reason"]
    assert stages["passes"]["limit_s"] == 60


def test_nothing_of_a_stage_goes_on_behind_its_limit(modules, stage, tmp_path, monkeypatch):
    monkeypatch.setattr(modules["stages"], "GRACE_S", 0.1)
    child = tmp_path / "child"
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    code = f"{ignoring} pid = os.fork(); pid and open({str(child)!r}, 'w').write(str(pid)); time.sleep(600)"
    hangs = stage("hangs", code)
    outcome = modules["stages"].run_stage(hangs, 2, tmp_path / "log.txt", tmp_path, {})
    assert outcome["status"] == "late" and outcome["exit_code"] is None
    pid, deadline = int(child.read_text()), time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_stages_behind_the_limit_of_the_part_are_skipped(stage, play):
    code, stages, _ = play(stage("first", ""), stage("second", ""), arguments=["--limit", "0"])
    assert code == 0
    assert [each["reason"] for each in stages.values()] == ["the part's 0 s are over"] * 2


def test_limits_of_stages_and_the_choice_of_stages(stage, play):
    stages = [stage("first", ""), stage("second", ""), stage("third", "")]
    _, told, _ = play(*stages, arguments=["--only", "first", "--only", "third", "--stage-limit", "third=7"])
    assert {name: each["limit_s"] for name, each in told.items()} == {"first": 60, "third": 7}


def test_what_the_machine_lacks_is_the_reason_for_a_skip(stage, play, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.defpath)
    machine = facts(stage, tmp_path, modules={"cupy": True, "torch": False}, faults={"devices": "no driver"})
    needs = {"module": ("cupy", "torch"), "gpu": ("cupy", "gpu"), "tool": ("ncu",), "own": ()}
    stages = [stage(name, "", needs=need) for name, need in needs.items() if need]
    code, told, whole = play(machine, *stages, stage("own", "", skip=lambda: "nothing to do"), stage("runs", ""))
    assert code == 0 and whole["machine"]["modules"]["torch"] is False
    assert {name: each.get("reason") for name, each in told.items()} == {
        "facts": "",
        "module": "torch is not installed",
        "gpu": "no GPU: no driver",
        "tool": "ncu is not on the PATH",
        "own": "nothing to do",
        "runs": "",
    }


def test_where_the_facts_are_not_known_everything_is_tried(stage, play):
    code, told, _ = play(stage("facts", "sys.exit(1)"), stage("runs", "", needs=("cupy", "gpu")))
    assert code == 1 and told["runs"]["status"] == "passed"


def test_the_facts_of_a_machine_without_a_gpu(first_run, tmp_path):
    assert first_run.main(["a", "--results", str(tmp_path), "--only", "preflight"]) == 0
    told = json.loads((tmp_path / "first-run-a.json").read_text())
    assert told["machine"]["packages"]["numpy"] and told["machine"]["modules"]["pytest"]
    if not told["machine"]["devices"]:
        assert [each["status"] for each in told["stages"]] == ["passed", "skipped"]


def test_part_b_repeats_the_tests_that_failed(first_run, tmp_path):
    def why():
        return next(s for s in first_run.stages_of("b", tmp_path, tmp_path, 8) if s.name == "failed-tests").skip()

    assert "names no test that failed" in why()
    cache = tmp_path / "pytest" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text("{}")
    assert "names no test that failed" in why()
    (cache / "lastfailed").write_text('{"tests/gpu/test_ops.py::test": true}')
    assert why() == ""


def wheel(folder):
    """A wheel of a module, and of a library that belongs beside the environment's other ones, as MPICH's."""
    folder.mkdir()
    info = "carried-1.0.dist-info"
    files = {
        "carried.py": "import numpy\n",
        "carried-1.0.data/data/lib/libmpi.so.12": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / "carried-1.0-py3-none-any.whl", "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return folder


def test_wheels_are_there_for_the_stages_beside_what_python_has(stage, play, tmp_path):
    scratch = tmp_path / "scratch"
    has = stage("has", "import carried; assert os.path.exists(os.environ['MPI4PY_LIBMPI'])")
    arguments = ["--wheels", str(wheel(tmp_path / "wheels")), "--scratch", str(scratch)]
    code, told, _ = play(has, arguments=arguments)
    assert code == 0 and told["install"]["status"] == "passed", told
    before = (scratch / "wheels" / "ready").stat().st_mtime_ns
    play(has, arguments=arguments)
    assert (scratch / "wheels" / "ready").stat().st_mtime_ns == before, "made once"


def test_wheels_that_cannot_be_installed_do_not_stop_the_stages(stage, play, tmp_path):
    (tmp_path / "wheels").mkdir()
    code, told, _ = play(stage("runs", ""), arguments=["--wheels", str(tmp_path / "wheels")])
    assert code == 1 and "has no file *.whl" in told["install"]["reason"]
    assert told["runs"]["status"] == "passed"


def test_workers_that_share_a_gpu_pass_for_hosts_of_their_own():
    code = (
        "import os; from singa_dask.comm import nccl; "
        "assert nccl.device_identity(0) == os.getpid() and os.environ['NCCL_HOSTID'] == f'process {os.getpid()}'"
    )
    paths = os.pathsep.join([str(FOLDER / "shared_gpu"), str(FOLDER.parents[1])])
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, check=True)
