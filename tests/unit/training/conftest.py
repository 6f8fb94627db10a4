import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The nets of these tests are tiny: a second thread would only wait for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
