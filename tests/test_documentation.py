"""What the documents show, runs."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md"])
def test_the_code_of_a_page_runs(page):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": page})


@pytest.mark.parametrize("example", [["polynomial.py", "--steps", "2"], ["sine.py", "--steps", "2"]])
def test_an_example_runs_and_draws_its_picture(example, tmp_path):
    script, *options = example
    picture = tmp_path / "new" / "picture.png"
    command = [sys.executable, ROOT / "examples" / script, *options, "--out", picture]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_example_of_higher_derivatives_flattens_the_slope_and_learns_the_rate():
    command = [sys.executable, ROOT / "examples" / "gradients.py", "--steps", "60"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    steep, flat = (float(slope) for slope in re.findall(r"mean squared slope (\S+)", text))
    assert flat < steep
    before, after = re.findall(r"one step (\S+) -> (\S+)", text)[0]
    assert float(after) < float(before)


def test_the_benchmark_runs_and_writes_its_numbers(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "run.py", "--quick", "--only", "dense small", "--out", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    rows = list(csv.DictReader((tmp_path / "cpu-quick.csv").read_text().splitlines()))
    assert {"machine", "passes", "loop", "layer", "limit"} <= {row["program"] for row in rows}
    assert all(float(row["forward (µs)"]) > 0 and float(row["residual"]) < 1e-4 for row in rows)


@pytest.mark.parametrize("page", ["docs/theory.md", "tests/README.md", "README.md"])
def test_the_tests_that_a_page_names_exist(page):
    sources = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
    for line in (ROOT / page).read_text().splitlines():
        file = None
        for named, test in re.findall(r"`(?:(test_\w+\.py)::)?((?:test_|Test)\w+)…?`", line):
            file = named or file
            assert file, f"{test} has no file in {line!r}"
            assert re.search(rf"(def|class) {test}", sources[file]), f"{test} is not in {file}"
