"""Versions that are written in two places agree, and the test policy does what it says."""

import re
import tomllib

import pytest

from .checkout import ROOT

pytest_plugins = ["pytester"]

CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD = CONFIGURATION["project"], CONFIGURATION["build-system"]["requires"]
EXTRAS = PROJECT["optional-dependencies"]


def test_pre_commit_runs_the_ruff_of_the_dev_extra():
    pinned = re.search(r"rev: v(\S+)", (ROOT / ".pre-commit-config.yaml").read_text())[1]
    assert f"ruff=={pinned}" in EXTRAS["dev"]


def test_every_mlx_is_the_same():
    named = [*BUILD, *PROJECT["dependencies"], *EXTRAS["cpu"], *EXTRAS["cuda13"]]
    mlx = [name.partition(";")[0] for name in named if name.startswith("mlx")]
    assert {name.partition("==")[2] for name in mlx} == {"0.32.4"}


def test_isolated_builds_and_make_native_use_one_nanobind():
    named = [name.partition(";")[0] for name in [*BUILD, *EXTRAS["dev"]]]
    assert {name for name in named if name.startswith("nanobind")} == {"nanobind==3.1.0"}


def test_oracle_and_benchmarks_use_one_torch_and_one_transformers():
    for name in ("torch==", "transformers=="):
        assert {n for n in EXTRAS["dev"] + EXTRAS["bench"] if n.startswith(name)} == {
            *(n for n in EXTRAS["dev"] if n.startswith(name))
        }


@pytest.fixture
def policy(pytester):
    """pytester with this project's skip policy."""
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text())
    return pytester


def test_no_skips_turns_a_skip_into_a_failure(policy):
    policy.makepyfile(
        """
        import pytest
        def test_hidden(): pytest.skip("no clang")
        def test_allowed(): pytest.skip("platform: needs a Mac")
        @pytest.mark.xfail
        def test_known(): assert False
        """
    )
    policy.runpytest_inprocess().assert_outcomes(skipped=2, xfailed=1)
    outcome = policy.runpytest_inprocess("--no-skips")
    outcome.assert_outcomes(failed=1, skipped=1, xfailed=1)
    outcome.stdout.fnmatch_lines(["*skipped under --no-skips: no clang*"])


def test_no_skips_turns_a_skipped_module_into_an_error(policy):
    policy.makepyfile("import pytest; pytest.importorskip('no_such_module')")
    policy.runpytest_inprocess().assert_outcomes(skipped=1)
    policy.runpytest_inprocess("--no-skips").assert_outcomes(errors=1)
