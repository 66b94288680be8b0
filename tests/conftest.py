"""Which tests run where: `shared` tests need shared/, and `--no-skips` lets nothing hide in CI."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Reasons that a Linux machine without a GPU may give. Everything else that is missing there
# (an artefact, a compiler, the oracle) can be installed, so skipping for it would hide a hole.
ALLOWED_SKIP = "platform:"


def find_shared() -> Path | None:
    """The folder shared/: $TORCHMLX_SHARED, or inside the checkout, or beside it."""
    named = os.environ.get("TORCHMLX_SHARED")
    places = [Path(named)] if named else [ROOT / "shared", ROOT.parent / "shared"]
    return next((place for place in places if place.is_dir()), None)


def pytest_addoption(parser):
    parser.addoption(
        "--no-skips",
        action="store_true",
        help=f"a skipped test fails, unless its reason begins with '{ALLOWED_SKIP}'",
    )


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("huge"):
            item.add_marker(pytest.mark.timeout(3600))
    if find_shared() is None:
        for item in items:
            if item.get_closest_marker("shared"):
                item.add_marker(pytest.mark.skip(reason=f"{ALLOWED_SKIP} no folder shared/"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder shared/; mark the test `shared`."""
    folder = find_shared()
    assert folder is not None, "a test that uses this fixture is marked `shared`"
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    return _refuse_skip(report, item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _refuse_skip(report, collector.config)


def _refuse_skip(report, config):
    """Turn a skip into a failure under --no-skips; an xfail, to pytest also a skip, stays."""
    if not (config.getoption("--no-skips") and report.skipped) or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_SKIP):
        report.outcome = "failed"
        report.longrepr = f"skipped under --no-skips: {reason}"
    return report
