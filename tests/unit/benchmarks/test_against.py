"""What pairs of two commits' times say, and when there are enough of them."""

import pytest
from support.programs import program

pairs = program("pairs", "benchmarks/tools")


def rows(*means, spread, count=15):
    """The ratios of nets with these geometric means: half of the pairs below it, half above."""
    return {
        f"net {i}": [mean * (1 + spread) ** (1 - 2 * (n % 2)) for n in range(count)] for i, mean in enumerate(means)
    }


def test_the_interval_is_of_the_geometric_mean_of_all_rows(pairs):
    interval = pairs.Interval.of({"twice as fast": [2.0] * 9 + [2.2], "half as fast": [0.5] * 10})
    assert interval.mean == pytest.approx(1.1 ** (1 / 20)) and interval.low < 1 < interval.high < 1.02
    # mean and standard error of ten logarithms, and Student's t of nine degrees of freedom, 2.262
    assert interval.high / interval.mean == pytest.approx(1.1 ** (2.262 / 20), rel=1e-3)


@pytest.mark.parametrize(
    ("means", "spread", "said"),
    [
        ((1.0, 1.02), 0.02, "passed"),
        ((0.97, 0.96), 0.01, "passed"),
        ((0.94, 0.955), 0.01, "failed"),  # the lower end is below .95
        ((1.2, 1.1, 0.89), 0.01, "failed"),  # one row
        ((0.8, 0.8), 0.1, "failed"),  # the interval is wide, and all of it is below .95
        ((1.0, 1.0), 0.1, "undecided"),
        ((1.2, 1.2), 0.1, "undecided"),
    ],
)
def test_not_slower_is_what_the_lower_end_and_every_row_say(pairs, means, spread, said):
    assert pairs.verdict(rows(*means, spread=spread)) == said


@pytest.mark.parametrize(
    ("spread", "count", "left_s", "more"),
    [(0.1, 15, 100, True), (0.2, 45, 60, True), (0.02, 15, 100, False), (0.5, 60, 100, False), (0.1, 15, 59, False)],
)
def test_pairs_are_added_until_the_interval_is_narrow_or_there_are_enough_or_no_time_is_left(
    pairs, spread, count, left_s, more
):
    assert pairs.goes_on(rows(1.0, 1.0, spread=spread, count=count), left_s, took_s=60) == more
