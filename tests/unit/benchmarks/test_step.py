"""A row of the benchmark of steps, with programs whose times are given."""

import pytest
from support.programs import program

step = program("step", "benchmarks")
MS = {"step_ours": 10.0, "eager": 20.0, "fused": 15.0, "bfloat16": 5.0, "step_jax": 30.0}


@pytest.fixture
def given(step, monkeypatch):
    """Programs that have run three rounds already; `foreach` is absent."""

    class Given(step.Program):
        @classmethod
        def start(cls, program, arguments, threads):
            name = arguments[-1] if program == "step_torch" else program
            if name == "foreach":
                raise step.Absent("not here")
            return cls(name, None, [2.0, 1.0], seconds=[MS[name] / 1e3 * factor for factor in (1, 2, 3)], peak_mb=1.0)

    monkeypatch.setattr(step, "Program", Given)
    monkeypatch.setattr(step, "contest", lambda programs, rounds: None)


def test_sixteen_bits_are_compared_and_are_not_the_fastest_variant_of_float32(step, given):
    peers = ("eager", "fused", "foreach", "bfloat16", "jax")
    row = step.measure(step.WORKLOADS["mlp-64"], 1, 3, peers)
    assert (row["best"], row["best_ms"], row["ratio_best"]) == ("fused", 30.0, 1.5)
    assert (row["ratio_eager"], row["ratio_bfloat16"], row["ratio_jax"]) == (2.0, 0.5, 3.0)
    assert (row["quartiles"], row["absent"]) == ([1.5, 1.5], {"foreach": "not here"})
    without = step.measure(step.WORKLOADS["mlp-64"], 1, 3, ("eager",))
    assert (without["best"], without["ratio_best"]) == ("eager", 2.0)
    assert "ratio_bfloat16" not in without and "ratio_jax" not in without


@pytest.mark.parametrize("net", ["mlp-256", "mnist-cnn"])
def test_sixteen_bits_take_part_by_default(step, net):
    assert "bfloat16" in step.peers_of(step.WORKLOADS[net])
