"""Machines for other programs: `export` writes a file that any ONNX runtime runs."""

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from ..machines.convolutional import ConvMachine
from ..machines.recurrent import RecurrentMachine
from ..machines.structured import StructuredMachine


def export(
    machine: StructuredMachine, path: str | os.PathLike, *, time_steps: int | None = None, inputs: int | None = None
) -> None:
    """Write z = machine(x) as an ONNX file with the input `x` and the output `z`, for any batch and any space.

    x has the channels of the first block, or as many as `inputs` says. A recurrent machine is unrolled for a fixed
    number of `time_steps`. Needs the packages of `resolvent[onnx]`.
    """
    if not isinstance(machine, StructuredMachine):
        raise TypeError(f"machine must be a structured machine, got {type(machine).__name__}")
    x, dynamic = _example(machine, machine.partition.sizes[0] if inputs is None else inputs, time_steps)
    write(machine, path, {"x": (x, dynamic)}, ["z"])


def write(
    module: nn.Module,
    path: str | os.PathLike,
    inputs: dict[str, tuple[Tensor, dict[int, Any]]],
    outputs: list[str],
) -> None:
    """Write any module: each input's name with an example and its dynamic axes, and the names of the outputs."""
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"ONNX files need {package}, which the extra [onnx] installs")
    was_training = module.training
    try:
        torch.onnx.export(
            module.eval(),
            tuple(x for x, _ in inputs.values()),
            os.fspath(path),
            dynamo=True,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=tuple(dynamic for _, dynamic in inputs.values()),
            external_data=False,
            verbose=False,
        )
    finally:
        module.train(was_training)


def _example(machine: StructuredMachine, channels: int, time_steps: int | None) -> tuple[Tensor, dict[int, Any]]:
    """An input and its dynamic axes. Sizes of 0 and 1 would be taken for fixed."""
    batch, weight = {0: torch.export.Dim("batch")}, getattr(machine, machine.stored)
    if isinstance(machine, RecurrentMachine):
        if time_steps is None:
            raise ValueError("time_steps must be given for a recurrent machine: it is unrolled")
        return weight.new_zeros(2, time_steps, channels), batch
    if time_steps is not None:
        raise ValueError(f"time_steps={time_steps} is for recurrent machines only, got a {machine.kind} machine")
    if isinstance(machine, ConvMachine):
        axes = machine.operator.event_ndim - 1
        space = {2 + axis: torch.export.Dim(f"space{axis}") for axis in range(axes)}
        return weight.new_zeros(2, channels, *(7 + axis for axis in range(axes))), batch | space
    return weight.new_zeros(2, channels), batch
