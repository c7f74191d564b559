"""The curves are drawn from the rows of metrics.jsonl."""

import pytest

from singa_dask.monitor.curves import COLOURS, draw_comparison, draw_curves


def _rows(groups=1, server=False, metrics=("loss", "accuracy"), steps=range(5)):
    for step in steps:
        for group in range(groups):
            row = {"phase": "train", "group": group, "step": step}
            row |= dict.fromkeys(metrics, (group + 1) / (step + 1))
            if server:
                row |= {
                    "server_staleness": group + 0.5,
                    "server_update_ms": 2.0,
                    "samples_per_s": 1.0,
                    "wait_rank0": 0.1,
                }
            yield row
        yield {"phase": "test", "group": step % groups, "step": step, **dict.fromkeys(metrics, 0.5)}


@pytest.fixture
def drawn(tmp_path, figures):
    """The panels of a picture, by their titles."""

    def draw(rows):
        draw_curves(rows, tmp_path / "curves.png", "digits, downpour")
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
        return {panel.get_title(): panel for panel in figures[0].axes}

    return draw


def _curves(panel):
    return {
        line.get_label(): (list(map(float, line.get_xdata())), list(map(float, line.get_ydata())))
        for line in panel.lines
    }


def test_a_panel_per_metric_and_a_line_per_phase(drawn):
    panels = drawn(_rows())
    assert list(panels) == ["loss", "accuracy"]
    assert _curves(panels["accuracy"]) == {
        "train": ([0, 1, 2, 3, 4], [1 / (step + 1) for step in range(5)]),
        "test": ([0, 1, 2, 3, 4], [0.5] * 5),
    }
    assert [line.get_color() for line in panels["loss"].lines] == [COLOURS["train"], COLOURS["test"]]
    assert panels["loss"].get_yscale() == "log" and panels["accuracy"].get_yscale() == "linear"


def test_a_line_per_group_and_one_of_tests_whichever_group_made_them(drawn):
    panel = drawn(_rows(groups=3))["loss"]
    curves = _curves(panel)
    assert list(curves) == ["train, group 0", "train, group 1", "train, group 2", "test"]
    assert curves["train, group 2"][1] == [3 / (step + 1) for step in range(5)]
    assert curves["test"][0] == [0, 1, 2, 3, 4]
    shades = [sum(line.get_color()) for line in panel.lines[:3]]
    assert shades == sorted(shades) and len(set(shades)) == 3


def test_at_most_8_groups_are_labelled(drawn):
    panel = drawn(_rows(groups=20))["loss"]
    told = [text.get_text() for text in panel.get_legend().get_texts()]
    assert len(panel.lines) == 21
    assert len(told) == 9 and {"train, group 0", "train, group 19", "test"} <= set(told)


def test_figures_of_servers_get_a_panel(drawn):
    panels = drawn(_rows(groups=2, server=True))
    assert list(panels) == ["loss", "accuracy", "staleness"]
    assert [list(line.get_ydata()) for line in panels["staleness"].lines] == [[0.5] * 5, [1.5] * 5]


def test_many_panels_go_below_each_other(drawn):
    panels = drawn(_rows(metrics=("a", "b", "c", "d")))
    heights = {name: panel.get_position().y0 for name, panel in panels.items()}
    assert list(panels) == ["a", "b", "c", "d"]
    assert heights["a"] == pytest.approx(heights["c"], abs=0.01) and heights["d"] < heights["a"] - 0.2


def test_a_step_that_a_restarted_group_made_twice_counts_once(drawn):
    rows = [*_rows(), {"phase": "train", "group": 0, "step": 3, "loss": 7.0}]
    assert _curves(drawn(rows)["loss"])["train"] == ([0, 1, 2, 3, 4], [1, 1 / 2, 1 / 3, 7.0, 1 / 5])


def test_no_rows_no_picture(tmp_path):
    draw_curves([], tmp_path / "curves.png", "nothing")
    assert not (tmp_path / "curves.png").exists()


def test_runs_are_compared_by_colour_and_evaluations_have_markers(tmp_path, figures):
    runs = {"a": list(_rows(groups=2, server=True)), "b": list(_rows(metrics=("loss",)))}
    assert draw_comparison(runs, tmp_path / "both.png")
    loss, accuracy, staleness = figures[0].axes
    assert list(_curves(loss)) == ["a, test", "a, train", "b, test", "b, train"]
    assert list(_curves(accuracy)) == ["a, test", "a, train"] and list(_curves(staleness)) == ["a, train"]
    assert [(line.get_color(), line.get_marker()) for line in loss.lines] == [
        ("C0", "o"), ("C0", "None"), ("C1", "o"), ("C1", "None"),
    ]  # fmt: skip
    assert _curves(loss)["a, train"][1] == [1 / (step + 1) for step in range(5)] and loss.get_yscale() == "log"
    assert not draw_comparison({"a": [], "b": []}, tmp_path / "none.png")
