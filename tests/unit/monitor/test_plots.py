"""Confusion matrices and parity plots."""

import numpy as np
import pytest

from singa_dask.errors import DataError
from singa_dask.monitor.plots import DENSE, PANELS, WRITTEN_CLASSES, plot_confusion, plot_parity


@pytest.fixture
def drawn(tmp_path, figures):
    """The panels of a picture."""

    def draw(plot, *given, **options):
        plot(*given, tmp_path / "picture", **options)
        assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")
        return figures[-1].axes

    return draw


def texts(panel):
    return [text.get_text() for text in panel.texts]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_cells_of_a_confusion_matrix_have_counts_and_shares(drawn):
    panel, _ = drawn(
        plot_confusion, [[8, 2], [0, 3000]], names=["no", "a class with a name of many letters"], title="t"
    )
    assert texts(panel) == ["8", "2", "3,000"]
    np.testing.assert_allclose(panel.images[0].get_array(), [[0.8, 0.2], [0, 1]])
    assert panel.get_title() == "t\n99.93 % of 3,010 samples are correct"
    assert ticks(panel.xaxis) == ticks(panel.yaxis) == ["no", "a class with a name of …"]
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("predicted class", "actual class")


def test_weights_are_not_samples(drawn):
    panel, _ = drawn(plot_confusion, [[0.5, 0.25], [0, 0]])
    assert texts(panel) == ["0.50", "0.25"]
    assert panel.get_title().endswith("\n66.67 % are correct, by weight")
    np.testing.assert_allclose(panel.images[0].get_array()[1], 0)


def test_many_classes_have_colours_alone(drawn):
    panel, _ = drawn(plot_confusion, np.eye(WRITTEN_CLASSES + 1))
    assert texts(panel) == []
    panel, _ = drawn(plot_confusion, np.eye(90))
    assert ticks(panel.xaxis) == [str(i) for i in range(0, 90, 3)]


def test_a_panel_per_target_with_the_line_of_equal_values(drawn):
    target = np.array([[0.0, 10], [1, 20], [2, 30], [3, np.nan]])
    first, second = drawn(plot_parity, target + np.array([0.5, 0]), target, names=["a", "b"], title="t")
    assert [panel.get_title() for panel in (first, second)] == ["a", "b"]
    assert texts(first) == ["R² 0.8000\nMAE 0.5\n4 points"]
    assert texts(second) == ["R² 1.0000\nMAE 0\n3 points"]
    np.testing.assert_array_equal(first.collections[0].get_offsets(), np.stack([target[:, 0], target[:, 0] + 0.5], 1))
    (line,) = first.lines
    np.testing.assert_array_equal(line.get_xdata(), line.get_ydata())
    assert first.get_xlim() == first.get_ylim() == tuple(line.get_xdata())


def test_of_many_points_the_density_is_drawn(drawn):
    values = np.random.default_rng(0).standard_normal(DENSE)
    few, many = (drawn(plot_parity, values[:count], values[:count])[0] for count in (DENSE - 1, DENSE))
    assert few.collections[0].get_array() is None
    assert many.collections[0].get_array().sum() == DENSE


def test_targets_have_panels_of_their_own_up_to_a_number(drawn):
    assert len(drawn(plot_parity, np.zeros((2, PANELS + 3)), np.zeros((2, PANELS + 3)))) == PANELS
    assert texts(drawn(plot_parity, [np.nan], [1.0])[0]) == ["no finite values"]


@pytest.mark.parametrize(
    ("plot", "given", "names", "words"),
    [
        (plot_confusion, [np.zeros((2, 3))], None, r"must be square. Received: shape \(2, 3\)"),
        (plot_confusion, [np.eye(3)], ["a"], "names must have one entry per class, 3. Received: 1"),
        (plot_parity, [np.zeros(3), np.zeros(4)], None, r"must have one shape. Received: \(3,\), \(4,\)"),
        (plot_parity, [np.zeros((2, 2))] * 2, ["a"], "names must have one entry per target, 2. Received: 1"),
    ],
)
def test_what_does_not_fit_is_refused(plot, given, names, words, tmp_path):
    with pytest.raises(DataError, match=words):
        plot(*given, tmp_path / "x.png", names=names)
