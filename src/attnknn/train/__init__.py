"""What is learned: for now the few numbers of the untrained weightings."""

from attnknn.train.tune import Tuning, choose_judges, leave_one_out, loo_prior, tune

__all__ = ["Tuning", "choose_judges", "leave_one_out", "loo_prior", "tune"]
