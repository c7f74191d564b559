"""Names of the user's own code, and what they find."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.planted import plant, ran

from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.job.user_code import code_name, is_defined, searching, user_code, using
from singa_dask.layers import Layer
from singa_dask.updaters import Updater, schedules


class Plain(Layer):
    pass


def made(factor: float) -> type[Layer]:
    class Scale(Layer):
        def forward(self, ctx, *x):
            return factor * x[0]

    return Scale


@pytest.fixture
def modules(tmp_path):
    """Writes modules of the user's, by name. Their folder is `tmp_path`, or one below it."""

    def write(folder=tmp_path, **texts):
        for name, text in texts.items():
            path = folder.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write


def test_what_a_module_shows_is_named_by_it():
    assert code_name(Plain) == f"{__name__}:Plain" and not is_defined(code_name(Plain))
    assert user_code(code_name(Plain), "layer 'a'") is Plain


def test_classes_made_in_a_function_are_told_apart():
    one, other = made(1), made(2)
    names = [code_name(one), code_name(other), code_name(one)]
    assert names[0] == names[2] != names[1]
    assert names[1].startswith(names[0].split("~")[0] + "~")
    assert [user_code(name, "") for name in names] == [one, other, one]


def test_a_class_whose_name_was_given_to_another_keeps_a_name_of_its_own(monkeypatch):
    first, second = Plain, type("Plain", (Layer,), {"__module__": __name__, "__qualname__": "Plain"})
    monkeypatch.setattr(sys.modules[__name__], "Plain", second)
    assert [code_name(second), code_name(first)] == [f"{__name__}:Plain", f"{__name__}:Plain~2"]
    assert user_code(f"{__name__}:Plain~2", "") is first


def test_every_description_uses_the_name():
    class Half(Updater):
        def apply(self, step, lr, weight_decay, w, g, *states):
            w -= lr * g / 2

    class Slow(schedules.Schedule):
        def __call__(self, step):
            return 1e-3

    updater = Half(learning_rate=Slow())
    assert user_code(updater.proto.user_type, "") is Half
    assert user_code(updater.proto.learning_rate.user_type, "") is Slow
    assert user_code(made(3)("s", "x").proto.user_type, "").__name__ == "Scale"


def test_what_was_sent_comes_first_and_only_inside():
    name, other = code_name(Plain), made(5)
    with using({name: other}):
        assert user_code(name, "") is other
        assert code_name(other) == name
        with using({}):
            assert user_code(name, "") is other
    assert user_code(name, "") is Plain


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("__main__:NotHere", "notebook or script.*next to the job file"),
        (f"{__name__}:made.<locals>.Other", "inside a function.*top level of a module"),
        ("no_such_module:Thing", "no module named 'no_such_module'.*folder of the job file"),
    ],
)
def test_what_this_process_does_not_have_says_where_it_may_be(spec, message):
    with pytest.raises(ConfigError, match=f"layer 'mine'.*{message}"):
        user_code(spec, "layer 'mine'")


@pytest.mark.parametrize("known", [False, True])
def test_modules_beside_the_job_file_are_found_and_leave_the_path_alone(tmp_path, monkeypatch, modules, known):
    name = f"beside_a{known:d}"
    modules(**{name: "def where(): return 'job'\n"})
    if known:
        monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.path)
    with searching(tmp_path):
        assert user_code(f"{name}:where", "")() == "job"
        assert sys.path == before


def test_libraries_do_not_find_what_lies_beside_the_job(tmp_path, monkeypatch, modules):
    """Many a library tries to import what may not be installed."""
    attempt = (
        "def attempt(name):\n    try:\n        return __import__(name)\n    except ImportError:\n        return None\n"
    )
    monkeypatch.syspath_prepend(modules(tmp_path / "site-packages", trying=attempt))
    job = tmp_path / "job"
    job.mkdir()
    plant(job, ["winreg_like", "beside_f", "beside_g"])
    with open(job / "beside_f.py", "a") as file:
        file.write("import trying\nfound = trying.attempt('winreg_like')\ndef later(): import beside_g\n")
    with searching(job):
        later = user_code("beside_f:later", "")
        assert sys.modules["beside_f"].found is None and ran(job) == ["beside_f"]
        with ThreadPoolExecutor(1) as thread:
            thread.submit(later).result()
    assert ran(job) == ["beside_f", "beside_g"]
    with pytest.raises(ImportError):
        __import__("winreg_like")


def test_packages_without_an_init_file_are_found(tmp_path, modules):
    more = {"beside_p__inner__layers": "from beside_p.inner import more\nf = more.f\n"}
    with searching(modules(beside_p__inner__more="def f(): pass\n", **more)):
        assert user_code("beside_p.inner.layers:f", "").__name__ == "f"


def test_two_jobs_do_not_get_each_others_module(tmp_path, modules):
    one, two = (modules(tmp_path / name, beside_b="class Foo: pass\n") for name in ("one", "two"))
    with searching(one):
        assert user_code("beside_b:Foo", "") is user_code("beside_b:Foo", "")
    message = r"layer 'x'.*another module 'beside_b' comes first: .*one/beside_b.py.*Rename .*two/"
    with searching(two), pytest.raises(ConfigError, match=message):
        user_code("beside_b:Foo", "layer 'x'")


def test_what_the_user_s_modules_import_is_not_taken_from_beside_them(tmp_path, monkeypatch, modules):
    monkeypatch.delitem(sys.modules, "stringprep", raising=False)
    plant(tmp_path, ["stringprep"])
    with searching(modules(beside_d="import stringprep, beside_e\ndef f(): pass\n", beside_e="")):
        assert user_code("beside_d:f", "").__name__ == "f"
    assert ran(tmp_path) == []


@pytest.mark.parametrize("name", ["stringprep", "json", "numpy", "installed_layers"])
def test_a_module_of_the_user_s_named_like_another_is_refused_unread(tmp_path, monkeypatch, modules, name):
    """Of the standard library, of a dependency, of PYTHONPATH."""
    monkeypatch.delitem(sys.modules, "stringprep", raising=False)
    monkeypatch.syspath_prepend(modules(tmp_path / "site", installed_layers=""))
    plant(tmp_path, [name])
    message = rf"layer 'x'.*another module '{name}'.*Rename {tmp_path}/{name}.py"
    with searching(tmp_path), pytest.raises(ConfigError, match=message):
        user_code(f"{name}:f", "layer 'x'")
    assert ran(tmp_path) == []


STRANGE = {
    "os:_exit": "'os' belongs to the standard library",
    "posix:_exit": "'posix' belongs to the standard library",
    "builtins:exec": "'builtins' belongs to the standard library",
    "this:s": "'this' belongs to the standard library",
    "subprocess:Popen": "'subprocess' belongs to the standard library",
    "numpy:tanh": "'numpy' is an installed package that does not require singa-dask",
    "pip.__main__:main": "'pip' is an installed package that does not require singa-dask",
    "strange_own:os._exit": "is defined in 'posix', and 'posix' belongs to the standard library",
    "strange_own:dumps": "is defined in 'json', and 'json' belongs to the standard library",
    "strange_own:path": "must be a class or function of a module",
    "singa_dask.cli.signals:interrupt": "must name a class",
}


@pytest.mark.parametrize("spec", STRANGE)
def test_a_job_can_name_only_what_is_its_user_s(monkeypatch, modules, spec):
    """A stranger's job must neither call the code of others nor have modules run that nobody wants."""
    for name in ("this", "strange_own"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    folder = modules(strange_own="import os\nfrom json import dumps\npath = '/'\n")
    with searching(folder), pytest.raises(ConfigError) as refused:
        user_code(spec, "param 'w'.init.user_type")
    (problem,) = refused.value.problems
    assert str(problem).startswith("param 'w'.init.user_type: ") and STRANGE[spec] in str(problem)
    assert "this" not in sys.modules and "pip.__main__" not in sys.modules


@pytest.mark.parametrize("requires", [("numpy", "Singa.Dask>=0.1; python_version > '3'"), (), ("singa",)])
def test_an_installed_package_may_be_named_if_it_requires_singa_dask(tmp_path, monkeypatch, requires):
    name, site = f"extension_{len(requires)}", tmp_path / "site-packages"
    info = site / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    fields = [f"Name: {name}", "Version: 1", *(f"Requires-Dist: {each}" for each in requires)]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *fields, ""]))
    (info / "RECORD").write_text(f"{name}.py,,\n")
    plant(site, [name])
    with open(site / f"{name}.py", "a") as file:
        file.write("def f(): pass\n")
    monkeypatch.syspath_prepend(site)
    if len(requires) == 2:
        assert user_code(f"{name}:f", "").__name__ == "f"
        return
    with pytest.raises(ConfigError, match=rf"{name}.*does not require singa-dask.*Name code of your own module"):
        user_code(f"{name}:f", "layer 'x'")
    assert ran(site) == []


def test_check_takes_classes_of_a_function_where_they_are_defined(good):
    name = code_name(made(7))
    spelled = "type: kReLU", 'user_type: "{}"'
    Job.from_text(good.replace(spelled[0], spelled[1].format(name), 1)).check()
    with pytest.raises(ConfigError, match="inside a function"):
        Job.from_text(good.replace(spelled[0], spelled[1].format(name + "x"), 1)).check()


def test_threads_look_up_code_at_the_same_time(monkeypatch):
    """`importlib.invalidate_caches` deletes entries of a dictionary that another thread may have deleted."""
    inside = threading.Semaphore(1)

    def invalidate():
        assert inside.acquire(blocking=False), "two threads at once"
        time.sleep(0.001)
        inside.release()

    monkeypatch.setattr(importlib, "invalidate_caches", invalidate)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: user_code("support.user_layers:Same", "user_type"), range(20)))
    assert len(set(found)) == 1
