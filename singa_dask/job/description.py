"""Base of layers, updaters, schedules and algorithms: Python objects that wrap a message of the job."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self, TypeVar

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.check_fields import check_numbers
from singa_dask.job.fields import assign
from singa_dask.job.user_code import check_own_type, code_name, user_code

Kind = TypeVar("Kind", bound="Description")


class Description:
    """An object that wraps a message; a job file and Python build the same one.

        updater { type: kRMSProp momentum: 0.9 rmsprop_conf { rho: 0.9 } }
        RMSProp(momentum=0.9, rho=0.9)

    type: its type name in the message. conf_field: the message field with its settings, or None.
    type_field, user_field: the message fields that hold the type and the "module:Class" of user code.
    """

    type: ClassVar[str]
    conf_field: ClassVar[str | None] = None
    type_field: ClassVar[str] = "type"
    user_field: ClassVar[str] = "user_type"

    proto: Any
    _inherited: Any

    def _describe(
        self,
        proto: Any,
        base: Any,
        key: str,
        given: Mapping[str, Any],
        common: Collection[str] = (),
        spelled: Collection[str] = (),
    ) -> None:
        """Write the type and the keyword arguments into the message.

        base: the class whose `type` marks user classes. Their settings become JSON in `user_conf`; the settings of
        built-in classes are fields of their `*_conf`. common: message fields that every class takes.
        spelled: further names for errors to suggest. Raises ConfigError for an unknown setting or a wrong value.
        """
        cls = type(self)
        check_own_type(cls, base, key)
        assign(proto, cls.type_field, cls.type, f"{key}.{cls.type_field}")
        users, own = cls.type == base.type, self._own(proto)
        fields = own.DESCRIPTOR.fields_by_name if own is not None else {}
        if users and own is not None:
            own = type(own)()  # its values are checked and travel with the others
        rest = {}
        for name, value in given.items():
            if name in fields:
                assign(own, name, value, f"{key}.{name}")
                own.SetInParent()
            elif name in common:
                assign(proto, name, value, f"{key}.{name}")
            elif not users:
                message, hint = f"{cls.__name__} has no such setting", _hint(name, [*fields, *spelled], common)
                raise ConfigError(Problem(f"{key}.{name}", message, f"{name}={value!r}", hint))
            if users and (name in fields or name not in common):
                rest[name] = value
        if users:
            setattr(proto, cls.user_field, code_name(cls))
        if rest:
            proto.user_conf = _as_json(rest, key)

    @classmethod
    def from_proto(cls, proto: Any) -> Self:
        """The object that this message describes. Raises ConfigError for settings out of range."""
        made = cls.__new__(cls)
        made._adopt(proto)
        return made

    def _adopt(self, proto: Any) -> None:
        self.proto, self._inherited = proto, None
        own = self._own(proto)
        if own is not None and getattr(proto, self.user_field):
            self._inherited = type(own)()
            self._inherited.CopyFrom(own)
            for name in self.user_conf.keys() & own.DESCRIPTOR.fields_by_name:
                assign(self._inherited, name, self.user_conf[name], f"{type(self).__name__}.user_conf.{name}")

    def _own(self, proto: Any) -> Any:
        return getattr(proto, self.conf_field) if self.conf_field is not None else None

    @property
    def conf(self) -> Any:
        """The `*_conf` message, or `user_conf` without one. A user class that derives from a class with a `*_conf`
        has the fields of that `*_conf`, read from `user_conf`."""
        if self.conf_field is None:
            return self.user_conf
        return self._own(self.proto) if self._inherited is None else self._inherited

    @property
    def user_conf(self) -> dict[str, Any]:
        """The keyword arguments of a user class."""
        found = json.loads(self.proto.user_conf) if self.proto.user_conf else {}
        if not isinstance(found, dict):
            message, hint = "must be a JSON object", "Write '{\"size\": 3}'."
            raise ConfigError(Problem(f"{type(self).__name__}.user_conf", message, self.proto.user_conf, hint))
        return found

    def _check_fields(self, key: str) -> None:
        """Raise ConfigError if a required field is missing or a number is out of range."""
        for message, where in ((self.proto, key), (self._inherited, f"{key}.user_conf")):
            missing = message.FindInitializationErrors() if message is not None else []
            if missing:
                raise ConfigError(
                    [Problem(f"{where}.{field}", f"{type(self).__name__} needs it") for field in missing]
                )
            if message is not None:
                check_numbers(message, where)


def class_of(
    proto: Any, built_in: Mapping[str, type[Kind]], base: Any, key: str, example: str | None = None
) -> type[Kind]:
    """The class that a message names: a built-in type, or user code as "module:Class".

    example: a type for errors to show; by default the first of `built_in`. Raises ConfigError if there is no such
    class.
    """
    type_field, user_field = base.type_field, base.user_field
    given = proto.DESCRIPTOR.fields_by_name[type_field].enum_type.values_by_number[getattr(proto, type_field)].name
    if given in built_in:
        return built_in[given]
    named = getattr(proto, user_field)
    if not named:
        received = given if proto.HasField(type_field) else f"no {type_field}"
        hint = f'Write {type_field}: {example or next(iter(built_in))} (or another), or {user_field}: "module:Class".'
        raise ConfigError(Problem(f"{key}.{type_field}", f"{base.type} needs {user_field}", received, hint))
    found = user_code(named, f"{key}.{user_field}")
    if not (isinstance(found, type) and issubclass(found, base)):
        hint = f"Derive it from {base.__module__.removesuffix('.base')}.{base.__name__}."
        message = f"must name a subclass of {base.__name__}"
        raise ConfigError(Problem(f"{key}.{user_field}", message, repr(named), hint))
    return found


def _hint(name: str, own: Collection[str], common: Collection[str]) -> str:
    near = nearest(name, [*own, *common])
    if near.startswith("Did you mean"):
        return near
    return nearest(name, own) or "Leave it out: this class has no settings."


def _as_json(settings: Mapping[str, Any], key: str) -> str:
    try:
        return json.dumps(settings, default=_plain)
    except (TypeError, ValueError) as error:
        message = f"settings of a user class must be numbers, text, or lists and dicts of them: {error}"
        raise ConfigError(Problem(key, message, ", ".join(settings))) from error


def _plain(value: Any) -> Any:
    """Convert NumPy scalars and paths, which JSON does not support."""
    return value.item() if hasattr(value, "item") else os.fspath(value)
