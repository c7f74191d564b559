"""scikit-learn's own checks of estimators."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from singa_dask import Classifier, Regressor

# Training is in float32: fits that are equal but for the order of the sums differ by 2e-7, and the check allows 1e-7.
# On some processors so do predictions of the same samples in another order. scikit-learn expects the same of its
# ensembles; test_estimators.py compares with a tolerance for float32.
EXPECTED = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", "check_methods_sample_order_invariance"), "equal in float32 only"
)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [Classifier(epochs=15, learning_rate=0.02), Regressor(epochs=15, learning_rate=0.02)],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_scikit_learn_takes_it_as_an_estimator(estimator, check):
    check(estimator)
