"""What layers, updaters, schedules and algorithms have in common, told of one that is none of them."""

import numpy as np
import pytest

from singa_dask.errors import ConfigError
from singa_dask.job.description import Description, class_of
from singa_dask.job.job_pb2 import UpdaterProto


class Rule(Description):
    type = "kUserUpdater"

    def __init__(self, **settings):
        proto = UpdaterProto()
        self._describe(proto, Rule, "rule", settings, ("momentum",))
        self._adopt(proto)


class Decaying(Rule):
    type = "kRMSProp"
    conf_field = "rmsprop_conf"


class Mine(Rule):
    pass


class Slower(Decaying):
    """Of a built-in one, with its settings and one more."""

    type = "kUserUpdater"


class Unnamed(Decaying):
    pass


BUILT_IN = {"kRMSProp": Decaying}


def found(proto):
    return class_of(proto, BUILT_IN, Rule, "rule")


def test_a_built_in_one():
    made = Decaying(momentum=0.5, rho=0.75)
    assert made.proto == UpdaterProto(type="kRMSProp", momentum=0.5, rmsprop_conf={"rho": 0.75})
    again = found(made.proto).from_proto(made.proto)
    assert type(again) is Decaying and again.conf.rho == 0.75


def test_one_of_the_users_own_keeps_what_is_no_field_as_json():
    made = Mine(momentum=0.5, size=[1, 2])
    assert made.proto.momentum == 0.5 and made.proto.user_type.endswith(":Mine")
    again = found(made.proto).from_proto(made.proto)
    assert type(again) is Mine and again.conf == {"size": [1, 2]}
    assert Mine().conf == {} and not Mine().proto.HasField("user_conf")


def test_one_that_derives_from_a_built_in_one_has_its_settings_too():
    made = Slower(momentum=0.5, rho=0.75, warm=3)
    assert made.proto.user_conf == '{"rho": 0.75, "warm": 3}' and not made.proto.HasField("rmsprop_conf")
    again = found(made.proto).from_proto(made.proto)
    assert type(again) is Slower and again.proto.momentum == 0.5
    assert again.conf.rho == 0.75 and again.user_conf["warm"] == 3
    with pytest.raises(ConfigError, match=r"rule\.rho: expected a number"):
        Slower(rho="all")
    assert Slower(rho=np.float32(0.5), warm=np.int64(3)).proto.user_conf == '{"rho": 0.5, "warm": 3}'


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Decaying(rhoo=1), r"rule\.rhoo: Decaying has no such setting. Received: rhoo=1. Did you mean rho\?"),
        (lambda: Decaying(rho="all"), r"rule\.rho: expected a number. Received: 'all'"),
        (lambda: Decaying(momentum=True), r"rule\.momentum: expected a number. Received: True"),
        (lambda: Mine(draw=print), r"rule: settings of a user class must be numbers, text.* Received: draw"),
        (lambda: Unnamed(rho=1), r"Unnamed has the type of its base class, kRMSProp,.*type = .kUserUpdater. in it"),
        (lambda: Mine.from_proto(UpdaterProto(user_conf="[1]")).conf, r"Mine.user_conf: must be a JSON object"),
        (lambda: found(UpdaterProto(user_type="singa_dask.layers:ReLU")), r"Derive it from .*Rule"),
        (lambda: Decaying(x=1), r"rule\.x: Decaying has no such setting. Received: x=1. Valid: rho"),
        (lambda: found(UpdaterProto()), r"rule\.type: kUserUpdater needs user_type. Received: no type.*kRMSProp"),
        (lambda: found(UpdaterProto(type="kSGD")), r"rule\.type: .* Received: kSGD"),
        (lambda: found(UpdaterProto(user_type="singa_dask.layers:ReLU")), r"user_type: must name a subclass of Rule"),
    ],
)
def test_errors_name_key_value_and_way_out(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
