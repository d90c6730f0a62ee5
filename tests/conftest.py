"""What every test shares: plain asserts in the shared suites, one thread, the same examples."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.contracts")

# The same examples on every machine, and no limit on the time of one: the cores are shared.
settings.register_profile("softvq", derandomize=True, deadline=None, max_examples=25)
# New ones with every seed, as many as asked for: `make fuzz`.
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=int(os.environ.get("SOFTVQ_EXAMPLES", "1000")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("SOFTVQ_PROFILE", "softvq"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Small tensors: a second thread costs more than it gives, and adds in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
