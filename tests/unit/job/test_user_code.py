"""Names of the user's own code, and what they find."""

from __future__ import annotations

import sys

import pytest

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


def test_what_a_module_shows_is_named_by_it():
    assert code_name(Plain) == f"{__name__}:Plain"
    assert not is_defined(code_name(Plain))
    assert user_code(code_name(Plain), "layer 'a'") is Plain


def test_classes_made_in_a_function_are_told_apart():
    one, other = made(1), made(2)
    names = [code_name(one), code_name(other), code_name(one)]
    assert names[0] == names[2] != names[1]
    assert names[1].startswith(names[0].split("~")[0] + "~")
    assert user_code(names[0], "") is one
    assert user_code(names[1], "") is other


def test_a_class_whose_name_was_given_to_another_keeps_a_name_of_its_own(monkeypatch):
    first = Plain
    second = type("Plain", (Layer,), {"__module__": __name__, "__qualname__": "Plain"})
    monkeypatch.setattr(sys.modules[__name__], "Plain", second)
    assert code_name(second) == f"{__name__}:Plain"
    assert code_name(first) == f"{__name__}:Plain~2"
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


def test_modules_beside_the_job_file_come_first_and_leave_the_path_alone(tmp_path, monkeypatch):
    for folder in ("job", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside_a.py").write_text(f"def where(): return {folder!r}\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    before = list(sys.path)
    with searching(tmp_path / "job"):
        assert user_code("beside_a:where", "")() == "job"
    assert sys.path == before


def test_two_jobs_do_not_get_each_others_module(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside_b.py").write_text("class Foo: pass\n")
    with searching(tmp_path / "one"):
        user_code("beside_b:Foo", "")
        user_code("beside_b:Foo", "")
    with (
        searching(tmp_path / "two"),
        pytest.raises(ConfigError, match=r"layer 'x'.*another module 'beside_b'.*one/beside_b.py.*Rename .*two/"),
    ):
        user_code("beside_b:Foo", "layer 'x'")


def test_a_module_of_the_standard_library_is_not_taken_for_ones_own(tmp_path):
    (tmp_path / "json.py").write_text("class Foo: pass\n")
    with searching(tmp_path), pytest.raises(ConfigError, match=r"another module 'json'"):
        user_code("json:Foo", "")


def test_check_takes_classes_of_a_function_where_they_are_defined(good):
    name = code_name(made(7))
    spelled = "type: kReLU", 'user_type: "{}"'
    Job.from_text(good.replace(spelled[0], spelled[1].format(name), 1)).check()
    with pytest.raises(ConfigError, match="inside a function"):
        Job.from_text(good.replace(spelled[0], spelled[1].format(name + "x"), 1)).check()
