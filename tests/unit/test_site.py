"""The site has every page, and its reference everything that it is generated from."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pkgutil import resolve_name

import pytest
from support.programs import ROOT, program

import singa_dask
from singa_dask import errors
from singa_dask.job import job_pb2
from singa_dask.job.job_pb2 import LayerType
from singa_dask.layers.registry import built_in

pages = program("pages", "site")
links = program("links", "site")
reference = program("reference", "site")


def test_every_generated_page_has_its_place(pages, reference):
    marks = [re.findall(r"^<!-- reference: (.*) -->$", path.read_text(), re.M) for path in pages.all_pages()]
    assert sorted(name for found in marks for name in found) == sorted(reference.GENERATED)


def test_the_command_line_has_every_command_and_option_with_its_whole_help(reference):
    page = reference.GENERATED["command-line"]().replace("&lt;", "<")
    for name, context in reference.command_line.commands():
        section = page.partition(f"\n## {name} {{ #{name} }}\n")[2].partition("\n## ")[0]
        said = re.sub(r"[`\\\s]|\{ #[^}]*\}|^:", "", section, flags=re.MULTILINE)
        for option in context.command.get_params(context):
            if record := option.get_help_record(context):
                assert re.sub(r"[`\\\s]", "", "".join(record)) in said, (name, record)
        assert re.sub(r"[`\\\s]", "", inspect.cleandoc(context.command.help or "missing")) in said


def docstring(module: str, name: str) -> str:
    """What a name of a module says, wherever it is defined; read without an import, which would take seconds."""
    path = ROOT / module.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
            return docstring(node.module, name)
    raise AssertionError(f"{module} does not define {name}")


def test_python_has_every_name_of_the_package_and_each_has_a_docstring(reference):
    page = reference.GENERATED["python"]()
    named = re.findall(r"^::: singa_dask\.(\w+)$", page, re.MULTILINE)
    assert {*singa_dask.__all__} - {*named} == {"__version__", *singa_dask._LAZY_MODULES}
    assert [name for name in named if not docstring(singa_dask._LAZY[name], name)] == []


def test_python_has_every_public_module(reference):
    api = reference.python_api
    assert {*api.LAYERS, *api.LOOPS, *api.PARTS} == {f"singa_dask.{name}" for name in singa_dask._LAZY_MODULES}


@pytest.mark.parametrize("name", ["layers", "loops", "parts"])
def test_python_has_every_name_of_the_modules_and_each_has_a_docstring(reference, name):
    page = reference.GENERATED[f"python-{name}"]()
    without = {cls.__name__ for cls in built_in().values()} if name == "layers" else set()
    for module in getattr(reference.python_api, name.upper()):
        for each in {*reference.python_api.names(module)} - without:
            assert re.search(rf"^(::: {module}\.{each}$|\| `{each}[`(].*\w)", page, re.MULTILINE), (module, each)
            value = getattr(resolve_name(module), each)
            assert inspect.getdoc(value) or not callable(value), (module, each)


def test_the_job_file_has_every_field_with_its_default(reference):
    page = reference.GENERATED["job-file"]()
    for name, message in job_pb2.DESCRIPTOR.message_types_by_name.items():
        section = page.partition(f"## {name} {{ #{name.lower()} }}\n")[2].partition("\n## ")[0]
        for field in message.fields:
            (row,) = re.findall(rf"^\| `{field.name}`.*", section, re.MULTILINE)
            assert not row.endswith("|  |"), f"{name}.{field.name} has no comment in job.proto"
            default = field.default_value if field.has_default_value else ""
            if field.enum_type is not None:
                default = field.enum_type.values_by_number[default or 0].name if field.has_default_value else ""
            elif isinstance(default, bool):
                default = str(default).lower()
            if isinstance(default, float):
                assert float(row.split(" | ")[2].strip("`")) == pytest.approx(default, rel=1e-6), row
            else:
                assert str(default) in row.split(" | ")[2], row
    enums = [*job_pb2.DESCRIPTOR.enum_types_by_name.values()]
    enums += [e for message in job_pb2.DESCRIPTOR.message_types_by_name.values() for e in message.enum_types]
    assert [v.name for enum in enums for v in enum.values if f"`{v.name}`" not in page] == []


def test_layers_have_every_type_with_what_it_computes_and_its_settings(reference):
    page = reference.GENERATED["layers"]()
    assert [kind for kind in LayerType.keys() if kind != "kUserLayer" and f"{kind}`" not in page] == []  # noqa: SIM118
    section = page.partition("### Convolution ")[2].partition("\n### ")[0]
    for part in ("y\\[oh, ow\\] = b + sum", "`convolution_conf`", "`workspace_byte_limit`", "`512`", "`weight`"):
        assert part in section


def test_errors_have_every_class_with_its_meaning_and_its_places(reference):
    page = reference.GENERATED["errors"]()
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            section = page.partition(f"## {name} {{")[2].partition("\n## ")[0]
            assert inspect.getdoc(value).split("\n")[0] in section
            assert value is errors.SingaError or "Raised in:\n\n- `singa_dask." in section, name


def test_docstrings_become_lists_of_names_code_and_prose(reference):
    docstrings = importlib.import_module("reference.docstrings")
    text = """A sum of *x* and <y>.

    net = sum(x)

    y: net

x, y: arrays, of one
shape; scale: a factor. other: no name. Raises DataError if they do not fit.

>>> f(1)
2"""
    assert docstrings.as_markdown(text, {"x", "y", "scale"}).split("\n\n") == [
        "A sum of \\*x\\* and &lt;y\\>.",
        "````python\nnet = sum(x)",
        "y: net\n````",
        "`x`, `y`\n:   Arrays, of one shape.",
        "`scale`\n:   A factor. other: no name.",
        "Raises DataError if they do not fit.",
        "````pycon\n>>> f(1)\n2\n````",
    ]


def test_links_to_sources_lead_to_their_pages_and_marks_are_invisible(pages):
    code = "`[c](job.proto) <!--d-->`\n```\n[e](job)\n```\n"
    text = f"[job](job/job.proto) [a](a.md#b) <!--= {{x}} -->8 %<!--/-->, {code}List\n- a\n"
    assert pages.on_site(text, ROOT / "singa_dask/x.md") == (
        f"[job](job/job.proto.md) [a](a.md#b) 8 %, {code}List\n\n- a\n"
    )
    made = pages.sources([ROOT / "examples/rnnlm", ROOT / "README.md"])
    assert {"examples/rnnlm/index.md", "examples/rnnlm/job.conf.md"} <= made.keys()
    assert "[job.conf](job.conf.md)" in made["examples/rnnlm/index.md"]
    assert (ROOT / "examples/rnnlm/job.conf").read_text().rstrip() in made["examples/rnnlm/job.conf.md"]


def test_broken_links_are_found_also_to_what_is_generated(links, tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# A & b\n\n<!-- reference: errors -->\nhere\n<!-- /reference -->\n")
    page.write_text(
        "# Own `title`\n[1](other.md#a--b) [2](#own-title) ![3](no.png) [4](other.md#commtimeout) [5](other.md#gone)\n"
        "[6](#none) `[7](no.md)` <https://example.org>\n\n  ```\n  [8](no.md)\n  ```\n"
    )
    assert links.broken(page) == ["no.png", "other.md#gone", "#none"]


def test_addresses_that_cannot_be_read_are_found(links, tmp_path, monkeypatch, capsys):
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/here" else 404)
            self.end_headers()

        def log_message(self, *args):
            """Say nothing."""

    page = ROOT / "page.md"
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        text = f"[a]({here}/here#b) <{here}/gone> `[c]({here}/code)` [d](http://127.0.0.1:1/closed)"
        monkeypatch.setattr(links.pages, "all_pages", lambda: [page])
        monkeypatch.setattr(type(page), "read_text", lambda path: text)
        assert links.main(None) == 1
        server.shutdown()
    out, err = capsys.readouterr()
    assert out == "3 addresses, 2 cannot be read\n"
    assert f"{here}/gone in page.md: HTTP Error 404" in err
    assert "http://127.0.0.1:1/closed in page.md: " in err and "/here" not in err


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.html", '<script src="https://unpkg.com/x.js">', ["https://unpkg.com/x.js"]),
        ("a.html", "<link rel=stylesheet href=//fonts.example/css>", ["//fonts.example/css"]),
        ("a.css", "@font-face {src: url('https://x.org/a.woff2')}", ["https://x.org/a.woff2"]),
        ("a.html", '<a href="https://x.org">x</a><script src="../a.js"></script><img src="b.png">', []),
    ],
)
def test_what_a_site_loads_from_elsewhere_is_found(links, tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    assert links.needed(tmp_path) == [f"{address} in {name}" for address in expected]
