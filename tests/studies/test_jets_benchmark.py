"""The benchmark of jets: its programs compute the same derivatives and gradients, and a wrong one reports no time."""

import pytest
import torch

import resolvent as rv
from resolvent.studies.benchmark import jet_cases, jets, read, run_jets
from resolvent.studies.benchmark.jet_cases import JetCase

pytestmark = pytest.mark.unchecked

TINY = [
    JetCase(jet_cases.LAPLACIAN, "3-D", *jet_cases.dense(3, 5, 4), 6),
    JetCase(jet_cases.BURGERS, "dense", *jet_cases.dense(2, 5, 4), 6),
    JetCase(jet_cases.KORTEWEG_DE_VRIES, "dense", *jet_cases.dense(2, 5, 4), 6),
    JetCase(jet_cases.BIHARMONIC, "2-D", *jet_cases.dense(2, 5, 4), 6),
    JetCase(jet_cases.ALONG, "recurrent", *jet_cases.recurrent(2, 4, 3, steps=3), 5),
    JetCase(jet_cases.ALONG, "convolution", *jet_cases.conv(2, 4, 3, positions=7), 5),
]


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_all_programs_have_the_machine_s_derivatives_and_gradients(case):
    steps = jets.programs(case, torch.float64)
    limit = steps.pop("limit")
    assert {"machine", "nested, machine", "nested, plain"} <= set(steps)
    for step in steps.values():
        jets.check(step, steps["machine"](), torch.float64)
    value, _ = limit()
    assert len(value) % case.batch == 0
    assert len(value) > len(steps["machine"]()[0])


def test_the_laplacian_s_limit_has_two_more_points_than_dimensions():
    value, _ = jets.programs(TINY[0], torch.float64)["limit"]()
    assert len(value) == (3 + 2) * TINY[0].batch


def test_a_wrong_derivative_or_gradient_is_found():
    value, gradients = jets.programs(TINY[0], torch.float64)["machine"]()
    with pytest.raises(ValueError, match=r"differs from the machine's derivatives by \d"):
        jets.check(lambda: (value * 1.001, gradients), (value, gradients), torch.float64)
    with pytest.raises(ValueError, match="the weights' gradients differ in norm"):
        jets.check(lambda: (value, [1.001 * g for g in gradients]), (value, gradients), torch.float64)


def test_a_program_that_is_wrong_reports_no_time_and_the_others_do(monkeypatch):
    case, laplacian = TINY[0], rv.laplacian
    monkeypatch.setattr(jets.jet_programs, "by_hessian", lambda *args: 2 * laplacian(*args[1:3]))
    errors = {row["program"]: row.get("error", "") for row in jets.measure(case, torch.float64, 0.0)}
    assert errors["torch.func.hessian"].startswith("WrongAnswer")
    assert errors["nested, plain"] == errors["machine"] == errors["limit"] == ""


def test_a_run_writes_what_it_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(jets, "CASES", TINY[:2])
    rows = read(run_jets(tmp_path, quick=True, only="Laplacian"))
    assert {(row["case"], row["dtype"]) for row in rows} == {(TINY[0].name, "float64"), (TINY[0].name, "float32")}
    assert all(0 < float(row["q1"]) <= float(row["time (µs)"]) <= float(row["q3"]) for row in rows)
    assert [row["% of limit"] for row in rows if row["program"] == "limit"] == ["100.0"] * 2
    assert [row["times nested"] for row in rows if row["program"] == "nested, plain"] == ["1.0"] * 2
    assert TINY[0].name in capsys.readouterr().out
    with pytest.raises(ValueError, match="no case with jets has 'nothing' in its name: Laplacian, 3-D, batch 6"):
        run_jets(tmp_path, only="nothing")
