"""The messages of a job, from job.proto and its comments."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc

from reference.markdown import escaped, sentence, table
from singa_dask.job.layer_types import CONF, INSERTED, SPELLINGS
from singa_dask.layers.registry import built_in

ROOT = Path(__file__).parents[2]
PROTO = "singa_dask/job/job.proto"
OURS = 1001  # and above are the numbers of fields that SINGA lacks
_MESSAGE, _ENUM, _FIELD, _NESTED, _VALUE = 4, 5, 2, 4, 2  # the numbers of their lists in descriptor.proto
_OURS = re.compile(r"^ours(?:[.:]\s*|,\s*)", re.IGNORECASE)


@cache
def described() -> FileDescriptorProto:
    """job.proto with its comments."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "set")
        command = ["protoc", f"-I{ROOT}", "--include_source_info", f"--descriptor_set_out={out}", f"{ROOT / PROTO}"]
        if protoc.main(command):
            raise RuntimeError(f"protoc cannot read {PROTO}")
        return FileDescriptorSet.FromString(out.read_bytes()).file[0]


@cache
def _comments() -> dict[tuple[int, ...], str]:
    places = described().source_code_info.location
    return {tuple(place.path): f"{place.leading_comments} {place.trailing_comments}".strip() for place in places}


def comment(*path: int) -> str:
    """What the comment at a place says, whether or not SINGA has the field."""
    return sentence(_OURS.sub("", " ".join(_comments().get(path, "").split())))


def messages() -> Iterator[tuple[int, DescriptorProto]]:
    """Every message and its index."""
    yield from enumerate(described().message_type)


def fields(index: int) -> Iterator[tuple[FieldDescriptorProto, str]]:
    """The fields of a message and what they mean: their comments, or those of their enums; which layers read them."""
    message = described().message_type[index]
    enums = {enum.name: comment(_MESSAGE, index, _NESTED, i) for i, enum in enumerate(message.enum_type)}
    for i, field in enumerate(message.field):
        said = comment(_MESSAGE, index, _FIELD, i) or enums.get(field.type_name.rpartition(".")[2], "")
        types = ", ".join(f"`{kind}`" for kind, block in CONF.items() if block == field.name)
        yield field, f"{escaped(said)} {types and f'Settings of {types}.'}".strip()


def readers(name: str) -> str:
    """Where a message stands: "In: LayerProto.lrn_conf."."""
    places = [
        f"[{message.name}](#{anchor(message.name)}) as `{field.name}`"
        for _, message in messages()
        for field in message.field
        if field.type_name.rpartition(".")[2] == name
    ]
    return f"In {', '.join(places)}." if places else ""


def default(field: FieldDescriptorProto) -> str:
    """The default of a field."""
    if field.label == field.LABEL_REQUIRED:
        return "required"
    if field.label == field.LABEL_REPEATED:
        return "`[]`"
    if not field.HasField("default_value"):
        return ""
    return f'`"{field.default_value}"`' if field.type == field.TYPE_STRING else f"`{field.default_value}`"


def type_name(field: FieldDescriptorProto) -> str:
    """The type of a field, with a link to messages and enums of the job file's page."""
    full = field.type_name.removeprefix(f".{described().package}.")
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    text = f"[{full}](job-file.md#{anchor(full)})" if full else kind
    return f"list of {text}" if field.label == field.LABEL_REPEATED else text


def anchor(full: str) -> str:
    """The id of a message or enum on the page."""
    return full.lower().replace(".", "-")


def settings(name: str) -> str:
    """The table of the fields of a message."""
    (index,) = (index for index, message in messages() if message.name == name)
    rows = (
        [f"`{field.name}`{'&nbsp;²' if field.number >= OURS else ''}", type_name(field), default(field), said]
        for field, said in fields(index)
    )
    return table(["field", "type", "default", "meaning"], rows)


def page() -> str:
    """All messages and enums."""
    parts = []
    for index, message in messages():
        parts += [f"## {message.name} {{ #{anchor(message.name)} }}", escaped(comment(_MESSAGE, index))]
        parts.append(readers(message.name))
        parts.append(settings(message.name))
        for i, enum in enumerate(message.enum_type):
            parts += _enum(f"{message.name}.{enum.name}", enum, (_MESSAGE, index, _NESTED, i), 3)
    for index, enum in enumerate(described().enum_type):
        parts += _enum(enum.name, enum, (_ENUM, index), 2)
    return "\n\n".join(part for part in parts if part)


def _enum(full: str, enum: EnumDescriptorProto, path: tuple[int, ...], level: int) -> list[str]:
    rows = [
        [
            f"`{value.name}`{'&nbsp;²' if value.number >= OURS else ''}",
            _value(enum.name, value.name, comment(*path, _VALUE, i)),
        ]
        for i, value in enumerate(enum.value)
    ]
    heading = f"{'#' * level} {full} {{ #{anchor(full)} }}"
    if not any(said for _, said in rows):
        return [heading, escaped(comment(*path)), f"{', '.join(value for value, _ in rows)}."]
    return [heading, escaped(comment(*path)), table(["value", "meaning"], rows)]


def _value(enum: str, name: str, said: str) -> str:
    """What a value of an enum means; of layer types, where they are described."""
    if enum != "LayerType":
        return escaped(said)
    kind = SPELLINGS.get(name, name)
    if kind in INSERTED or kind not in built_in():
        return "Refused." if name != "kUserLayer" else "The class that `user_type` names."
    cls = built_in()[kind].__name__
    return f"[{cls}](layers.md#{cls.lower()})"
