"""The curves are drawn from the rows of metrics.jsonl."""

from singa_dask.monitor.curves import draw_curves


def test_a_panel_per_metric(tmp_path):
    rows = [
        {"phase": p, "step": s, "metrics": {"loss": 1 / (s + 1), "accuracy": 0.5}}
        for p in ("train", "test")
        for s in range(5)
    ]
    draw_curves(rows, tmp_path / "curves.png", "digits, allreduce")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_no_rows_no_picture(tmp_path):
    draw_curves([], tmp_path / "curves.png", "nothing")
    assert not (tmp_path / "curves.png").exists()
