"""Layers, updaters and the rest of the user's own, written where workers cannot import them."""

import numpy as np
import pytest
from support.commands import audited, cluster, example, sets, summary

from singa_dask.training import checkpoint as checkpoints

SHORT = sets(train_steps=8, disp_freq=4, test_freq=0, test_steps=0, checkpoint_freq=0)

# All of it below the guard: as in a notebook, no other process sees it, though local workers import the script.
NOTEBOOK = """
if __name__ == "__main__":
    import numpy as np
    from singa_dask import ClusterTopology, Job, Module, layers, train, updaters
    from singa_dask.algorithms import BP, TrainOneBatch
    from singa_dask.updaters import schedules

    CHANGE = np.float32(0.5)

    class Scale(layers.Layer):
        def setup(self, *src):
            (shape,) = self.sources(src)
            self.factor = self.declare("factor", (1,), 1, 1, value=1)
            return shape

        def forward(self, ctx, *x):
            ctx.x = x[0]
            return np.multiply(x[0], self.factor.value, out=ctx.buffer("y", x[0].shape))

        def backward(self, ctx, dy):
            self.factor.grad[...] = (dy * ctx.x).sum() + (self.factor.grad if self.factor.claim() else 0)
            return dy * self.factor.value

    class Rescaled(Module):
        def __init__(self):
            self.scale = Scale()

        def forward(self, x):
            return self.scale(x)

    def shifted(by):
        class Shift(layers.Layer):
            def setup(self, *src):
                return src[0]

            def forward(self, ctx, *x):
                return x[0] + np.float32(by)

            def backward(self, ctx, dy):
                return dy

        return Shift

    class ByHalves(updaters.Updater):
        states = ("seen",)

        def apply(self, step, lr, weight_decay, w, g, seen):
            seen += 1
            w -= lr * CHANGE * g

    class Halving(schedules.Schedule):
        def __call__(self, step):
            return 0.1 * float(CHANGE) ** (step // 4)

    class Counting(TrainOneBatch):
        def train_one_batch(self, net, feed, step, on_gradient=None):
            return BP().train_one_batch(net, feed, step, on_gradient)

    def sevens(param, rng):
        return np.full(param.shape, 7.0)

    job = Job(
        name="notebook",
        layers=[
            layers.RecordInput(path="dataset:digits/train", batchsize=96, std_value=16),
            layers.InnerProduct("ip", num_output=10, param=[{}, {"init": sevens}]),
            shifted(2)(),
            Rescaled(),
            shifted(-2)(),
            layers.SoftmaxLoss(),
        ],
        updater=ByHalves(learning_rate=Halving()),
        alg=Counting(),
        cluster=ClusterTopology.downpour(2, 2, 1),
        train_steps=8,
        disp_freq=4,
    )
    assert Job.from_text(job.to_text()) == job
    print(train(job, workspace="run"))
"""


def test_everything_a_notebook_defines_works_on_every_worker(program, tmp_path, no_leaks):
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    program("notebook.py")
    told = summary(tmp_path / "run")
    assert (told["status"], told["step"], told["topology"]["nworker_groups"]) == ("completed", 8, 2)
    saved = checkpoints.load(checkpoints.path_of(tmp_path / "run" / "checkpoint", 8))
    assert np.asarray(saved.parameters["scale_factor"])[0] != 1
    assert abs(np.asarray(saved.parameters["ip_bias"]) - 7).max() < 1, "the initialiser of the notebook's own"
    assert np.asarray(saved.updater["seen"]["scale_factor"])[0] == 8 * 2, "the updater of the notebook's own"


@pytest.fixture
def job_folder(tmp_path):
    """The digits with a layer of one's own, which imports a module that lies beside it."""
    folder = tmp_path / "jobs" / "mine"
    folder.mkdir(parents=True)
    (folder / "own_layers.py").write_text(
        "from own_constants import FACTOR\n"
        "from singa_dask.layers import Layer\n"
        "class Times(Layer):\n"
        "    def setup(self, *src):\n"
        "        return self.sources(src)[0]\n"
        "    def forward(self, ctx, *x):\n"
        "        return x[0] * x[0].dtype.type(FACTOR)\n"
        "    def backward(self, ctx, dy):\n"
        "        return dy * dy.dtype.type(FACTOR)\n"
    )
    (folder / "own_constants.py").write_text("FACTOR = 0.5\n")
    job = example().read_text().replace('srclayers: "ip1" }', 'srclayers: "own" }')
    own = '  layer { name: "own" user_type: "own_layers:Times" srclayers: "ip1" }\n'
    (folder / "job.conf").write_text(job.replace('  layer { name: "relu2"', own + '  layer { name: "relu2"'))
    return folder


def test_a_module_beside_the_job_file_is_found_from_any_folder(singa_dask, job_folder, tmp_path, no_leaks):
    conf = job_folder / "job.conf"
    singa_dask("train", conf, "--cluster", cluster(), *SHORT, "--workspace", "run")
    assert summary(tmp_path / "run")["step"] == 8
    singa_dask("test", conf, "--checkpoint", "run", *sets(test_steps=1))


MIXING = """
from singa_dask.updaters import Mixing, Updater


class Counting(Updater):
    def apply(self, step, lr, weight_decay, w, g):
        w -= 1


class Averaging(Counting):
    def mix(self, exchange, left, right):
        return Mixing(left=0.5, right=0.5)


class Wrong(Counting):
    def mix(self, exchange, left, right):
        return 0.5
"""
DOWN = ["--cluster", cluster("hogwild"), *sets(cluster__nworker_groups=2, cluster__nserver_groups=2)]


def mixed(singa_dask, tmp_path, rule, steps, code=0):
    """A run of two server groups whose updates subtract 1."""
    (tmp_path / "rules.py").write_text(MIXING)
    job = example().read_text()
    start, end = job.index("updater {"), job.index("neuralnet {")
    rate = "learning_rate { type: kFixed base_lr: 1 }"
    (tmp_path / "job.conf").write_text(f'{job[:start]}updater {{ user_type: "rules:{rule}" {rate} }}\n{job[end:]}')
    return singa_dask("train", "job.conf", *DOWN, *SHORT, *sets(train_steps=steps), "--workspace", "run", code=code)


def test_server_groups_mix_by_a_rule_of_one_s_own(singa_dask, tmp_path, no_leaks):
    mixed(singa_dask, tmp_path, "Averaging", 40)
    saved = checkpoints.load(checkpoints.path_of(tmp_path / "run" / "checkpoint", 40))
    fallen = -float(np.asarray(saved.parameters["b_ip2"]).mean())
    assert fallen == pytest.approx(40), "the mean of both groups, whose sum is 80"
    assert [group["contained"] for group in audited(tmp_path / "run")] == [[[0, 40]]] * 2


def test_a_rule_that_fails_ends_the_run_with_its_error(singa_dask, tmp_path, no_leaks):
    ran = mixed(singa_dask, tmp_path, "Wrong", 100_000, code=1)
    assert "Sync failed: TypeError: mix must return a Mixing, not 0.5" in ran.err + ran.out


def test_a_notebooks_layer_is_unknown_to_the_command(here, job_folder):
    text = (job_folder / "job.conf").read_text().replace("own_layers:Times", "__main__:Times")
    (job_folder / "job.conf").write_text(text)
    ran = here("check", job_folder / "job.conf", code=2)
    assert "neuralnet.layer[own].user_type: was defined in a notebook or script" in ran.err
    assert "next to the job file" in ran.err


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        (
            "init { type: kConstant value: 0 }",
            'init { type: kUserInit user_type: "os:_exit" }',
            "param 'b_conv1'.init",
        ),
        ("type: kSGD", 'user_type: "pip._internal:main"', "updater"),
        ("alg: kBP", 'user_alg: "this:s"', "train_one_batch"),
    ],
)
def test_check_refuses_to_call_what_is_not_the_job_s_own(here, tmp_path, before, after, key):
    (tmp_path / "job.conf").write_text(example().read_text().replace(before, after, 1))
    ran = here("check", "job.conf", code=2)
    assert ran.err.count("\n") == 1, ran.err
    assert "Name code of your own" in ran.err and key.split(".")[-1] in ran.err
