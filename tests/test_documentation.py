"""What the documents show, runs."""

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


def test_the_example_of_higher_derivatives_flattens_the_slope_and_learns_the_rate():
    command = [sys.executable, ROOT / "examples" / "gradients.py", "--steps", "60"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    steep, flat = (float(slope) for slope in re.findall(r"mean squared slope (\S+)", text))
    assert flat < steep
    before, after = re.findall(r"one step (\S+) -> (\S+)", text)[0]
    assert float(after) < float(before)


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
    command = [sys.executable, example, "--steps", "60"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
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
