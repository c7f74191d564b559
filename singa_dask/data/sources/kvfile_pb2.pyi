from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordProto(_message.Message):
    __slots__ = ("shape", "label", "pixel", "data")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PIXEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    label: int
    pixel: bytes
    data: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., label: _Optional[int] = ..., pixel: _Optional[bytes] = ..., data: _Optional[_Iterable[float]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("type", "user_type", "image")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    USER_TYPE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    type: int
    user_type: str
    image: RecordProto
    def __init__(self, type: _Optional[int] = ..., user_type: _Optional[str] = ..., image: _Optional[_Union[RecordProto, _Mapping]] = ...) -> None: ...
