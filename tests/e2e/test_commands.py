"""The other commands, and what they say when something is wrong."""

import os
import signal
import time

import psutil
import pytest
from support.commands import ROOT, cluster, example, said, sets, started, wait_until

# heat needs its data for a check, since it normalises by their statistics; test_first_steps.py makes them.
EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/job.conf") if path.parent.name != "heat")


@pytest.mark.parametrize("job", EXAMPLES)
def test_every_example_is_valid(here, job):
    ran = here("check", example(job), "--cluster", cluster(), "--no-data")
    assert f"{job}: valid, its data were not opened; AllReduce" in ran.last_line
    assert "MPICH" in ran.out


def test_check_prints_the_net(here):
    ran = here("check", example())
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["conv1", "Convolution", "8", "x", "8", "x", "16", "160", "batch"] in rows
    assert "digits: ready to run" in ran.last_line
    assert ["17,258"] in rows


def test_show_draws_a_net_whose_data_are_absent(here, tmp_path):
    split = sets(neuralnet__partition_dim=1)
    ran = here("show", example("alexnet"), "--cluster", cluster(), *split, "--phase", "test", "--out", "a/net.png")
    assert ran.last_line.startswith("a/net.png: 62,378,344 parameters; each worker sends per step ")
    assert (tmp_path / "a" / "net.png").read_bytes().startswith(b"\x89PNG")
    ran = here("show", example("alexnet"), "--out", "net.pdf", code=2)
    assert "--out: the suffix selects the format, .svg or .png. Received: net.pdf. Use --out net.svg." in ran.err


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("updater.learning_rate.bas_lr=1", "Did you mean base_lr?"),
        ("neuralnet.layer[conv1].convolution_conf.kernel=50", "larger than the image"),
        ("neuralnet.layer[relu1].srclayers=[conv11]", "Did you mean conv1?"),
        ("cluster.nworkers_per_group=0", "cluster.nworkers_per_group"),
        ("neuralnet.layer[ip2].innerproduct_conf.num_output=5", "Received: 5 outputs"),
        ("cluster.codec=kTopK", "cluster.sparsity"),
        ("name=../x", "is used as a folder name"),
        ("neuralnet.layer[0].store_conf.path=dataset:digit/train", "digits"),
    ],
)
def test_each_fault_is_one_clear_line_and_exit_code_2(here, override, says):
    ran = here("check", example(), "--cluster", cluster(), "--set", override, code=2)
    assert ran.out == ""
    lines = [line for line in ran.err.strip().splitlines() if not line.startswith("writing the shards")]
    assert lines and all(line.startswith("error: ") for line in lines), ran.err
    assert says in ran.err


def test_a_missing_file_names_the_nearest_and_nothing_goes_on(singa_dask, no_leaks):
    """The process from which workers would be forked has started by then. It has the command's streams as well, which
    `singa_dask` reads until nobody has them open."""
    missing = ROOT / "examples" / "digit" / "job.conf"
    ran = singa_dask("train", missing, code=2)
    assert ran.err == f"error: job file: file not found. Received: {missing}. Did you mean {example()}?\n"


def test_ctrl_c_before_there_are_workers(environment, tmp_path, no_leaks):
    """A terminal sends it to the process that workers will be forked from as well, which is still importing then."""
    with started("train", example(), folder=tmp_path, env=environment) as run:
        command = psutil.Process(run.pid)
        wait_until(lambda: any("forkserver" in str(c.cmdline()) for c in command.children()), run, tmp_path)
        time.sleep(0.1)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(40) == 130
    assert said(tmp_path) == "interrupted\n"


def test_ctrl_c_in_code_made_from_text(singa_dask, tmp_path):
    """Python itself remembers such a one, and would have the command die of SIGINT although it caught it."""
    (tmp_path / "slow.py").write_text("exec('import signal; signal.raise_signal(signal.SIGINT)')\n")
    job = example().read_text().replace("type: kReLU", 'user_type: "slow:Layer"', 1)
    (tmp_path / "job.conf").write_text(job)
    assert singa_dask("check", "job.conf", code=130).err == "interrupted\n"


def test_help_is_there_without_dask(program):
    asked = "import sys; sys.argv[1:] = ['train', '--help']; from singa_dask.cli import main"
    told = program("-c", f"{asked}; main(standalone_mode=False); print('distributed' in sys.modules)")
    assert "--scheduler-file" in told.out and told.last_line == "False"
