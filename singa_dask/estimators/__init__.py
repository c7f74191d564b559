"""Training without a job file: scikit-learn's estimators, and a net that suits the data."""
