"""docs/compatibility.md says what is here."""

import pytest

from . import compatibility


@pytest.mark.filterwarnings("ignore")
def test_the_page_is_current():
    """Its samples of op_db are checked by test_opdb.py."""
    page = compatibility.render(compatibility.listed_misses())
    assert compatibility.PAGE.read_text() == page, "run python -m tests.torchmlx.compatibility"


def test_what_is_partial_exists():
    for name in compatibility.DIFFERENCES:
        assert compatibility.is_here(name)
