"""Which layers a phase has, and their order."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import LayerProto, NetProto, Phase
from singa_dask.net import Edge, build_graph


def net_of(*layers: tuple[str, str] | tuple[str, str, dict]) -> NetProto:
    """Layers as (name, "source source", further fields)."""
    protos = []
    for name, sources, *more in layers:
        protos.append(LayerProto(name=name, srclayers=sources.split(), **(more[0] if more else {})))
    return NetProto(layer=protos)


def test_include_wins_and_exclude_leaves_out():
    net = text_format.Parse(
        """
        layer { name: "data" include: kTrain }
        layer { name: "data" include: [kTest, kVal] exclude: kTest }
        layer { name: "drop" srclayers: "data" exclude: kTest exclude: kVal }
        layer { name: "always" srclayers: "data" }
        """,
        NetProto(),
    )
    assert list(build_graph(net, Phase.kTrain).layers) == ["data", "drop", "always"]
    assert list(build_graph(net, Phase.kTest).layers) == ["data", "always"]
    assert list(build_graph(net, Phase.kTest).layers["data"].include) == [Phase.kTest, Phase.kVal]


def test_order_is_the_files_among_the_free():
    """A layer that is read twice has two uses."""
    net = net_of(("loss", "a b"), ("b", "z"), ("a", "z"), ("z", ""), ("y", ""), ("sum", "y y"))
    graph = build_graph(net, Phase.kTrain)
    assert list(graph.layers) == ["z", "b", "a", "loss", "y", "sum"]
    assert graph.consumers["y"] == (Edge("sum", 0), Edge("sum", 1))
    assert graph.consumers["z"] == (Edge("b", 0), Edge("a", 0))
    assert graph.consumers["b"] == (Edge("loss", 1),)
    assert graph.consumers["loss"] == ()


@settings(max_examples=50)
@given(st.data())
def test_sources_always_come_first(data):
    n = data.draw(st.integers(1, 12))
    names = [f"l{i}" for i in range(n)]
    layers = [
        (name, " ".join(data.draw(st.sets(st.sampled_from(names[:i])) if i else st.just(()))))
        for i, name in enumerate(names)
    ]
    shuffled = data.draw(st.permutations(layers))
    order = list(build_graph(net_of(*shuffled), Phase.kTrain).layers)
    assert sorted(order) == sorted(names)
    for name, sources in layers:
        assert all(order.index(source) < order.index(name) for source in sources.split())
    assert list(build_graph(net_of(*layers), Phase.kTrain).layers) == names


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([("ip1", ""), ("loss", "ip2")], ["layer 'loss'.srclayers", "Received: ip2", "Did you mean ip1?"]),
        (
            [("data", "", {"include": [Phase.kTest]}), ("ip", "data")],
            ["does not run in phase kTrain", "Received: data"],
        ),
        ([("a", ""), ("b", "a d"), ("c", "b"), ("d", "c")], ["form a cycle", "b -> c -> d -> b"]),
        ([("a", "a")], ["form a cycle", "a -> a"]),
        ([("a", ""), ("a", "")], ["layer 'a'.name", "another layer of the same phase"]),
    ],
)
def test_errors_name_layer_and_way_out(layers, words):
    with pytest.raises(ConfigError) as caught:
        build_graph(net_of(*layers), Phase.kTrain)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_layers_of_groups_belong_to_the_net():
    net = net_of(("a", ""))
    net.layer_group.add().layer.add(name="b", srclayers=["a"])
    assert list(build_graph(net, Phase.kTrain).layers) == ["a", "b"]


def test_all_faults_are_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        build_graph(net_of(("a", "x"), ("b", "y")), Phase.kTrain)
    assert len(caught.value.problems) == 2
