import pytest
import torch

pytest.register_assert_rewrite("tests.contracts.quantizer")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Two test runs share two cores; and one thread adds in the same order every time."""
    torch.set_num_threads(1)
