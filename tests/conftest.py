"""What every test shares: plain asserts in the shared suites, one thread, the same examples."""

import pytest
import torch
from hypothesis import settings

pytest.register_assert_rewrite("tests.contracts")

# The same examples on every machine, and no limit on the time of one: the cores are shared.
settings.register_profile("softvq", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("softvq")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Small tensors: a second thread costs more than it gives, and adds in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
