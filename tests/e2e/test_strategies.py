"""Every strategy, by the command that users type."""

import pytest
from support.commands import audited, cluster, example, metrics, sets, summary
from support.traces import check_trace

SHORT = sets(train_steps=30, disp_freq=10, test_freq=0, test_steps=0, checkpoint_freq=0)


@pytest.mark.parametrize(
    ("name", "steps"), [("sandblaster", 120), ("downpour", 120), ("hogwild", 240), ("hybrid", 240)]
)
def test_an_example_cluster_trains_the_digits(singa_dask, tmp_path, no_leaks, name, steps):
    settings = sets(train_steps=steps, test_freq=steps)
    ran = singa_dask("train", example(), "--cluster", cluster(name), *settings, "--trace", "20:23")
    told = summary(tmp_path / "runs" / f"digits-{name}")
    assert (told["status"], told["step"], told["strategy"]) == ("completed", steps, name)
    groups = told["topology"]["nworker_groups"]
    # The result of several groups depends on the order of messages.
    assert told["test"]["accuracy"] >= (0.9 if groups == 1 else 0.8)
    assert sorted(told["groups"]) == [str(g) for g in range(groups)]
    assert all(group["step"] == steps and group["server"]["update_ms"] > 0 for group in told["groups"].values())
    separate = told["topology"]["server_worker_separate"]
    assert all((group["server"]["bytes"] > 0) == separate for group in told["groups"].values())
    if groups > 1:
        assert {row["group"] for row in metrics(tmp_path / "runs" / f"digits-{name}")} == set(range(groups))
    found = audited(tmp_path / "runs" / f"digits-{name}")
    assert [group["contained"] for group in found] == [[[0, steps]]] * groups
    size, trace = told["topology"]["nworkers_per_group"], tmp_path / "runs" / f"digits-{name}" / "trace.pftrace"
    assert f"trace: {trace}, open it at ui.perfetto.dev\n" in ran.out
    seen = check_trace(
        trace, {f"worker group {g}, rank {r}" for g in range(groups) for r in range(size)}, range(20, 23)
    )
    on_servers = {span.process.split(" (")[0] for span in seen if span.name.startswith("update slice")}
    servers, of = told["topology"]["nserver_groups"], told["topology"]["nservers_per_group"]
    assert on_servers == {f"server group {group}, server {i}" for group in range(servers) for i in range(of)}
    assert any(span.thread == "loading" and span.name == "load 0 to 31" for span in seen)


@pytest.mark.parametrize(
    "numbers",
    [
        {"nworkers_per_group": 2, "nservers_per_group": 2, "nservers_per_procs": 2},
        {"nworkers_per_group": 2, "nservers_per_group": 3},
        {"nworker_groups": 2, "max_staleness": 1, "one_behind": "true"},
    ],
    ids=["two servers in a process", "more servers than workers", "two groups beside one server"],
)
def test_unusual_topologies(singa_dask, tmp_path, no_leaks, numbers):
    settings = sets(**{f"cluster__{name}": v for name, v in numbers.items()})
    singa_dask("train", example(), *settings, *SHORT, "--workspace", "run")
    told = summary(tmp_path / "run")
    assert told["status"] == "completed"
    assert all(group["step"] == 30 for group in told["groups"].values())
    assert told["train"]["loss"] < 2.25
