"""A machine behaves like the best-behaved layer of PyTorch."""

import copy
import io

import pytest
import torch
from cases import ALL_MACHINES, randomize
from tolerance import assert_equal, assert_near
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import resolvent as rv
from resolvent.structure import convolution as _convolution

KINDS = ("dense", "conv", "recurrent")
each_kind = pytest.mark.parametrize("name", KINDS)


def build(name):
    case = ALL_MACHINES[name]()
    return randomize(case.machine), case.points(1)[0]


@each_kind
def test_a_machine_moves_between_precisions_and_back(name):
    machine, x = build(name)
    half = copy.deepcopy(machine).half()
    assert half(x.half()).dtype == torch.float16
    assert_near(half(x.half()).bfloat16(), machine(x))
    assert copy.deepcopy(machine).to("cpu", torch.float32)(x.float()).dtype == torch.float32


@each_kind
def test_a_parametrized_weight_is_the_one_solved_with(name):
    """The weight may be any function of other parameters."""
    machine, x = build(name)
    weight = machine.weight.detach().clone()

    class Double(nn.Module):
        def forward(self, W):
            return 2 * W

    nn.utils.parametrize.register_parametrization(machine, "weight", Double())
    expected = functional_call(build(name)[0], {"weight": 2 * weight}, (x,))
    assert torch.equal(machine(x), expected)
    machine(x).sum().backward()
    assert machine.parametrizations.weight.original.grad is not None
    nn.utils.parametrize.remove_parametrizations(machine, "weight")
    assert torch.equal(machine(x), expected)


@each_kind
def test_weight_norm_leaves_the_function_and_trains_its_own_parameters(name):
    machine, x = build(name)
    with torch.no_grad():
        machine.weight.add_(0.1)  # a row of zeros has no direction
    z = machine(x)
    nn.utils.parametrizations.weight_norm(machine)
    assert_equal(machine(x), z)
    machine(x).sum().backward()
    assert all(parameter.grad is not None for parameter in machine.parameters())


@each_kind
def test_a_pruned_machine_is_the_machine_of_the_pruned_weight(name):
    machine, x = build(name)
    prune.l1_unstructured(machine, "weight", amount=0.5)
    pruned = functional_call(build(name)[0], {"weight": machine.weight.detach()}, (x,))
    assert (machine.weight == 0).sum() >= machine.weight.numel() // 2
    assert torch.equal(machine(x), pruned)
    machine(x).sum().backward()
    assert machine.weight_orig.grad is not None
    prune.remove(machine, "weight")
    assert torch.equal(machine(x), pruned)


@each_kind
def test_hooks_see_every_gradient_and_clipping_bounds_it(name):
    machine, x = build(name)
    seen = []
    machine.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    machine.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].shape))
    machine.weight.register_hook(lambda gradient: seen.append(gradient.shape))
    machine(x.requires_grad_()).square().sum().backward()
    assert sorted(seen) == sorted([x.shape, x.shape, machine.weight.shape])
    nn.utils.clip_grad_norm_(machine.parameters(), 0.5)
    total = torch.stack([p.grad.square().sum() for p in machine.parameters()]).sum().sqrt()
    assert total <= 0.5 + 1e-6


@each_kind
def test_checkpointed_gradients_are_the_gradients(name):
    machine, x = build(name)
    plain = torch.autograd.grad(machine(x).square().sum(), machine.weight)
    again = torch.autograd.grad(checkpoint(machine, x, use_reentrant=False).square().sum(), machine.weight)
    assert torch.equal(plain[0], again[0])


@each_kind
def test_deterministic_algorithms_give_the_same_bits_twice(name):
    machine, x = build(name)
    torch.use_deterministic_algorithms(True)
    try:
        results = [torch.autograd.grad(machine(x).square().sum(), machine.weight)[0] for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(result, results[0]) for result in results)


@each_kind
def test_scaled_losses_give_unscaled_steps(name):
    """Scaled by a power of two and back: in float32 the step is that without a scaler."""
    machine, x = build(name)
    machine, x = machine.float(), x.float()
    twin = copy.deepcopy(machine)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for model in (machine, twin):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss = model(x).square().mean()
        (scaler.scale(loss) if model is machine else loss).backward()
        if model is machine:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    assert_equal(machine.weight.detach(), twin.weight.detach())


@each_kind
def test_torchinfo_shows_it(name):
    torchinfo = pytest.importorskip("torchinfo")
    machine, x = build(name)
    text = str(torchinfo.summary(nn.Sequential(machine), input_data=x, verbose=0, dtypes=[torch.float64]))
    assert type(machine).__name__ in text
    assert f"{sum(p.numel() for p in machine.parameters()):,}" in text


@each_kind
def test_flop_counter_counts_the_arithmetic_of_what_is_read(name):
    machine, x = build(name)
    read = int(machine.operator.mask(machine.connections.expand(machine.partition)).sum())
    with FlopCounterMode(display=False) as counter:
        machine(x)
    points = x.numel() // machine.partition.total
    if name == "recurrent":  # at lag τ, τ steps less
        mask = machine.connections.expand(machine.partition)
        expected = sum(int(mask[lag].sum()) * x.shape[0] * (x.shape[1] - lag) for lag in range(len(mask)))
    else:
        expected = read * points
    assert counter.get_total_flops() == 2 * expected


@each_kind
def test_states_are_saved_by_torch_without_pickled_code(name):
    machine, x = build(name)
    buffer = io.BytesIO()
    torch.save(machine.state_dict(), buffer)
    buffer.seek(0)
    twin = ALL_MACHINES[name]().machine
    twin.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(twin(x), machine(x))


@each_kind
def test_gradient_penalty(name):
    """The loss sees the gradient by the input: the backward pass is differentiated."""
    machine, x = build(name)
    optimizer = torch.optim.SGD(machine.parameters(), 1e-3)

    def penalty():
        (gradient,) = torch.autograd.grad(machine(x.requires_grad_()).square().sum(), x, create_graph=True)
        return gradient.square().mean()

    before = penalty()
    before.backward()
    optimizer.step()
    assert penalty() < before


@each_kind
def test_hypergradient(name):
    """The derivative of a trained step's loss by the learning rate, against a difference quotient."""
    machine, x = build(name)
    parameters = {n: p.detach() for n, p in machine.named_parameters()}

    def loss(parameters):
        return functional_call(machine, parameters, (x,)).square().mean()

    def after_a_step(rate):
        gradients = grad(loss)(parameters)
        return loss({n: p - rate * gradients[n] for n, p in parameters.items()})

    rate, h = torch.tensor(0.1, dtype=torch.float64), 1e-5
    quotient = (after_a_step(rate + h) - after_a_step(rate - h)) / (2 * h)
    torch.testing.assert_close(grad(after_a_step)(rate), quotient, rtol=1e-6, atol=1e-9)


@pytest.mark.unchecked
@each_kind
def test_compiled_inside_a_model_with_one_graph_for_all_batches(name):
    machine, x = build(name)
    model = nn.Sequential(nn.Tanh(), machine, nn.Softplus())
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    counts = []
    for batch in (11, 13, 17, 2):
        new = x[:1].expand(batch, *x.shape[1:]) * torch.linspace(0.5, 1, batch).reshape(-1, *(1,) * (x.ndim - 1))
        new = new.to(x.dtype).contiguous()
        actual = torch.autograd.grad(compiled(new).sum(), machine.weight)
        assert_equal(actual, torch.autograd.grad(model(new).sum(), machine.weight))
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 4


@pytest.mark.unchecked
def test_one_graph_serves_convolutions_in_any_space():
    counter = CompileCounterWithBackend("eager")
    machine = torch.compile(rv.ConvMachine((2, 3)), backend=counter, dynamic=True)
    for positions in (8, 9, 11):
        machine(torch.randn(4, 2, positions))
    assert counter.frame_count == 1


@pytest.mark.unchecked
def test_one_graph_serves_convolutions_where_spaces_differ_in_what_is_faster(monkeypatch):
    """With a custom σ, so that the compiler sees the steps."""
    for way in ("_column_is_faster", "_products_are_faster"):
        monkeypatch.setattr(_convolution, way, lambda x, *_: x.shape[-1] > 8)
    machine, counter = rv.ConvMachine((2, 3), lambda y: y.tanh()), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(machine, backend=counter, dynamic=True)
    for positions in (8, 9, 11):
        compiled(torch.randn(4, 2, positions)).sum().backward()
    assert counter.frame_count == 1


@pytest.mark.unchecked
@each_kind
def test_compiled_code_calls_the_fast_executor(name):
    machine, x = build(name)
    if machine.executor == "torch":
        pytest.skip("the extension was not built")
    targets = []

    def backend(graph, _):
        targets.extend(str(n.target) for m in graph.modules() if hasattr(m, "graph") for n in m.graph.nodes)
        return graph

    torch._dynamo.reset()
    torch.compile(machine, fullgraph=True, backend=backend)(x)
    assert any("resolvent.sweep" in target for target in targets)


@pytest.mark.unchecked
def test_a_compiled_sum_equals_the_sum():
    f = rv.Layer(rv.DenseMachine((2, 3)), reads="a", writes="b") + rv.Layer(torch.tanh, reads="b", writes="c")
    x0 = {"a": torch.randn(4, 2)}
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="aot_eager")
    assert_equal(compiled(x0)["c"], f(x0)["c"])


@pytest.mark.unchecked
def test_exported_convolutions_take_any_space():
    machine = randomize(rv.ConvMachine((2, 3, 1), kernel_size=(3, 2)))
    dims = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    program = torch.export.export(machine, (torch.randn(2, 2, 5, 6),), dynamic_shapes=(dims,))
    for shape in ((1, 2, 4, 9), (3, 2, 11, 3)):
        x = torch.randn(shape)
        assert_equal(program.module()(x), machine(x))


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", [*KINDS, "conv, two axes, some connections", "dense, sequential, no bias"])
def test_onnx_file_runs_with_batches_it_was_not_exported_with(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from resolvent.sharing import onnx

    case = ALL_MACHINES[name]()
    machine = randomize(case.machine).float()
    recurrent = isinstance(machine, rv.RecurrentMachine)
    onnx.export(machine, tmp_path / "machine.onnx", time_steps=case.extent[0] if recurrent else None)
    assert machine.training
    session = onnxruntime.InferenceSession(tmp_path / "machine.onnx")
    assert [value.name for value in (*session.get_inputs(), *session.get_outputs())] == ["x", "z"]
    for batch in (1, 5):
        case.batch = (batch,)
        if not recurrent:
            case.extent = tuple(size + batch for size in case.extent)
        x = torch.randn(case.shape(machine.partition.sizes[0]))
        (z,) = session.run(None, {"x": x.numpy()})
        assert_equal(torch.from_numpy(z), machine(x).detach())


@pytest.mark.unchecked
def test_onnx_export_names_what_it_needs(tmp_path):
    from resolvent.sharing import onnx

    with pytest.raises(ValueError, match="time_steps must be given for a recurrent machine"):
        onnx.export(rv.RecurrentMachine((1, 2)), tmp_path / "a.onnx")
    with pytest.raises(ValueError, match="time_steps=3 is for recurrent machines only, got a dense machine"):
        onnx.export(rv.DenseMachine((1, 2)), tmp_path / "a.onnx", time_steps=3)
    with pytest.raises(TypeError, match="machine must be a structured machine, got Linear"):
        onnx.export(nn.Linear(1, 2), tmp_path / "a.onnx")  # type: ignore  # that is the mistake
