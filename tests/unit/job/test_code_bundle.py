"""Which code of the user's is sent to the workers, and that it works where nothing can be imported."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import cloudpickle
import pytest

from singa_dask.errors import ConfigError
from singa_dask.job import JobProto
from singa_dask.job.code_bundle import CodeBundle, not_kept, pack, unpacked
from singa_dask.job.job_pb2 import LayerProto
from singa_dask.job.user_code import _received, code_name, user_code
from singa_dask.layers import Layer

# Unpickles a bundle in a folder from which nothing of the user's can be imported, and calls what is in it.
ELSEWHERE = """
import pickle, sys
from singa_dask.job.code_bundle import unpacked
from singa_dask.job.user_code import user_code
with open(sys.argv[1], "rb") as file, unpacked(pickle.load(file)):
    print(user_code(sys.argv[2], "")(3))
"""


def job(*specs: str) -> JobProto:
    found = JobProto()
    for i, spec in enumerate(specs):
        found.neuralnet.layer.append(LayerProto(name=f"l{i}", user_type=spec))
    return found


def elsewhere(bundle: CodeBundle | None, spec: str, tmp_path) -> str:
    (tmp_path / "bundle").write_bytes(cloudpickle.dumps(bundle))
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-c", ELSEWHERE, tmp_path / "bundle", spec]
    done = subprocess.run(command, cwd=tmp_path / "empty", capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_without_own_code_and_installed_code_are_not_sent():
    assert pack(JobProto()) is None
    assert pack(job("singa_dask.layers:ReLU")) is None


def test_code_made_in_a_function_works_elsewhere(tmp_path):
    factor = 5

    def scale(x):
        return factor * x

    name = code_name(scale)
    assert elsewhere(pack(job(name)), name, tmp_path) == "15"


def test_a_module_beside_the_job_file_works_elsewhere_with_what_it_imports_from_there(tmp_path):
    (tmp_path / "sent_helper.py").write_text("def double(x): return 2 * x\n")
    (tmp_path / "sent_more.py").write_text("ONE = 1\n")
    (tmp_path / "sent_main.py").write_text(
        "import sent_more\nfrom sent_helper import double\ndef f(x): return double(x) + sent_more.ONE\n"
    )
    before = set(cloudpickle.list_registry_pickle_by_value())
    bundle = pack(job("sent_main:f"), tmp_path)
    assert set(cloudpickle.list_registry_pickle_by_value()) == before
    for name in ("sent_helper", "sent_more", "sent_main"):
        (tmp_path / f"{name}.py").unlink()
    assert elsewhere(bundle, "sent_main:f", tmp_path) == "7"


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
    (tmp_path / "empty").mkdir()
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, cwd=tmp_path / "empty", capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_every_place_of_a_job_that_names_code_is_sent(tmp_path):
    functions = [eval("lambda x: x", {"__name__": "nowhere"}) for _ in range(5)]
    names = [code_name(f) for f in functions]
    assert len(set(names)) == 5
    whole = job(names[0])
    whole.neuralnet.layer[0].param.add().init.user_type = names[1]
    whole.updater.user_type, whole.updater.learning_rate.user_type = names[2:4]
    whole.train_one_batch.user_alg = names[4]
    bundle = pack(whole)
    assert set(cloudpickle.loads(bundle.pickled)) == set(names)
    with unpacked(bundle):
        assert [user_code(name, "") is not None for name in names] == [True] * 5


def test_what_cannot_be_pickled_is_told_before_anything_starts():
    lock = threading.Lock()

    class Locked(Layer):
        def forward(self, ctx, *x):
            with lock:
                return x[0]

    def fine(x):
        return x

    with pytest.raises(ConfigError, match=r"layer 'l1'.*cannot be shipped.*lock.*in setup\(\)") as error:
        pack(job(code_name(fine), code_name(Locked)))
    assert len(error.value.problems) == 1


def test_what_a_worker_cannot_load_says_why(tmp_path):
    def fine(x):
        return x

    bundle = pack(job(code_name(fine)))
    with (
        pytest.raises(ConfigError, match=r"was pickled by Python 2\.7, and this process runs 3\."),
        unpacked(replace(bundle, python="2.7")),
    ):
        pass
    # "cno_such_module\nthing\n." is the pickle of a name to be imported.
    with (
        pytest.raises(ConfigError, match="lacks: No module named 'no_such_module'"),
        unpacked(replace(bundle, pickled=b"cno_such_module\nthing\n.")),
    ):
        pass


def test_bundles_are_kept_as_bytes_and_only_some_names_resolve_if_asked():
    def one(x):
        return x

    def two(x):
        return x

    names = [code_name(one), code_name(two)]
    bundle = replace(pack(job(*names)), signature="mine")
    again = CodeBundle.from_bytes(bundle.to_bytes())
    assert again == bundle
    with unpacked(again, only=names[:1]):
        assert received() == names[:1]
    with unpacked(again):
        assert received() == names


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
    (tmp_path / "edited").mkdir()
    (tmp_path / "edited" / "edited_layers.py").write_text("def f(x): return x\n")
    info = tmp_path / "site" / "edited-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: edited\nVersion: 1\n")
    url = (tmp_path / "edited").as_uri()
    (info / "direct_url.json").write_text(f'{{"url": "{url}", "dir_info": {{"editable": true}}}}')
    for folder in ("edited", "site"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    whole = job("edited_layers:f")
    assert pack(whole) is None and not_kept(whole) == []
    (info / "direct_url.json").unlink()
    assert len(not_kept(whole)) == 1
