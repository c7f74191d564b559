"""Scan a job's text for the place of every field and for all errors.

The parser of the protobuf library stops at the first error and names neither a path nor the nearest spelling. The scan
checks the same tokens against the same schema first. The library then parses texts without errors.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from singa_dask.errors import Problem, nearest
from singa_dask.job.job_pb2 import JobProto, LayerProto
from singa_dask.job.locate import Place
from singa_dask.job.paths import Path, callable_names, format_path
from singa_dask.job.scalars import QUOTES, ValueFault, parse_scalar, parse_text

_CLOSING = {"{": "}", "<": ">"}
_NAME = re.compile(r"\w")
_LAYER_NAME = LayerProto.DESCRIPTOR.fields_by_name["name"]
_BROKEN = re.compile(r"""[^\w"']|.[^\w}>\],;]""")
# A field name in more blocks than this ("type") does not tell where it belongs.
_FEW = 3
_LONG = 60
# Fields of jobs from before SINGA 0.1 -> the remedy.
_EARLIER = {
    "model": "Jobs from before SINGA 0.1 have it: move its fields into the job itself, and rename them as "
    "docs/coming-from-singa.md shows."
}


@dataclass
class Scan:
    """The result of a scan: the place of each field, the layers' names, and the problems in the order of the text."""

    places: dict[Path, Place] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=dict)
    faults: list[UnplacedProblem] = field(default_factory=list)

    @property
    def problems(self) -> list[Problem]:
        names = callable_names(self.names)
        return [
            Problem(format_path(f.path, names), f.message, _shown(f), f.hint, f.at.line, f.at.column, f.at.file)
            for f in self.faults
        ]


@dataclass(frozen=True)
class UnplacedProblem:
    """A problem whose path lacks the layers' names, which may follow further down the text."""

    path: Path
    at: Place
    message: str
    received: str | None = None
    hint: str | None = None


def scan(text: str, file: str | None = None, root: Descriptor = JobProto.DESCRIPTOR, at: Path = ()) -> Scan:
    """Scan `text`, a message of type `root` at path `at` of the job."""
    scanner = _Scanner(text, file)
    try:
        scanner.body(at, root, end=None)
    except _Stop as stop:
        scanner.result.faults.append(stop.fault)
    return scanner.result


class _Stop(Exception):
    """A fault after which the text cannot be scanned."""

    def __init__(self, fault: UnplacedProblem):
        self.fault = fault


class _Scanner:
    def __init__(self, text: str, file: str | None):
        self.result = Scan()
        self._file = file
        self._entries: Counter[Path] = Counter()
        self._open: list[tuple[Descriptor, Path]] = []
        self._tokens = text_format.Tokenizer(text.split("\n"))

    @property
    def _token(self) -> str:
        return self._tokens.token

    def _here(self) -> Place:
        error = self._tokens.ParseError("")  # the tokenizer's public way to get its position
        return Place(self._file, error.GetLine(), error.GetColumn())

    def body(self, path: Path, message: Descriptor, end: str | None, opened: Place | None = None) -> None:
        """Scan the fields of a block up to its closing brace (`end`) or the end of the text."""
        tokens = self._tokens
        self._open.append((message, path))
        while end is None or not tokens.TryConsume(end):
            if tokens.AtEnd():
                if end is None:
                    return
                fault = f"the block that opens here is never closed: {end} is missing"
                raise _Stop(UnplacedProblem(path, opened or Place(), fault))
            here, name = self._here(), self._token
            if tokens.TryConsume("["):
                self._extension(path, here)
                continue
            if not _NAME.match(name):
                hints = {"}": "No block is open here.", "{": "A job is protobuf text, not JSON."}
                hint = None if path else hints.get(name)
                raise _Stop(UnplacedProblem(path or ("job",), here, "expected the name of a field", name, hint))
            tokens.NextToken()
            found = message.fields_by_name.get(name)
            if found is None:
                fault = f"there is no such field in {_title(path)}"
                self._fault((*path, name), here, fault, name, self._hint(message, name))
                self._skip((*path, name))
            else:
                self._field((*path, name), found, here)
            if not tokens.TryConsume(","):
                tokens.TryConsume(";")
        self._open.pop()

    def _extension(self, path: Path, here: Place) -> None:
        """Skip a field [name], which a SINGA user declares in a .proto file; the bracket is consumed."""
        tokens, parts = self._tokens, list[str]()
        while not tokens.TryConsume("]"):
            if tokens.AtEnd():
                raise _Stop(UnplacedProblem(path or ("job",), here, "the bracket that opens here is never closed"))
            parts.append(self._token)
            tokens.NextToken()
        name = f"[{''.join(parts)}]"
        code = 'Write the code in Python and name it in user_type: "my_module:MyClass".'
        hint = f"{code} Write these fields into user_conf: '{{\"size\": 3}}'."
        self._fault((*path, name), here, "is an extension, which only SINGA's C++ code can read", name, hint)
        self._skip((*path, name))
        if not tokens.TryConsume(","):
            tokens.TryConsume(";")

    def _hint(self, message: Descriptor, name: str) -> str:
        """The hint for a field that `message` does not have."""
        for outer, path in reversed(self._open[:-1]):
            if name in outer.fields_by_name:
                return f"It belongs in {_title(path)}: is a }} missing before it?"
        return field_hint(message, name)

    def _fault(
        self, path: Path, at: Place, message: str, received: str | None = None, hint: str | None = None
    ) -> None:
        self.result.faults.append(UnplacedProblem(path, at, message, received, hint))

    def _field(self, path: Path, field: FieldDescriptor, here: Place) -> None:
        tokens = self._tokens
        if not tokens.TryConsume(":") and field.message_type is None:
            hint = f"Write {field.name}: VALUE."
            raise _Stop(
                UnplacedProblem(path, self._here(), "expected : after the name", self._token or "the end", hint)
            )
        if not field.is_repeated:
            if path in self.result.places:
                first = self.result.places[path]
                self._fault(path, here, f"is given twice, first in line {first.line}", hint="Remove one of them.")
            self.result.places.setdefault(path, here)
            self._value(path, field, here)
            return
        self.result.places.setdefault(path, here)
        if not tokens.TryConsume("["):
            self._value(self._next(path), field, here)
        elif not tokens.TryConsume("]"):
            while True:
                self._value(self._next(path), field, self._here())
                if tokens.TryConsume("]"):
                    return
                if not tokens.TryConsume(","):
                    raise _Stop(
                        UnplacedProblem(path, self._here(), "expected , or ] in the list", self._token or "the end")
                    )

    def _next(self, path: Path) -> Path:
        """The path of the next entry of the repeated field at `path`."""
        entry = (*path, self._entries[path])
        self._entries[path] += 1
        return entry

    def _value(self, path: Path, field: FieldDescriptor, here: Place) -> None:
        self.result.places.setdefault(path, here)
        if field.message_type is None:
            self._scalar(path, field)
            return
        end = _CLOSING.get(self._token)
        if end is None:
            hint = f"Write {field.name} {{ ... }}."
            raise _Stop(
                UnplacedProblem(path, self._here(), "expected a block in braces", self._token or "the end", hint)
            )
        self._tokens.NextToken()
        self.body(path, field.message_type, end, here)

    def _scalar(self, path: Path, field: FieldDescriptor) -> None:
        here, token = self._here(), self._token
        if token in ("{", "<", "["):
            raise _Stop(UnplacedProblem(path, here, "expected a single value", token, f"Write {field.name}: VALUE."))
        if token in ("}", ">"):
            self._fault(path, here, "has no value", token)
            return
        if token in ("", "]", ",", ";", ":"):
            raise _Stop(UnplacedProblem(path, here, "has no value", token or "the end of the text"))
        try:
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and token[0] in QUOTES:
                value = parse_text(self._tokens)
                if field == _LAYER_NAME:
                    self.result.names[path[:-1]] = value
                return
            parse_scalar(field, token)
        except ValueFault as fault:
            found = UnplacedProblem(path, here, str(fault), token, fault.hint)
            self._tokens.NextToken()
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and _BROKEN.match(token[0] + self._token[:1]):
                # Unquoted text has become several tokens: what follows cannot be scanned.
                raise _Stop(replace(found, hint="Text needs quotes.")) from None
            self.result.faults.append(found)
        else:
            self._tokens.NextToken()

    def _skip(self, path: Path) -> None:
        """Skip the value of an unknown field."""
        tokens = self._tokens
        colon = tokens.TryConsume(":")
        opened = self._here()
        if self._token in ("{", "<", "["):
            depth = 0
            while True:
                depth += (self._token in ("{", "<", "[")) - (self._token in ("}", ">", "]"))
                if tokens.AtEnd():
                    raise _Stop(UnplacedProblem(path, opened, "the block that opens here is never closed"))
                tokens.NextToken()
                if depth == 0:
                    return
        if not colon:
            raise _Stop(
                UnplacedProblem(path, self._here(), "expected : or { after the name", self._token or "the end")
            )
        if self._token in ("}", ">", "]"):
            return
        tokens.NextToken()
        while self._token[:1] in QUOTES:
            tokens.NextToken()


def _shown(fault: UnplacedProblem) -> str | None:
    """The received text, shortened."""
    text = fault.received
    return text if text is None or len(text) <= _LONG else f"{text[: _LONG - 3]}..."


def _title(path: Path) -> str:
    """The block at `path`, for a message."""
    last = next((part for part in reversed(path) if isinstance(part, str)), None)
    return f"{last} {{ }}" if last else "a job"


def field_hint(message: Descriptor, name: str) -> str:
    """The block where the unknown field `name` belongs, or the field of `message` with the nearest spelling."""
    if message == JobProto.DESCRIPTOR and name in _EARLIER:
        return _EARLIER[name]
    below = [f"{f.name} {{ }}" for f in message.fields if f.message_type and name in f.message_type.fields_by_name]
    for homes in (below, _homes().get(name, ())):
        if 1 <= len(homes) <= _FEW:
            return f"It belongs in {' or '.join(homes)}."
    return nearest(name, message.fields_by_name)


@cache
def _homes() -> dict[str, tuple[str, ...]]:
    """Field name -> the blocks of a job with such a field."""
    homes: dict[str, set[str]] = {}

    def visit(message: Descriptor, block: str, *above: Descriptor) -> None:
        for f in message.fields:
            homes.setdefault(f.name, set()).add(block)
            if f.message_type is not None and f.message_type not in (message, *above):
                visit(f.message_type, f"{f.name} {{ }}", message, *above)

    visit(JobProto.DESCRIPTOR, "the job")
    return {name: tuple(sorted(blocks)) for name, blocks in homes.items()}
