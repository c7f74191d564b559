"""examples/rnnlm by the commands that its users type, on a small text."""

import json

import numpy as np
import pytest
from support.commands import ROOT, cluster, example, metrics, sets, summary

from singa_dask.training import checkpoint as checkpoints

VOCABULARY, STARTS = 40, [0, 2, 5, 10, 20]
SHORT = sets(train_steps=40, disp_freq=20, validate_freq=20, validate_steps=3, checkpoint_freq=40)


@pytest.fixture
def shards(here, tmp_path):
    """Sentences of 8 words, each of which says what comes next, of 64 words."""
    draw = np.random.default_rng(0)
    sentences = [" ".join(f"w{8 * start + place}" for place in range(8)) for start in draw.integers(0, 8, 1500)]
    (tmp_path / "input.txt").write_text("\n".join(sentences))
    words = ["--unit", "word", "--vocab-size", VOCABULARY, "--validation", 0.1]
    here("shard", "text", "--source", "input.txt", "--out", "shards", *words)
    return tmp_path / "shards"


def small(shards):
    """The overrides that fit the job to the small text."""
    conf = json.dumps({"words": VOCABULARY, "starts": STARTS})
    fitting = {
        "neuralnet.layer[0].char_rnn_conf.path": shards / "train",
        "neuralnet.layer[1].char_rnn_conf.path": shards / "validation",
        "neuralnet.layer[embedding].embedding_conf.vocab_size": VOCABULARY,
        "neuralnet.layer[loss].user_conf": conf,
        "updater.learning_rate.fixedstep_conf.step": [0, 20, 25, 30, 35],
    }
    return [part for key, value in fitting.items() for part in ("--set", f"{key}={value}")]


def test_two_workers_train_the_layers_beside_the_job_file(singa_dask, shards, tmp_path, no_leaks):
    conf = example("rnnlm")
    topology = sets(cluster__nworkers_per_group=2, cluster__nservers_per_group=2)
    singa_dask("train", conf, "--cluster", cluster(), *small(shards), *SHORT, *topology, "--workspace", "run")
    told = summary(tmp_path / "run")
    assert (told["status"], told["step"]) == ("completed", 40)
    before = next(e for e in metrics(tmp_path / "run") if e.get("phase") == "validate" and e["step"] == 0)
    assert told["validate"]["loss"] < before["loss"] - 0.2
    saved = checkpoints.load(checkpoints.path_of(tmp_path / "run" / "checkpoint", 40))
    assert {name: value.shape for name, value in saved.parameters.items()} == {
        "embedding": (VOCABULARY, 15),
        "hidden": (15, 15),
        "class": (len(STARTS), 15),
        "word": (VOCABULARY, 15),
    }
    assert [array.shape for array in saved.carried["hidden"]] == [(20, 15)], "the state is carried on"


def test_one_command_prints_the_perplexities(program, tmp_path):
    draw = np.random.default_rng(0)
    words = [f"w{number}" for number in draw.permutation(3800)]
    (tmp_path / "input.txt").write_text(" ".join(words + [words[i] for i in draw.geometric(0.01, 20000) % 50]))
    steps = sets(train_steps=6, disp_freq=3, validate_freq=3, validate_steps=2, checkpoint_freq=0)
    steps += sets(updater__learning_rate__fixedstep_conf__step=[0, 1, 2, 3, 4])
    done = program(ROOT / "examples" / "rnnlm" / "run.py", "--text", "input.txt", "--full", *steps)
    shown = dict(line.rsplit(maxsplit=1) for line in done.out.splitlines()[-3:])
    assert list(shown) == ["unigram", "RNNLM, 100 classes", "RNNLM, full softmax"]
    assert all(1 < float(value) < 3720 * 2 for value in shown.values())
