from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.errors import ConfigError
from singa_dask.planning.profile import LayerSample, Profile
from singa_dask.planning.rates import PARALLEL_SHARE, Rate, Rates
from singa_dask.planning.work import Work


def product(rows, inputs=64, outputs=32, **more):
    return Work("InnerProduct", rows, inputs, outputs, params=inputs * outputs, **more)


def plain(rows, size=100, kind="ReLU"):
    return Work(kind, rows, size, size)


def profile(*samples, cores=2):
    return Profile(cores=cores, layers=[LayerSample(*sample) for sample in samples])


def test_a_measured_work_is_as_it_was_measured():
    rates = Rates(profile((product(8), 1.0, 2.0), (product(16), 9.0, 9.0)))
    assert rates.layer(product(8)) == Rate(1.0, 2.0, known=True)


def test_between_measured_rows_it_is_a_straight_line():
    rates = Rates(profile((product(8), 1.0, 2.0), (product(16), 2.0, 6.0), (product(64), 3.0, 7.0)))
    assert rates.layer(product(12)) == Rate(1.5, 4.0, known=True)


def test_beyond_measured_rows_it_is_the_last_line_and_not_known():
    rates = Rates(profile((plain(8), 1.0, 2.0), (plain(16), 2.0, 6.0)))
    assert rates.layer(plain(32)) == Rate(4.0, 14.0, known=False)
    assert rates.layer(plain(4)) == Rate(0.5, 1.0, known=False)  # no less than in proportion


def test_a_single_row_count_is_in_proportion():
    assert Rates(profile((plain(8), 1.0, 2.0))).layer(plain(4)) == Rate(0.5, 1.0, known=False)


def test_products_of_few_rows_go_on_as_those_of_another_shape():
    other = [(product(rows, 128, 128), seconds, seconds) for rows, seconds in ((8, 4.0), (16, 4.0), (256, 40.0))]
    rates = Rates(profile(*other, (product(8), 1.0, 2.0), (product(16), 1.0, 2.0)))
    assert rates.layer(product(256)) == Rate(10.0, 20.0, known=False)


def test_another_shape_is_scaled_by_operations_or_elements():
    rates = Rates(profile((product(8), 1.0, 2.0), (plain(8), 3.0, 6.0)))
    assert rates.layer(product(8, 128, 32)).forward == pytest.approx(2.0)
    assert rates.layer(plain(8, 200)).backward == pytest.approx(12.0)
    assert not rates.layer(plain(8, 200)).known


def test_a_layer_that_passes_no_gradient_on_has_half_the_products():
    rates = Rates(profile((product(8), 1.0, 2.0)))
    assert rates.layer(product(8, gradient=False)) == Rate(1.0, 1.0, known=False)


def test_nearer_shapes_weigh_more():
    samples = (product(8, 64, 64), 1.0, 1.0), (product(8, 1024, 1024), 1.0, 1.0)
    near = Rates(profile(*samples)).layer(product(8, 80, 64)).forward
    assert near == pytest.approx(80 / 64, rel=0.1)


def test_other_settings_of_a_class_come_before_other_classes():
    samples = (plain(8, kind="Pooling kernel=3"), 5.0, 5.0), (plain(8), 1.0, 1.0)
    assert Rates(profile(*samples)).layer(plain(8, kind="Pooling kernel=2")).forward == 5.0


def test_an_unknown_kind_takes_what_elements_take_in_layers_without_parameters():
    rates = Rates(profile((plain(8), 1.0, 2.0), (plain(8, kind="LRN"), 3.0, 6.0), (product(8), 9.0, 9.0)))
    assert rates.layer(plain(16, kind="Mine")) == Rate(4.0, 8.0, known=False)


def test_crowds_lie_on_a_line_up_to_the_cores_and_take_turns_above():
    rates = Rates(profile((plain(8), 1.0, 2.0, 1), (plain(8), 3.0, 6.0, 3), cores=4))
    assert rates.layer(plain(8), crowd=2) == Rate(2.0, 4.0, known=True)
    assert rates.layer(plain(8), crowd=4) == Rate(3.0, 6.0, known=False)
    assert rates.layer(plain(8), crowd=8).forward == 6.0


def test_a_crowd_takes_the_same_share_of_a_machine_with_more_cores():
    rates = Rates(profile((plain(8), 1.0, 1.0, 1), (plain(8), 3.0, 3.0, 2)), cores=11)
    assert rates.layer(plain(8), crowd=6) == Rate(2.0, 2.0, known=False)
    assert rates.layer(plain(8), crowd=22).forward == 6.0


def test_what_only_another_crowd_has_measured_is_scaled_by_the_ratio_of_its_kind():
    samples = (plain(8), 1.0, 1.0, 1), (plain(8), 1.5, 1.5, 2), (plain(8, 300), 4.0, 4.0, 1)
    assert Rates(profile(*samples)).layer(plain(8, 300), crowd=2) == Rate(6.0, 6.0, known=False)


def test_threads_that_were_not_measured_follow_amdahls_law():
    samples = (plain(8), 1.0, 3.0, 1, 1), (plain(8), 0.6, 1.8, 1, 2)  # a fifth is serial
    rate = Rates(profile(*samples)).layer(plain(8), threads=4)
    assert (rate.forward, rate.backward) == pytest.approx((0.4, 1.2))
    assert not rate.known
    assert Rates(profile(*samples)).layer(plain(8), threads=2) == Rate(0.6, 1.8, known=True)


def test_without_a_sample_of_several_threads_a_usual_share_is_parallel():
    rate = Rates(profile((plain(8), 1.0, 3.0))).layer(plain(8), threads=4)
    assert rate.forward == pytest.approx(1 - PARALLEL_SHARE + PARALLEL_SHARE / 4)
    assert not rate.known


def test_a_profile_without_layers_is_refused():
    with pytest.raises(ConfigError, match="no samples of layers"):
        Rates(Profile())


ROWS = st.integers(1, 4096)
SIZES = st.sampled_from((16, 64, 100, 512))


@st.composite
def profiles(draw):
    """Of a few products and elementwise layers, each at some rows; more rows take longer."""
    samples = []
    for size in draw(st.sets(SIZES, min_size=1)):
        make = draw(st.sampled_from((product, plain)))
        seconds = 0.0
        for rows in sorted(draw(st.sets(ROWS, min_size=1, max_size=4))):
            seconds += draw(st.floats(0, 10))
            samples.append((make(rows, size), seconds, 2 * seconds))
    return profile(*samples)


@given(profiles(), SIZES, st.sampled_from((product, plain)), ROWS, ROWS, st.integers(1, 5))
def test_more_rows_never_take_less(profile, size, make, a, b, crowd):
    rates = Rates(profile)
    few, many = (rates.layer(make(rows, size), crowd) for rows in sorted((a, b)))
    assert many.forward >= few.forward * (1 - 1e-9)
    assert many.backward >= few.backward * (1 - 1e-9)


def test_many_samples_are_searched_within_the_budget_of_a_test():
    samples = [(product(rows, i, o), 1.0, 1.0) for rows in (8, 64) for i in range(8, 258, 8) for o in range(8, 258, 8)]
    rates = Rates(profile(*samples))
    assert all(rates.layer(replace(product(32, 100 + i, 77), steps=2)).forward > 0 for i in range(100))
