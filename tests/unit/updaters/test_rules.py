"""Every updater against its rule, written out in float64 one parameter at a time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singa_dask import updaters
from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.net.flat import Entry
from singa_dask.ops import get_ops
from singa_dask.updaters import Updater, make_updater, schedules

SIZE = 96
ENTRIES = [
    Entry("w", (5, 6), 0, 30, 1.0, 1.0),
    Entry("b", (20,), 32, 20, 2.0, 0.0),
    Entry("c", (32,), 64, 32, 0.5, 3.0),
]


def sgd(t, w, g, s, lr, p):
    v = s["v"] = p["momentum"] * s.get("v", 0.0) - lr * g
    return w + v


def nesterov(t, w, g, s, lr, p):
    mu, v = p["momentum"], s.get("v", 0.0)
    s["v"] = mu * v + lr * g
    return w - ((1 + mu) * s["v"] - mu * v)


def adagrad(t, w, g, s, lr, p):
    h = s["h"] = s.get("h", 0.0) + g * g
    return w - lr * g / np.sqrt(h + p["delta"])


def rmsprop(t, w, g, s, lr, p):
    h = s["h"] = p["rho"] * s.get("h", 0.0) + (1 - p["rho"]) * g * g
    return w - lr * g / np.sqrt(h + p["delta"])


def adadelta(t, w, g, s, lr, p):
    rho, delta = p["rho"], p["delta"]
    h = s["h"] = rho * s.get("h", 0.0) + (1 - rho) * g * g
    d = g * np.sqrt(s.get("u", 0.0) + delta) / np.sqrt(h + delta)
    s["u"] = rho * s.get("u", 0.0) + (1 - rho) * d * d
    return w - lr * d


def adam(t, w, g, s, lr, p):
    m = s["m"] = p["beta1"] * s.get("m", 0.0) + (1 - p["beta1"]) * g
    v = s["v"] = p["beta2"] * s.get("v", 0.0) + (1 - p["beta2"]) * g * g
    return w - lr * (m / (1 - p["beta1"] ** t)) / (np.sqrt(v / (1 - p["beta2"] ** t)) + p["delta"])


def adammax(t, w, g, s, lr, p):
    m = s["m"] = p["beta1"] * s.get("m", 0.0) + (1 - p["beta1"]) * g
    u = s["u"] = np.maximum(p["beta2"] * s.get("u", 0.0), abs(g))
    return w - lr / (1 - p["beta1"] ** t) * m / (u + p["delta"])


def adamw(t, w, g, s, lr, p):
    return adam(t, w - lr * p["decay"] * w, g, s, lr, p)


def lamb(t, w, g, s, lr, p):
    r = p["decay"] * w - adam(t, 0.0, g, s, 1.0, p)
    norms = [math.sqrt(sum(x * x)) for x in (w, r)]
    return w - lr * (norms[0] / norms[1] if all(norms) else 1.0) * r


DECOUPLED = (adamw, lamb)

RULES = [
    (updaters.SGD, sgd, {}),
    (updaters.SGD, sgd, {"momentum": 0.9}),
    (updaters.Nesterov, nesterov, {"momentum": 0.8}),
    (updaters.AdaGrad, adagrad, {"delta": 1e-6}),
    (updaters.RMSProp, rmsprop, {"rho": 0.95, "delta": 1e-6}),
    (updaters.AdaDelta, adadelta, {"rho": 0.85, "delta": 1e-4}),
    (updaters.Adam, adam, {"beta1": 0.8, "beta2": 0.99, "delta": 1e-6}),
    (updaters.AdamMax, adammax, {"beta1": 0.8, "beta2": 0.99, "delta": 1e-6}),
    (updaters.AdamW, adamw, {"beta1": 0.8, "beta2": 0.99, "delta": 1e-6}),
    (updaters.LAMB, lamb, {"beta1": 0.8, "beta2": 0.99, "delta": 1e-6}),
]
REGULARISERS = [{}, {"weight_decay": 0.01}, {"clip_low": -0.5, "clip_high": 0.7, "weight_decay": 0.02}]
IDS = [f"{cls.__name__}-{i}" for i, (cls, _, _) in enumerate(RULES)]


def expected(rule, own, common, schedule, w, gradients):
    """The rule, parameter by parameter, with scales, decay and clipping."""
    low, high = common.get("clip_low", -math.inf), common.get("clip_high", math.inf)
    w = w.copy()
    for entry in ENTRIES:
        where = slice(entry.start, entry.stop)
        decay, s = common.get("weight_decay", 0.0) * entry.wd_scale, {}
        p = {"momentum": 0.0, "decay": decay, **own}
        for step, g in enumerate(gradients):
            d = np.clip(g[where], low, high) + (0 if rule in DECOUPLED else decay * w[where])
            w[where] = rule(step + 1, w[where], d, s, schedule(step) * entry.lr_scale, p)
    return w


def padded(rng, dtype=np.float64):
    """Random values with the padding between the entries left zero."""
    flat = np.zeros(SIZE, dtype)
    for entry in ENTRIES:
        flat[entry.start : entry.start + entry.size] = rng.normal(size=entry.size)
    return flat


def run(proto, dtype, w, gradients, cuts=(), entries=ENTRIES):
    """Train `w` in slices, each with an updater of its own; the result."""
    w = w.astype(dtype)
    ends = [*cuts, SIZE]
    for start, stop in zip([0, *cuts], ends, strict=True):
        updater = make_updater(proto, get_ops("cpu", dtype))
        updater.bind(entries, start, stop)
        for step, g in enumerate(gradients):
            updater.update(step, w[start:stop], g[start:stop].astype(dtype))
    return w


@pytest.mark.parametrize("common", REGULARISERS)
@pytest.mark.parametrize(("cls", "rule", "own"), RULES, ids=IDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_updater_follows_its_rule(cls, rule, own, common, dtype, tolerance):
    rng = np.random.default_rng(1)
    w, gradients = padded(rng), [padded(rng) for _ in range(5)]
    schedule = schedules.Inverse(base_lr=0.1, gamma=0.5, pow=0.75)
    proto = cls(learning_rate=schedule, **own, **common).proto
    got = run(proto, dtype, w, gradients)
    want = expected(rule, own, common, schedule, w, gradients)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, SIZE // 16), min_size=2, max_size=2).map(sorted), seed=st.integers(0, 99))
@pytest.mark.parametrize(("cls", "rule", "own"), RULES, ids=IDS)
def test_slices_together_equal_the_whole(cls, rule, own, cuts, seed):
    rng = np.random.default_rng(seed)
    w, gradients = padded(rng), [padded(rng) for _ in range(3)]
    proto = cls(lr=0.05, weight_decay=0.01, clip_low=-1, clip_high=1, **own).proto
    whole = run(proto, np.float32, w, gradients)
    places = [0, 32, 32, 64, 64, 64, 96] if cls.whole_parameters else range(0, SIZE + 1, 16)
    sliced = run(proto, np.float32, w, gradients, [places[cut] for cut in cuts])
    np.testing.assert_array_equal(sliced, whole)


@pytest.mark.parametrize(("cls", "rule", "own"), RULES, ids=IDS)
def test_resumed_state_continues_bit_for_bit(cls, rule, own):
    rng = np.random.default_rng(4)
    w, gradients = padded(rng, np.float32), [padded(rng, np.float32) for _ in range(4)]
    proto = cls(lr=0.05, **own).proto
    want = run(proto, np.float32, w, gradients)
    ops = get_ops("cpu", np.float32)
    first, second = make_updater(proto, ops), make_updater(proto, ops)
    first.bind(ENTRIES, 0, SIZE)
    second.bind(ENTRIES, 0, SIZE)
    for step in (0, 1):
        first.update(step, w, gradients[step].copy())
    second.load_state({name: ops.to_host(array).copy() for name, array in first.state.items()})
    for step in (2, 3):
        second.update(step, w, gradients[step].copy())
    np.testing.assert_array_equal(w, want)


def test_neighbours_of_equal_scales_are_one_kernel_call():
    entries = [
        Entry("a", (10,), 0, 10),
        Entry("b", (10,), 16, 10),
        Entry("c", (3,), 32, 3, 2.0),
        Entry("d", (9,), 48, 9),
    ]
    assert updaters.base.segments(entries, 0, 64) == [(0, 32, (1, 1)), (32, 48, (2, 1)), (48, 64, (1, 1))]
    assert updaters.base.segments(entries, 16, 48) == [(0, 16, (1, 1)), (16, 32, (2, 1))]
    assert updaters.base.segments(entries, 16, 16) == []


def test_a_rule_for_whole_parameters_gets_them_one_by_one():
    entries = [Entry("a", (10,), 0, 10), Entry("b", (10,), 16, 10), Entry("c", (20,), 32, 20)]
    assert updaters.base.segments(entries, 16, 64, apart=True) == [(0, 16, (1, 1)), (16, 48, (1, 1))]
    with pytest.raises(ValueError, match=r"\[0, 48\) cuts parameter 'c' at \[32, 52\)"):
        updaters.base.segments(entries, 0, 48, apart=True)


def test_parameters_that_an_updater_can_have():
    updaters.LAMB(lr=0.1).check_fits(["a", "b", "c"], [])
    updaters.AdamW(lr=0.1).check_fits(["a", "b"], ["a"])
    GROUPED.check_fits(["ip_bias", "x_norm"], [])


@pytest.mark.parametrize(("cls", "rule", "own"), RULES, ids=IDS)
def test_groups_multiply_the_scales_of_the_parameters_that_they_match(cls, rule, own):
    rng = np.random.default_rng(6)
    w, gradients = padded(rng), [padded(rng) for _ in range(3)]
    groups = [{"match": ["b", "[cd]"], "wd_scale": 0.5}, {"match": "*", "lr_scale": 2}, {"match": "w", "wd_scale": 0}]
    entries = [
        Entry("w", (5, 6), 0, 30, 2.0, 0.0),
        Entry("b", (20,), 32, 20, 4.0, 0.0),
        Entry("c", (32,), 64, 32, 1.0, 1.5),
    ]
    grouped, scaled = (cls(lr=0.1, weight_decay=0.02, **own, **more).proto for more in ({"group": groups}, {}))
    expected = run(scaled, np.float64, w, gradients, entries=entries)
    np.testing.assert_array_equal(run(grouped, np.float64, w, gradients), expected)


def test_lamb_takes_a_first_step_of_a_parameter_of_zeros():
    w = run(updaters.LAMB(lr=0.1).proto, np.float32, np.zeros(SIZE), [np.full(SIZE, -2)])
    np.testing.assert_allclose(w[:30], 0.1, rtol=1e-5)


@pytest.mark.parametrize(("cls", "rule", "own"), RULES, ids=IDS)
def test_both_spellings_are_one_message(cls, rule, own):
    proto = cls(
        learning_rate=schedules.Step(base_lr=0.3, gamma=0.5, change_freq=7), clip_low=-1, clip_high=2, **own
    ).proto
    made = make_updater(proto, get_ops())
    assert type(made) is cls
    assert made.proto == proto
    assert UpdaterProto.FromString(proto.SerializeToString()) == proto
    assert proto.learning_rate.step_conf.change_freq == 7
    assert proto.clip_high == 2


class Mine(updaters.SGD):
    """Workers would take it for SGD."""


class Warm(schedules.Fixed):
    """Workers would take it for Fixed."""


class Own(updaters.RMSProp):
    type = "kUserUpdater"


class Averaging(updaters.SGD):
    """Its state has the name of the moving average."""

    type = "kUserUpdater"
    states = ("velocity", "ema")


GROUPED = updaters.SGD(lr=0.1, group=[{"match": "*_bias", "wd_scale": 0}, {"match": ["ip*", "*_norm"]}])


class Signum(Updater):
    """w -= lr * strength * sign(g); a user's own rule."""

    states = ("calls",)

    def apply(self, step, lr, weight_decay, w, g, *states):
        states[0][...] += 1
        w -= lr * self.conf.get("strength", 1) * np.sign(g)


def test_user_updater_by_name():
    proto = Signum(lr=0.5, strength=3).proto
    assert proto.user_type.endswith("test_rules:Signum")
    updater = make_updater(proto, get_ops())
    updater.bind(ENTRIES[:1], 0, 32)
    w = np.zeros(32, np.float32)
    updater.update(0, w, np.full(32, -2, np.float32))
    np.testing.assert_array_equal(w, 1.5)
    np.testing.assert_array_equal(updater.state["calls"], 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: updaters.SGD(momentum=0.9), ["updater.learning_rate", "lr=0.01"]),
        (lambda: updaters.SGD(lr=0.1, momentun=0.9), ["updater.momentun", "Did you mean momentum?"]),
        (lambda: updaters.SGD(lr=0.1, learning_rate=schedules.Fixed(0.1)), ["not both"]),
        (lambda: updaters.SGD(lr=0.1, momentum="much"), ["updater.momentum", "a number", "'much'"]),
        (lambda: updaters.SGD(lr="little"), ["updater.learning_rate.base_lr", "a number", "'little'"]),
        (lambda: updaters.RMSProp(lr=0.1), ["updater.rmsprop_conf.rho"]),
        (lambda: updaters.RMSProp(lr=0.1, rho=1.0), ["updater.rmsprop_conf.rho", "below 1", "Received: 1."]),
        (lambda: updaters.Adam(lr=0.1, delta=0), ["updater.delta", "positive"]),
        (lambda: updaters.SGD(lr=0.1, clip_low=1, clip_high=2), ["clip_low", "1.0 to 2.0"]),
        (lambda: updaters.SGD(lr=-1), ["updater.learning_rate.base_lr", "must not be negative", "-1"]),
        (lambda: updaters.SGD(lr=0.1, momentum=3), ["updater.momentum", "below 1", "3"]),
        (lambda: updaters.SGD(lr=0.1, clip_high=2), ["clip_low", "below 0", "0.0 to 2.0"]),
        (lambda: updaters.SGD(learning_rate=0.1), ["updater.learning_rate", "must be a schedule", "0.1", "lr="]),
        (lambda: Mine(lr=0.1), ["Mine", "type of its base class, kSGD", "Updater", "kUserUpdater"]),
        (lambda: Warm(base_lr=0.1), ["Warm", "type of its base class, kFixed", "Schedule", "kUserChange"]),
        (lambda: make_updater(UpdaterProto(), get_ops()), ["updater.type", "kUserUpdater", "kSGD"]),
        (
            lambda: make_updater(UpdaterProto(user_type="singa_dask.layers:ReLU"), get_ops()),
            ["subclass of Updater", "singa_dask.layers:ReLU"],
        ),
        (lambda: make_updater(UpdaterProto(user_type="singa_dask.layers:ReLu"), get_ops()), ["Did you mean ReLU?"]),
        (lambda: make_updater(UpdaterProto(user_type="no_such:X"), get_ops()), ["no module named 'no_such'"]),
        (lambda: make_updater(UpdaterProto(user_type="json"), get_ops()), ["module:Class"]),
        (lambda: Own(lr=0.1), ["conf.rho"]),
        (lambda: Own(lr=0.1, rho=1.5), ["updater.user_conf.rho", "below 1"]),
        (lambda: updaters.SGD(lr=0.1, ema_decay=1.0), ["updater.ema_decay", "at least 0 and below 1"]),
        (lambda: Averaging(lr=0.1, ema_decay=0.5), ["updater.user_type", "Averaging has a state of the name"]),
        (
            lambda: GROUPED.check_fits(["ip_weight", "ip_bias"], []),
            ["updater.group[1].match", "matches no parameter", "'*_norm'", "There are: ip_weight, ip_bias."],
        ),
        (
            lambda: updaters.SGD(lr=0.1, group=[{"match": "*_bias", "wd_scal": 0}]),
            ["updater.group.wd_scal", "Did you mean wd_scale"],
        ),
        (
            lambda: updaters.SGD(lr=0.1, group=[{"match": "*", "lr_scale": -1}]),
            ["updater.group[0].lr_scale", "must not be negative"],
        ),
        (
            lambda: updaters.LAMB(lr=0.1).check_fits(["a", "b", "c"], ["a", "b"]),
            ["updater.type", "LAMB needs", "Received: a, b", "Leave out partition_dim: 1"],
        ),
    ],
)
def test_errors_name_key_value_and_way_out(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("settings", "state", "words"),
    [
        ({}, {"squares": np.zeros(SIZE)}, "SGD keeps velocity.*squares"),
        ({}, {"velocity": np.zeros(95)}, r"\(96,\) here, but \(95,\)"),
        ({"ema_decay": 0.9}, {"velocity": np.zeros(SIZE)}, "SGD keeps velocity, ema, but the checkpoint has velocity"),
    ],
)
def test_saved_state_of_another_updater_is_refused(settings, state, words):
    updater = make_updater(updaters.SGD(lr=0.1, **settings).proto, get_ops())
    updater.bind(ENTRIES, 0, SIZE)
    with pytest.raises(CheckpointError, match=words):
        updater.load_state(state)


@pytest.mark.parametrize("built_in", updaters.BY_TYPE.values())
def test_one_may_derive_from_every_updater(built_in):
    own = type("Own", (built_in,), {"type": "kUserUpdater", "__module__": __name__})
    settings = {"rho": 0.9} if built_in is updaters.RMSProp else {}
    one, other = (kind(lr=0.1, **settings).proto for kind in (built_in, own))
    assert other.user_type and not other.HasField(built_in.conf_field or "momentum")
    values = (run(proto, np.float32, np.ones(SIZE), [np.full(SIZE, 0.5)]) for proto in (one, other))
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("cuts", [[], [16, 48]])
def test_the_moving_average_follows_the_parameters(dtype, cuts):
    rng = np.random.default_rng(7)
    entries = [Entry("w", (5, 6), 0, 30), Entry("mean", (20,), 32, 20, statistic=True), Entry("c", (32,), 64, 32, 0.5)]
    w, gradients = padded(rng, dtype), [padded(rng, dtype) for _ in range(4)]
    average = w.astype(np.float64)
    proto = updaters.SGD(lr=0.1, momentum=0.9, ema_decay=0.75).proto
    made = []
    for start, stop in zip([0, *cuts], [*cuts, SIZE], strict=True):
        updater = make_updater(proto, get_ops("cpu", dtype))
        updater.bind(entries, start, stop)
        updater.start(w[start:stop])
        made.append((updater, slice(start, stop)))
    for step, g in enumerate(gradients):
        for updater, own in made:
            updater.update(step, w[own], g[own])
        average = 0.75 * average + 0.25 * w
        average[32:52] = w[32:52]
        for updater, own in made:
            np.testing.assert_allclose(updater.state["ema"], average[own], rtol=1e-5, atol=1e-6)


def test_a_moving_average_is_state_like_any_other():
    updater = make_updater(updaters.SGD(lr=0.1, ema_decay=0.9).proto, get_ops())
    updater.bind(ENTRIES, 0, SIZE)
    updater.load_state({"velocity": np.zeros(SIZE), "ema": np.full(SIZE, 3.0)})
    np.testing.assert_array_equal(updater.state["ema"], 3)
    assert updaters.states_of(updaters.SGD(lr=0.1).proto) == ("velocity",)
