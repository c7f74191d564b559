"""Plans, and runs that take their advice, as users type them."""

import json
import re

from support.commands import example, sets
from support.planned import curves_of

from singa_dask.profiling.facts import facts_here
from singa_dask.profiling.store import key_of, save


def test_a_run_takes_the_advice_of_a_plan(singa_dask, here, environment, tmp_path, monkeypatch):
    monkeypatch.setenv("SINGA_DASK_CACHE", environment["SINGA_DASK_CACHE"])
    machine = facts_here()
    machine.curves = curves_of("kSGD")
    several = {name.removesuffix(" 2"): curve for name, curve in machine.curves.items() if name.endswith(" 2")}
    machine.curves |= {f"{name} {max(2, machine.cores)}": curve for name, curve in several.items()}
    kept = save(key_of(machine), machine)

    ran = singa_dask("train", example(), "--cluster", "auto", *sets(train_steps=60))
    chosen = ran.out.splitlines()[0]
    assert "measuring the layers of digits, for a few seconds" in ran.err.splitlines()
    assert re.fullmatch(r"auto: AllReduce, \d+ workers?\b.*: [\d,]+ samples/s expected.*, [\d.,]+ ms a step", chosen)
    assert re.search(r" samples/s, \d+ % (above|below) the prediction; .*/runs/digits-auto$", ran.last_line)

    shown = "--workers", "1,2", "--json", "-", "--out", "pictures"
    told = json.loads(here("plan", example(), "--profile", kept, *shown).out)
    assert {each["workers"] for each in told["predictions"]} == {1, 2}
    assert told["predictions"][told["recommended"]]["strategy"] == "allreduce"
    assert (tmp_path / "pictures/plan.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "pictures/plan.svg").read_text()
