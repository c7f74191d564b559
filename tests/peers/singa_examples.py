"""Apache SINGA's examples on singa_dask: which of them run, and what must be changed in them.

    make singa-examples SINGA=CHECKOUT ARGS="resnet"

CHECKOUT: of apache/singa, release 5.1. Copies of the examples run with the imports of singa_dask, on few data made for
them. Prints the table of docs/developers/singa-5.md; ARGS are parts of names. Exit status 1: an example that should
run did not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from peers import singa_data

DEADLINE_S = 600
PARTS = ("cnn", "mlp", "rnn", "trans", "onnx/training", "onnx/utils.py")


class Change(NamedTuple):
    """What replaces a pattern in a file of an example. why: for the table; empty for what only makes data few."""

    file: str
    pattern: str
    replacement: str
    why: str = ""


class Example(NamedTuple):
    """script: in examples/. few: arguments that make it short. data: makes them in a folder. prints: it must. broken:
    why it runs nowhere."""

    script: str
    arguments: str = ""
    few: str = ""
    data: Callable[[Path], None] = singa_data.none
    changes: Sequence[Change] = ()
    processes: int = 1
    prints: str = "loss"
    broken: str = ""

    @property
    def name(self) -> str:
        return f"{self.script} {self.arguments}".strip()


def rewritten(text: str, folder: Path) -> str:
    """A script with the imports of singa_dask, which finds its data in a folder, and needs no tqdm."""
    text = re.sub(r"^from singa import singa_wrap as singa$", "from singa_dask import opt as singa", text, flags=re.M)
    text = re.sub(
        r"^(\s*)from singa\.(tensor|device) import ", r"\1from singa_dask.tensors.\2 import ", text, flags=re.M
    )
    text = re.sub(r"^(\s*)from singa\.(\w+) import ", r"\1from singa_dask.loops.\2 import ", text, flags=re.M)
    text = re.sub(r"^(\s*)from singa import ", r"\1from singa_dask import ", text, flags=re.M)
    text = re.sub(r"^from tqdm import tqdm$", "tqdm = iter", text, flags=re.M)
    text = re.sub(r"^from tqdm import trange$", "from peers.singa_data import trange", text, flags=re.M)
    return re.sub(r"""(['"])/tmp/?""", rf"\1{folder}/", text)


def _printed(script: str) -> list[Change]:
    why = "NumPy prints no array with `%f`: `train_loss[0]`"
    return [
        Change(script, r"\(train_loss, train_correct /", "(train_loss[0], train_correct[0] /", why),
        Change(script, r"\(test_correct /", "(test_correct[0] /", why),
    ]


def _cnn(arguments: str, few: str, data: Callable[[Path], None], script: str = "train_cnn.py", n: int = 1) -> Example:
    why = "`copy_from_numpy` takes arrays of the tensor's shape: `train_x = np.reshape(train_x, ...)`"
    flat = [
        Change("cnn/train_cnn.py", rf"^(\s+)np.reshape\({name}, ", rf"\1{name} = np.reshape({name}, ", why)
        for name in ("train_x", "val_x")
    ]
    changes = [*_printed("cnn/train_cnn.py"), *(flat if arguments.startswith("mlp") else ())]
    return Example(f"cnn/{script}", arguments, few, data, changes, n)


def _table(name: str, x: str) -> Change:
    """A table of positions that each forward pass computes."""
    made = rf"self\.{name}\.initialize\({x}\)\n\s+self\.{name}\.from_pretrained\(W=([^\n]*?),\s+freeze=True\)"
    read = rf"((?:\n\s+#.*)?\n\s+\w+ = )self\.{name}\({x}\)"
    why = "a table that is not trained is a tensor: `autograd.embedding(x, table)` for `initialize`, `from_pretrained`"
    return Change("trans/model.py", made + read, rf"table = \1\2autograd.embedding({x}, table)", why)


_MNIST_CNN = _printed("cnn/autograd/mnist_cnn.py")
_PLAIN = Change(
    "{script}", "'fp32'", "'plain'", "`'plain'` for `'fp32'`: with `fp32`, neither program trains anything"
)
_SMALL = Change("{script}", r"(niters|batch_size) = \d+", r"\1 = 2")
_NO_TEXTS = Change("rnn/imdb_data.py", r"^(import nltk|from (nltk|gensim|bs4)).*$", "")
_NO_MODEL = "imports `resnet`, which is elsewhere, and calls a `Model` in training without labels"
_CHARACTERS = [
    Change(
        "{script}",
        r"self\.(\w)x\.copy_data\(\1x\)",
        r"self.\1x = \1x.detach()",
        "what a loss was computed from must not change before its backward pass: `self.hx = hx.detach()`",
    ),
    Change(
        "{script}",
        r"^(\s+)(out, loss = model\(inputs, labels\))",
        r"\1if not (epoch or b):\n\1    model.compile([inputs])\n\1\2",
        "`model.compile([inputs])` before the first step calls `initialize`",
    ),
    Change("{script}", "if labels:", "if labels is not None:", "a tensor is not a condition: `if labels is not None`"),
    Change("{script}", r"labels\)\[0\]", "labels)", "a loss has one axis: no `[0]`"),
]
_TRANSFORMER = [
    _table("target_pos_emb", "dec_inputs"),
    _table("pos_emb", "enc_inputs"),
    Change(
        "trans/model.py",
        r"autograd\.where\(mask_fill, scores, attn_mask_np\)",
        "autograd.where(attn_mask_np, mask_fill, scores)",
        "`where` takes the condition first, as in NumPy",
    ),
    Change(
        "trans/model.py",
        r"self\.(device|dtype)_check\(.*\)",
        "pass",
        "no `device_check`, `dtype_check`: tensors on several devices are an error",
    ),
]
_LAST = "`super().__init__(onnx_model, last_layers)`, without them in `forward`"
_CUT = [
    Change("{script}", r"__init__\(onnx_model\)", "__init__(onnx_model, last_layers)", _LAST),
    Change("{script}", r"\*x, last_layers=self\.last_layers", "*x", _LAST),
]
EXAMPLES = [
    _cnn("cnn mnist", "-m 3", singa_data.mnist),
    _cnn("alexnet cifar100", "-m 2 -b 4", singa_data.cifar100),
    _cnn("resnet cifar100", "-m 2 -b 4", singa_data.cifar100),
    _cnn("xceptionnet cifar100", "-m 1 -b 2", singa_data.cifar100),
    _cnn("mlp mnist", "-m 3", singa_data.mnist),
    *(
        _cnn(f"cnn mnist -d {option}", "-m 2 -b 32", singa_data.mnist, "train_mpi.py", n=2)
        for option in ("plain", "half", "partialUpdate", "sparseTopK", "sparseThreshold")
    ),
    _cnn("cnn mnist -w 2", "-m 2 -b 32", singa_data.mnist, "train_multiprocess.py"),
    Example("cnn/benchmark.py", changes=[_SMALL, _PLAIN], prints="Throughput"),
    Example("cnn/autograd/mnist_cnn.py", data=singa_data.mnist, changes=_MNIST_CNN),
    Example("cnn/autograd/mnist_dist.py", data=singa_data.mnist, changes=_MNIST_CNN, processes=2),
    Example("cnn/autograd/mnist_multiprocess.py", "2", data=singa_data.mnist, changes=_MNIST_CNN),
    Example("cnn/autograd/sparsification_mnist.py", "2", data=singa_data.mnist, changes=_MNIST_CNN),
    Example("cnn/autograd/xceptionnet.py", changes=[_SMALL], prints="intialization"),
    Example("cnn/autograd/resnet_cifar10.py", broken=_NO_MODEL),
    Example("cnn/autograd/cifar10_multiprocess.py", broken=_NO_MODEL),
    Example("mlp/model.py", changes=[_PLAIN]),
    Example("mlp/native.py"),
    Example("rnn/imdb_train.py", "", "-m 10 -b 16", singa_data.imdb, [_NO_TEXTS]),
    Example("rnn/char_rnn.py", "", "{data}/text.txt -m 3 -b 4 -l 20 -d 16", singa_data.text, _CHARACTERS),
    Example(
        "trans/train.py",
        "",
        "--dataset {data}/pairs.txt --max-epoch 10 --batch-size 8 "
        "--d_model 32 --n_head 2 --dim_feedforward 64 --n_layers 2",
        singa_data.pairs,
        _TRANSFORMER,
    ),
    Example(
        "onnx/training/train.py",
        "",
        "--epoch 2 --bs 4 --verbosity 0 --data cifar100",
        singa_data.onnx,
        [*_printed("{script}"), *_CUT],
    ),
]


def run(example: Example, checkout: Path, folder: Path) -> str:
    """What a copy of an example prints. Raises RuntimeError if it fails, ValueError if a change has no place in it."""
    copy, made = folder / "examples", folder / "data"
    made.mkdir()
    for part in PARTS:
        source, target = checkout / "examples" / part, copy / part
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    for script in copy.rglob("*.py"):
        script.write_text(rewritten(script.read_text(), made))
    for change in example.changes:
        script = copy / change.file.format(script=example.script)
        text, count = re.subn(change.pattern, change.replacement, script.read_text(), flags=re.M)
        if not count:
            raise ValueError(f"{example.name}: {change.file} has no place for {change.pattern!r}")
        script.write_text(text)
    example.data(made)
    script = copy / example.script
    command = [sys.executable, script.name, *f"{example.arguments} {example.few.format(data=made)}".split()]
    if example.processes > 1:
        command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(example.processes), *command]
    settings = {"PYTHONPATH": str(Path(__file__).parents[1]), "MPLBACKEND": "agg", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command,
        cwd=script.parent,
        env=os.environ | settings,
        input="n\n" * 9,  # char_rnn asks whether it should write a text
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
    )
    if done.returncode or example.prints not in done.stdout or "nan" in done.stdout:
        raise RuntimeError(f"{done.stdout[-1000:]}\n{done.stderr}".strip())
    return done.stdout


def row(example: Example, failed: str) -> str:
    """Of the table. failed: what it printed, if it did not run."""
    why = dict.fromkeys(change.why for change in example.changes if change.why)
    outcome = "does not run, nor does it in SINGA" if example.broken else "runs, changed" if why else "runs"
    told = example.broken or "; ".join(why)
    if failed:
        outcome, told = "does not run", failed.splitlines()[-1]
    return f"| {example.name} | {outcome} | {told} |"


def main(checkout: str, *parts: str) -> int:
    """Run the examples whose names have all these parts. Returns how many should have run and did not."""
    failures = 0
    print("| example | | changes |\n|---|---|---|")
    for example in EXAMPLES:
        if not all(part in example.name for part in parts):
            continue
        printed = failed = ""
        if not example.broken:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    printed = run(example, Path(checkout), Path(folder))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    failed = str(error)
        failures += bool(failed)
        print(row(example, failed), flush=True)
        print(failed or printed[-1000:], file=sys.stderr)
    return failures


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
