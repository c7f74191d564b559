from __future__ import annotations

import math
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singa_dask.errors import ConfigError
from singa_dask.job import JobProto, job_to_text, load_job, read_job
from singa_dask.job.scan import scan

F = FieldDescriptor
NUMBERS = {
    F.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    F.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    F.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    F.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    F.CPPTYPE_FLOAT: st.floats(width=32, allow_nan=False),
    F.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    F.CPPTYPE_BOOL: st.booleans(),
    F.CPPTYPE_STRING: st.text(st.characters(codec="utf-8"), max_size=8),
}


@st.composite
def messages(draw: st.DrawFn, kind: type) -> object:
    message = kind()
    fill(draw, message, message.DESCRIPTOR)
    return message


def fill(draw: st.DrawFn, message: object, descriptor: Descriptor) -> None:
    for name in draw(st.sets(st.sampled_from([f.name for f in descriptor.fields]), max_size=5)):
        field = descriptor.fields_by_name[name]
        if field.message_type is None:
            values = (
                st.sampled_from(list(field.enum_type.values_by_number)) if field.enum_type else NUMBERS[field.cpp_type]
            )
            if field.is_repeated:
                getattr(message, name).extend(draw(st.lists(values, max_size=3)))
            else:
                setattr(message, name, draw(values))
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                fill(draw, getattr(message, name).add(), field.message_type)
        else:
            getattr(message, name).SetInParent()
            fill(draw, getattr(message, name), field.message_type)


@given(messages(JobProto))
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_text_round_trip_of_any_job(job: JobProto) -> None:
    assert load_job(job_to_text(job)) == job


PIECES = st.sampled_from([*"{}[]:,;<>\"'#\n\\é.", "name", "layer", "-1", "kSGD", "0x"])


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
def test_scan_agrees_with_the_library_on_damaged_text(data: st.DataObject, good: str) -> None:
    """What the scan finds nothing wrong with, the library parses; and the scan finds fault where the library does."""
    text = good
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + data.draw(st.just("") | PIECES) + text[stop:]
    faults = scan(text).faults
    try:
        text_format.Parse(text, JobProto())
    except text_format.ParseError:
        assert faults
    else:
        assert all("is not a valid escape" in fault.message for fault in faults)
    lines = text.split("\n")
    for problem in scan(text).problems:
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("updater { learning_rate { base_lr: 0.01 } }", "base_lr: 0.01\n"),
        ("gpu: [0]", "gpu: 0\n"),
        ("gpu: []", "gpu: -1\n"),
        ("gpu: 0 gpu: 1", "gpu: [0, 1]\n"),
    ],
)
def test_floats_are_short_and_lists_of_one_have_no_brackets(text: str, line: str) -> None:
    assert line in job_to_text(load_job(text))


def test_special_values_survive() -> None:
    job = JobProto(name='a: [1]\n"quoted" \u2028 é')
    job.updater.delta = math.inf
    job.updater.momentum = -0.0
    back = load_job(job_to_text(job))
    assert back == job
    assert math.copysign(1, back.updater.momentum) == -1


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_file_with_byte_order_mark_and_windows_lines(tmp_path: Path, good: str, ending: str) -> None:
    path = tmp_path / "job.conf"
    path.write_bytes(b"\xef\xbb\xbf" + good.replace("\n", ending).encode())
    assert load_job(path) == load_job(str(path)) == load_job(good)


WRONG = [
    ("train_steps: 10x", 1, 14, "train_steps", "10x", "expected an integer."),
    ("train_steps: 1.5", 1, 14, "train_steps", "1.5", "expected an integer."),
    ("train_steps: 3000000000", 1, 14, "train_steps", "3000000000", "from -2147483648 to 2147483647"),
    ("seed: -1", 1, 7, "seed", "-1", "from 0 to 18446744073709551615"),
    ("train_stps: 5", 1, 1, "train_stps", "train_stps", "Did you mean train_steps?"),
    ("\n  momentum: 0.9", 2, 3, "momentum", "momentum", "It belongs in updater { }."),
    ("debug: maybe", 1, 8, "debug", "maybe", "expected true or false"),
    ("name: digits", 1, 7, "name", "digits", 'Write name: "digits".'),
    ("name: runs/digits\nx: 1", 1, 7, "name", "runs", "Text needs quotes."),
    ('name: "digits\ndebug: true', 1, 7, "name", '"digits', "the closing quote is missing"),
    (r'name: "\x"', 1, 7, "name", r'"\x"', "incomplete escape"),
    (r'name: "C:\\a\data"', 1, 7, "name", r'"C:\\a\data"', r"\d is not a valid escape"),
    ("name:\n", 2, 1, "name", "the end of the text", "has no value"),
    ('name "digits"\n', 1, 6, "name", '"digits"', "expected : after the name"),
    ('name: "a" name: "b"', 1, 11, "name", None, "is given twice, first in line 1"),
    ("updater { type: kSDG }", 1, 17, "updater.type", "kSDG", "Did you mean kSGD?"),
    ('updater { type: "kSGD" }', 1, 17, "updater.type", '"kSGD"', "Write kSGD."),
    ("updater { type: 99 }", 1, 17, "updater.type", "99", "no such UpdaterType"),
    ("updater { momentum: }", 1, 21, "updater.momentum", "}", "has no value"),
    ("updater: kSGD", 1, 10, "updater", "kSGD", "expected a block in braces. Received"),
    ("updater { momentum { } }", 1, 20, "updater.momentum", "{", "expected : after"),
    ("updater { momentum: { } }", 1, 21, "updater.momentum", "{", "expected a single value"),
    ("updater {\n momentum: x", 1, 1, "updater", None, "never closed: } is missing"),
    ("debug: true }", 1, 13, "job", "}", "No block is open here."),
    ("gpu: [0 1]", 1, 9, "gpu", "1", "expected , or ]"),
    ("gpu: [0, x]", 1, 10, "gpu[1]", "x", "expected an integer"),
    ("foo { a: 1", 1, 5, "foo", None, "the block that opens here is never closed"),
    ('{"name": "digits"}', 1, 1, "job", "{", "A job is protobuf text, not JSON."),
    (f'name: "{"x" * 99}', 1, 7, "name", f'"{"x" * 56}...', "the closing quote is missing"),
    ("neuralnet {\n layer {\n layer {", 3, 2, "neuralnet.layer[0].layer", "layer", "is a } missing before it?"),
    (
        "updater { learning_rate { momentum: 1 } }",
        1,
        27,
        "updater.learning_rate.momentum",
        "momentum",
        "in updater { }: is",
    ),
    (
        'neuralnet { layer { name: "ip1"\n innerproduct_conf { num_outputs: 3 } } }',
        *(2, 22, "neuralnet.layer[ip1].innerproduct_conf.num_outputs", "num_outputs", "Did you mean num_output?"),
    ),
    (
        'neuralnet { layer { num_output: 3 name: "ip1" } }',
        *(1, 21, "neuralnet.layer[ip1].num_output", "num_output", "It belongs in innerproduct_conf { }."),
    ),
    (
        'neuralnet { layer { name: "7" type: kReLu } }',
        *(1, 37, "neuralnet.layer[0].type", "kReLu", "Did you mean kReLU?"),
    ),
    # jobs of SINGA
    (
        'neuralnet { layer { name: "e" user_type: "kE" [data_conf] { size: 3 } } } debug: true',
        *(1, 47, "neuralnet.layer[e].[data_conf]", "[data_conf]", 'in user_type: "my_module:MyClass"'),
    ),
    ("updater { [a.b.conf]: { } }", 1, 11, "updater.[a.b.conf]", "[a.b.conf]", "is an extension, which only"),
    ("debug: true [conf {", 1, 13, "job", None, "the bracket that opens here is never closed"),
    ("model { name: 'a' }", 1, 1, "model", "model", "move its fields into the job itself"),
    (
        'neuralnet { layer { name: "d" } layer { name: "d" param { init { typ: kConstant } } } }',
        *(1, 66, "neuralnet.layer[1].param[0].init.typ", "typ", "Did you mean type?"),
    ),
]


@pytest.mark.parametrize(("text", "line", "column", "key", "received", "words"), WRONG, ids=[w[0] for w in WRONG])
def test_parse_errors(
    tmp_path: Path, text: str, line: int, column: int, key: str, received: str | None, words: str
) -> None:
    path = tmp_path / "job.conf"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_job(path)
    found = [p for p in error.value.problems if p.key == key and (p.line, p.column) == (line, column)]
    assert found, str(error.value)
    assert found[0].received == received
    assert found[0].file == str(path)
    assert words in str(found[0])


def test_all_problems_are_reported_in_the_order_of_the_text() -> None:
    text = 'nam: "a"\ntrain_steps: x\nupdater { typ: kSGD moment: 1 }\nfoo { bar [{}, {}] baz: "a" "b" }\ndebug: 7\n'
    with pytest.raises(ConfigError) as error:
        load_job(text)
    assert [p.key for p in error.value.problems] == [
        "nam",
        "train_steps",
        "updater.typ",
        "updater.moment",
        "foo",
        "debug",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jbo.conf", "file not found. Received: {tmp}/jbo.conf. Did you mean {tmp}/job.conf?"),
        ("latin.conf", "latin.conf:2:1: job file: is not UTF-8 text"),
        ("none/job.conf", "file not found"),
        (".", "is a folder, not a file. Received: {tmp}. Write {tmp}/job.conf, the job of this run."),
    ],
)
def test_the_files_that_are_no_jobs(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "job.conf").write_text('name: "a"')
    (tmp_path / "latin.conf").write_bytes(b'# fine\nname: "\xe9"')
    with pytest.raises(ConfigError) as error:
        load_job(tmp_path / name)
    assert words.format(tmp=tmp_path) in str(error.value)


def test_texts_and_paths_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.conf").write_text('name: "from file"')
    assert load_job("job.conf").name == "from file"
    assert load_job('name: "x"').name == "x"
    assert load_job("updater{momentum:1}").updater.momentum == 1
    assert load_job("# nothing") == load_job("") == JobProto()


def test_cluster_file_takes_the_place_of_the_jobs(tmp_path: Path, good: str) -> None:
    path = tmp_path / "one.conf"
    path.write_text("# just one\ncluster {\n  nworkers_per_group: 0\n}\n")
    job, positions = read_job(good, cluster=path)
    assert job.cluster.nworkers_per_group == 0
    assert not job.cluster.HasField("nservers_per_group")
    place = positions.find(("cluster", "nworkers_per_group"))
    assert (place.file, place.line, place.column) == (str(path), 3, 3)
    assert load_job(good, ["cluster.nworkers_per_group=4"], path).cluster.nworkers_per_group == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "cluster { }\ntrain_steps: 5",
            "2:1: cluster file: a cluster file must hold one cluster { } block and nothing else",
        ),
        ("# nothing", "Received: no cluster { }"),
        ("nworker_groups: 1", "It belongs in cluster { }."),
    ],
)
def test_what_is_no_cluster_file(good: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_job(good, cluster=text)
    assert words in str(error.value)
