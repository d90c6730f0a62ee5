import pytest

from eval.report import write_report
from tests.eval.stored import fill_folder


@pytest.fixture(scope="session")
def report_folder(tmp_path_factory):
    """One written page for all tests that only read it: drawing takes seconds."""
    folder = fill_folder(tmp_path_factory.mktemp("report"))
    write_report(folder)
    return folder
