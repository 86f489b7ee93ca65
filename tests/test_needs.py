"""Tests that need programs of the system are skipped without them, or fail where all tests must run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.needs import PROGRAMS, skip_or_fail_without


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_test_is_skipped_without_its_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWRL_TESTS_NEED", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"'{name}' is not installed"):
        skip_or_fail_without(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_test_fails_without_its_program_where_all_must_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRL_TESTS_NEED", " ".join(PROGRAMS))
    with pytest.raises(pytest.fail.Exception, match="but FLOWRL_TESTS_NEED names it"):
        skip_or_fail_without(name)


def test_the_ci_installs_every_program_that_tests_need() -> None:
    script = (Path(__file__).parents[1] / ".ci" / "run").read_text()
    assert f'FLOWRL_TESTS_NEED="{" ".join(PROGRAMS)}"' in script
