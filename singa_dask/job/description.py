"""What a job describes by a message, and Python by an object: layers, updaters, schedules and algorithms."""

from __future__ import annotations

import json
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

    type: the name of its kind in the message. conf_field: the field of the message with its own settings, or None.
    type_field, user_field: where the message says its type, and which "module:Class" of the user's own it is.
    """

    type: ClassVar[str]
    conf_field: ClassVar[str | None] = None
    type_field: ClassVar[str] = "type"
    user_field: ClassVar[str] = "user_type"

    proto: Any

    def _describe(
        self, proto: Any, base: Any, key: str, given: Mapping[str, Any], common: Collection[str] = ()
    ) -> None:
        """Write the type and the keyword arguments into the message.

        base: the class whose `type` is that of all classes of the user's own. common: fields of the message that they
        all take; own settings are fields of the `*_conf`; what a class of the user's own takes besides becomes JSON,
        in `user_conf`. Raises ConfigError where there is no such setting, or its value does not fit.
        """
        cls = type(self)
        check_own_type(cls, base, key)
        assign(proto, cls.type_field, cls.type, f"{key}.{cls.type_field}")
        own: Any = getattr(proto, cls.conf_field) if cls.conf_field is not None else None
        fields = own.DESCRIPTOR.fields_by_name if own is not None else {}
        rest = {}
        for name, value in given.items():
            if name in fields:
                assign(own, name, value, f"{key}.{name}")
                own.SetInParent()
            elif name in common:
                assign(proto, name, value, f"{key}.{name}")
            elif cls.type == base.type:
                rest[name] = value
            else:
                message, valid = f"{cls.__name__} has no such setting", [*common, *fields]
                hint = nearest(name, valid) if valid else None
                raise ConfigError(Problem(f"{key}.{name}", message, f"{name}={value!r}", hint))
        if cls.type == base.type:
            setattr(proto, cls.user_field, code_name(cls))
        if rest:
            proto.user_conf = _as_json(rest, key)

    @classmethod
    def from_proto(cls, proto: Any) -> Self:
        """What this message describes. Raises ConfigError for settings out of range."""
        made = cls.__new__(cls)
        made._adopt(proto)
        return made

    def _adopt(self, proto: Any) -> None:
        self.proto = proto

    @property
    def conf(self) -> Any:
        """The `*_conf` message; of a class of the user's own the keyword arguments."""
        if self.conf_field is not None:
            return getattr(self.proto, self.conf_field)
        return json.loads(self.proto.user_conf) if self.proto.user_conf else {}

    def _check_fields(self, key: str) -> None:
        """Raise ConfigError where the message lacks what it must have, or a number is out of range."""
        missing = self.proto.FindInitializationErrors()
        if missing:
            raise ConfigError([Problem(f"{key}.{field}", f"{type(self).__name__} needs it") for field in missing])
        check_numbers(self.proto, key)


def class_of(proto: Any, built_in: Mapping[str, type[Kind]], base: Any, key: str) -> type[Kind]:
    """The class for the type of a message, by its name, or that of the user's own which it names as "module:Class".

    Raises ConfigError where it names none.
    """
    type_field, user_field = base.type_field, base.user_field
    given = proto.DESCRIPTOR.fields_by_name[type_field].enum_type.values_by_number[getattr(proto, type_field)].name
    if given in built_in:
        return built_in[given]
    named = getattr(proto, user_field)
    if not named:
        received = given if proto.HasField(type_field) else f"no {type_field}"
        hint = f'Write {type_field}: {next(iter(built_in))} (or another), or {user_field}: "module:Class".'
        raise ConfigError(Problem(f"{key}.{type_field}", f"{base.type} needs {user_field}", received, hint))
    found = user_code(named, f"{key}.{user_field}")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(Problem(f"{key}.{user_field}", f"must name a subclass of {base.__name__}", repr(named)))
    return found


def _as_json(settings: Mapping[str, Any], key: str) -> str:
    try:
        return json.dumps(settings)
    except (TypeError, ValueError) as error:
        message = f"settings of a class of one's own are numbers, text, lists and dicts of them: {error}"
        raise ConfigError(Problem(key, message, ", ".join(settings))) from error
