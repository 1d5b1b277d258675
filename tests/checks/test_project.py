"""What a project sets: rules, severity, accepted findings; and a bisection of checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from resstream.checks.baseline import accept, read_baseline, write_baseline
from resstream.checks.bisection import bisect
from resstream.checks.checking import check
from resstream.checks.report import CheckReport
from resstream.checks.settings import Settings, read_settings
from resstream.errors import ConfigError
from resstream.stream.faults import inject
from resstream.stream.loading import load

IDS = torch.randint(0, 256, (6, 96), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def damaged(tiny_llama: Any) -> CheckReport:
    model = load(tiny_llama())
    inject(model, "zero", layer=2, write="attn")
    return check(model, IDS)


def test_accepted_findings_are_set_aside(damaged: CheckReport, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    assert write_baseline(file, damaged) == 1
    report = accept(damaged, read_baseline(file))
    assert (report.verdict, report.findings) == ("healthy", ())
    assert report.accepted == damaged.findings
    assert report.confirmed() == ()
    assert CheckReport.from_json(report.to_json()).accepted[0].code == "RS101"


def test_a_baseline_accepts_nothing_else(damaged: CheckReport, tmp_path: Path) -> None:
    write_baseline(tmp_path / "b.json", damaged)
    elsewhere = replace(damaged, findings=(replace(damaged.findings[0], layer=4),))
    assert accept(elsewhere, read_baseline(tmp_path / "b.json")).verdict == "findings"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "resstream.baseline/9"}'])
def test_other_files_are_no_baseline(text: str, tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="is no baseline"):
        read_baseline(file)
    with pytest.raises(ConfigError, match="cannot read the baseline"):
        read_baseline(tmp_path / "nowhere.json")


def test_settings_of_the_nearest_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.resstream.check]\nselect = ["RS1", "RS201"]\nfail-on = "error"\n'
        'baseline = "accepted.json"\n'
    )
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert read_settings(inner) == Settings(
        select=("RS1", "RS201"), fail_on="error", baseline=tmp_path / "accepted.json"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[tool.resstream.check]\nselct = ["RS1"]', "has no setting 'selct'; there are select"),
        ('[tool.resstream.check]\nselect = "RS1"', "select must be a list"),
        ('[tool.resstream.check]\nignore = ["RS9"]', "unknown rule 'RS9'"),
        ('[tool.resstream.check]\nfail-on = "never"', "fail-on must be one of error"),
        ("[tool", "cannot read"),
    ],
)
def test_wrong_settings_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_settings(tmp_path)


def test_a_project_without_settings(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert read_settings(tmp_path) == Settings()


@pytest.mark.parametrize("first_bad", [0, 1, 5, 15])
def test_bisection_finds_the_flip_in_few_checks(damaged: CheckReport, first_bad: int) -> None:
    names = [str(step) for step in range(16)]
    healthy = replace(damaged, findings=(), verdict="healthy")
    found = bisect(names, lambda name: damaged if int(name) >= first_bad else healthy)
    assert found.first_bad == str(first_bad)
    assert found.last_good == (str(first_bad - 1) if first_bad else None)
    assert len(found.checked) <= 5
    assert found.report is damaged


def test_bisection_of_healthy_checkpoints(damaged: CheckReport) -> None:
    healthy = replace(damaged, findings=(), verdict="healthy")
    found = bisect(["a", "b", "c"], lambda name: healthy)
    assert (found.first_bad, found.last_good) == (None, "c")
    assert list(found.checked) == ["c"]
    with pytest.raises(ConfigError, match="at least two checkpoints, got 1"):
        bisect(["a"], lambda name: healthy)
