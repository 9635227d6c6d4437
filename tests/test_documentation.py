"""What the documents show, runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_the_code_of_a_page_runs(page):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": page})


def run(example: str, *options: str) -> str:
    command = [sys.executable, ROOT / "examples" / example, *options]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # the tests run in two processes
    return subprocess.run(command, check=True, capture_output=True, text=True, env=one_thread).stdout


def test_the_example_of_higher_derivatives_flattens_the_slope_either_way_and_learns_the_rate():
    text = run("gradients.py", "--steps", "60", "--epochs", "5", "--seeds", "1")
    steep, by_jets, by_double_backward = (float(slope) for slope in re.findall(r"mean squared slope (\S+)", text))
    assert max(by_jets, by_double_backward) < steep / 2
    before, after = re.findall(r"one step (\S+) -> (\S+)", text)[0]
    assert float(after) < float(before)


@pytest.mark.parametrize("problem", ["burgers", "allen_cahn", "korteweg_de_vries", "plate", "poisson"])
def test_the_example_of_equations_takes_the_same_steps_by_jets_and_by_nested_derivatives(problem, tmp_path):
    text = run("pde.py", problem, "--steps", "1", "--points", "20", "--nested", "--out", str(tmp_path))
    errors = re.findall(r"relative L2 error (\S+) after 1 steps", text)
    assert len(errors) == 2
    assert errors[0] == errors[1]
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".csv"}


@pytest.mark.parametrize("page", ["docs/theory.md", "docs/pytorch.md", "tests/README.md"])
def test_the_tests_that_a_page_names_exist(page):
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for line in (ROOT / page).read_text().splitlines():
        file = None
        for named, test in re.findall(r"`(?:(test_\w+\.py)::)?((?:test_|Test)\w+)…?`", line):
            file = named or file
            assert file, f"{test} has no file in {line!r}"
            assert re.search(rf"(def|class) {test}", sources[file]), f"{test} is not in {file}"


def test_the_example_of_a_new_operator_tells_who_went_where():
    example = ROOT / "examples" / "graph.py"
    assert len(example.read_text().splitlines()) <= 60
    text = run("graph.py", "--steps", "60")
    assert int(re.findall(r"^(\d+) of 34 members told", text)[0]) >= 31


def test_each_room_says_what_lives_in_it():
    package = ROOT / "src" / "resolvent"
    rooms = [p for p in package.iterdir() if p.is_dir() and any(p.glob("*.py"))]
    assert all((room / "README.md").read_text().startswith(f"# {room.name}\n") for room in rooms)
    assert len([p for p in package.iterdir() if p.name != "__pycache__"]) <= 20


def test_importing_the_library_needs_torch_and_little_else():
    heavy = ("torch._dynamo", "lightning", "matplotlib", "networkx", "onnx", "pandas", "sklearn", "typer")
    code = f"import sys, resolvent; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
