"""Which code of the user's is sent to the workers, and that it works where nothing can be imported."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from dataclasses import replace

import cloudpickle
import pytest

from singa_dask.errors import ConfigError
from singa_dask.job import JobProto
from singa_dask.job.code_bundle import CodeBundle, not_kept, pack, unpacked
from singa_dask.job.code_changes import changed
from singa_dask.job.code_trust import is_own, key_file, sign
from singa_dask.job.job_pb2 import LayerProto
from singa_dask.job.user_code import _received, code_name, user_code
from singa_dask.layers import Layer

# Unpickles a bundle in a folder from which nothing of the user's can be imported, and calls what is in it.
ELSEWHERE = """
import pickle, sys
from singa_dask.job.code_bundle import unpacked
from singa_dask.job.user_code import user_code
with open(sys.argv[1], "rb") as file, unpacked(pickle.load(file)):
    print(*(user_code(spec, "")(3) for spec in sys.argv[2:]))
"""


def job(*specs: str) -> JobProto:
    found = JobProto()
    for i, spec in enumerate(specs):
        found.neuralnet.layer.append(LayerProto(name=f"l{i}", user_type=spec))
    return found


def run_elsewhere(tmp_path, *command) -> str:
    (tmp_path / "empty").mkdir()
    command = [sys.executable, *command]
    done = subprocess.run(command, cwd=tmp_path / "empty", capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


# Made in no module, so that it is sent.
fine = eval("lambda x: x", {"__name__": "nowhere"})


def test_a_job_without_own_code_and_installed_code_are_not_sent():
    assert pack(JobProto()) is None
    assert pack(job("singa_dask.layers:ReLU")) is None


def test_code_of_a_function_and_of_modules_beside_the_job_file_works_elsewhere(tmp_path):
    factor = 5

    def scale(x):
        return factor * x

    modules = {
        "sent_helper": "def double(x): return 2 * x\n",
        "sent_more": "ONE = 1\n",
        "sent_main": "import sent_more\nfrom sent_helper import double\ndef f(x): return double(x) + sent_more.ONE\n",
    }
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    before = set(cloudpickle.list_registry_pickle_by_value())
    specs = (code_name(scale), "sent_main:f")
    (tmp_path / "bundle").write_bytes(cloudpickle.dumps(pack(job(*specs), tmp_path)))
    assert set(cloudpickle.list_registry_pickle_by_value()) == before
    for name in modules:
        (tmp_path / f"{name}.py").unlink()
    assert run_elsewhere(tmp_path, "-c", ELSEWHERE, tmp_path / "bundle", *specs) == "15 7"


def test_a_module_beside_the_script_is_sent_wherever_the_script_is_run(tmp_path):
    (tmp_path / "beside_the_script.py").write_text("def f(x): return x\n")
    (tmp_path / "script.py").write_text(
        "import beside_the_script\n"
        "from singa_dask.job import JobProto\n"
        "from singa_dask.job.code_bundle import pack\n"
        "job = JobProto()\n"
        "job.neuralnet.layer.add(name='l', user_type='beside_the_script:f')\n"
        "print(pack(job) is not None)\n"
    )
    assert run_elsewhere(tmp_path, tmp_path / "script.py") == "True"


def test_every_place_of_a_job_that_names_code_is_sent(tmp_path):
    names = [code_name(eval("lambda x: x", {"__name__": "nowhere"})) for _ in range(5)]
    assert len(set(names)) == 5
    whole = job(names[0])
    whole.neuralnet.layer[0].param.add().init.user_type = names[1]
    whole.updater.user_type, whole.updater.learning_rate.user_type = names[2:4]
    whole.train_one_batch.user_alg = names[4]
    bundle = pack(whole)
    assert set(cloudpickle.loads(bundle.pickled)) == set(names)
    with unpacked(bundle):
        assert all(callable(user_code(name, "")) for name in names)


def test_what_cannot_be_pickled_is_told_before_anything_starts():
    lock = threading.Lock()

    class Locked(Layer):
        def forward(self, ctx, *x):
            with lock:
                return x[0]

    with pytest.raises(ConfigError, match=r"layer 'l1'.*cannot be shipped.*lock.*in setup\(\)") as error:
        pack(job(code_name(fine), code_name(Locked)))
    assert len(error.value.problems) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"python": "2.7"}, r"was pickled by Python 2\.7, and this process runs 3\."),
        # the pickle of a name to be imported
        ({"pickled": b"cno_such_module\nthing\n."}, "lacks: No module named 'no_such_module'"),
    ],
)
def test_what_a_worker_cannot_load_says_why(change, says):
    bundle = replace(pack(job(code_name(fine))), **change)
    with pytest.raises(ConfigError, match=says), unpacked(bundle):
        pass


def test_bundles_are_kept_as_bytes_and_only_some_names_resolve_if_asked():
    names = [code_name(fine), code_name(lambda x: x)]
    bundle = replace(pack(job(*names)), signature="mine")
    again = CodeBundle.from_bytes(bundle.to_bytes())
    assert again == bundle
    for only in (names[:1], None):
        with unpacked(again, only=only):
            assert received() == (only or names)


# A module of the user's, and the values that its code reads at first and after each change.
READERS = """
import enum
import changed_helper
FACTOR, SET = 2, {"factor": 2}
def helper(): return FACTOR
def of_function(): return helper()
class Of:
    def read(self): return FACTOR
class OfHelper(Of):
    def read(self): return helper()
class OfBase(Of): pass
class OfSet(Of):
    @staticmethod
    def read(): return SET["factor"]
class OfModule:
    @property
    def value(self): return changed_helper.FACTOR
    def read(self): return self.value
class Kind(enum.Enum):
    ONE = 1
    def read(self): return FACTOR
class OfEnum:
    def read(self): return Kind.ONE.read()
def factory():
    class OfCell(Of):
        def read(self): return super().read()
    return OfCell
OfCell = factory()
"""


@pytest.mark.parametrize(
    "name", ["of_function", "Of", "OfHelper", "OfBase", "OfSet", "OfModule", "OfEnum", "factory.<locals>.OfCell"]
)
def test_code_that_has_run_here_is_sent_as_it_is_now(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changed_helper.py").write_text("FACTOR = 2\n")
    (tmp_path / "changed.py").write_text(READERS)
    for module in ("changed", "changed_helper"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    module = importlib.import_module("changed")
    spec, own = code_name(getattr(module, name.rpartition(".")[2])), vars(module.Of)["read"]
    sent, read = [], []
    for factor in (2, 7, 3):
        module.FACTOR = module.SET["factor"] = module.changed_helper.FACTOR = factor
        sent.append(pack(job(spec), tmp_path))
        with unpacked(sent[-1]):
            read.append(value_of(user_code(spec, "")))
    assert read == [2, 7, 3] and value_of(sent[0].code[spec]) == 2
    assert vars(module.Of)["read"] is own, "the class of the user stays as it is"


@pytest.mark.parametrize(
    "name", ["of_function", "Of", "OfHelper", "OfBase", "OfSet", "OfModule", "factory.<locals>.OfCell"]
)
def test_code_that_differs_from_what_a_checkpoint_keeps_is_named(name, tmp_path, monkeypatch, config):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changed_helper.py").write_text("FACTOR = 2\n")
    bundles = []
    for text in (READERS, "# moved\n\n" + READERS, READERS.replace("2", "7")):
        (tmp_path / "changed.py").write_text(text)
        for module in ("changed", "changed_helper"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        module = importlib.import_module("changed")
        if "7" in text:
            module.changed_helper.FACTOR = 7
        monkeypatch.setattr("singa_dask.job.user_code._defined", {})
        spec = code_name(getattr(module, name.rpartition(".")[2]))
        bundles.append(pack(job(spec), tmp_path).signed())
    kept, moved, other = bundles
    assert changed(kept, moved) == [] and changed(kept, other) == [spec]
    assert changed(replace(kept, signature="of another"), other) == [] == changed(None, other)


def value_of(code):
    return code().read() if isinstance(code, type) else code()


def test_a_run_does_not_see_what_the_code_of_another_run_has_changed(tmp_path):
    (tmp_path / "counts_calls.py").write_text("CALLS = []\ndef f():\n    CALLS.append(1)\n    return len(CALLS)\n")
    first = pack(job("counts_calls:f"), tmp_path)
    for bundle in (first, CodeBundle.from_bytes(first.to_bytes()), cloudpickle.loads(cloudpickle.dumps(first))):
        for calls in (1, 2):
            with unpacked(bundle):
                assert user_code("counts_calls:f", "")() == calls


def received() -> list[str]:
    return list(_received.get())


def test_code_that_is_neither_kept_nor_installed_is_told(tmp_path, monkeypatch):
    (tmp_path / "lies_elsewhere.py").write_text("def f(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    whole = job("lies_elsewhere:f", "singa_dask.layers:ReLU", "lies_elsewhere:f")
    assert pack(whole) is None
    (problem,) = not_kept(whole)
    assert str(problem).startswith("layer 'l2'.user_type: is not kept with the run: ") and "Install it" in str(problem)
    assert not_kept(whole, tmp_path) == []


def test_code_of_an_editable_installation_is_installed(tmp_path, monkeypatch):
    info = tmp_path / "site" / "edited-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: edited\nVersion: 1\n")
    direct = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(direct))
    (tmp_path / "edited_layers.py").write_text("def f(x): return x\n")
    for folder in (tmp_path, tmp_path / "site"):
        monkeypatch.syspath_prepend(folder)
    whole = job("edited_layers:f")
    assert pack(whole) is None and not_kept(whole) == []
    (info / "direct_url.json").unlink()
    assert len(not_kept(whole)) == 1


# Whose code a file holds


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def test_only_what_this_user_has_signed_is_own(tmp_path, config, monkeypatch):
    assert not is_own(b"code", "")
    signature = sign(b"code")
    assert signature == sign(b"code") and is_own(b"code", signature)
    assert not is_own(b"codes", signature) and not is_own(b"code", "")
    assert key_file().stat().st_mode & 0o777 == 0o600 and [key_file()] == list(key_file().parent.iterdir())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert not is_own(b"code", signature)
    sign(b"code")
    assert not is_own(b"code", signature)


def test_a_key_that_others_can_read_is_none(config, caplog):
    signature = sign(b"code")
    key_file().chmod(0o644)
    assert not is_own(b"code", signature)
    assert sign(b"code") == "" and "loaded later only with trust_code" in caplog.text


def test_without_a_place_for_the_key_code_is_not_signed(config, caplog):
    config.write_text("a file")
    assert sign(b"code") == "" and "cannot be written (Not a directory)" in caplog.text
    assert not is_own(b"code", "")
