"""Settings that every test shares."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    deadline=None,  # a busy machine is no failure
    derandomize=False,
    print_blob=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
