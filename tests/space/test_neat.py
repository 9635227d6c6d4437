"""Genomes of neat-python are machines that compute the same numbers, and go back."""

import json
import random
from typing import Any

import pytest
import torch
from parts import f64
from tolerance import assert_equal

from resolvent import space

CONFIG = """
[NEAT]
fitness_criterion = max
fitness_threshold = 1
no_fitness_termination = True
pop_size = 2
reset_on_extinction = False

[DefaultGenome]
activation_default = sigmoid
activation_mutate_rate = 0.5
activation_options = {activations}
aggregation_default = sum
aggregation_mutate_rate = 0.0
aggregation_options = sum
bias_init_mean = 0.0
bias_init_stdev = 1.0
bias_init_type = gaussian
bias_max_value = 5.0
bias_min_value = -5.0
bias_mutate_power = 0.5
bias_mutate_rate = 0.7
bias_replace_rate = 0.1
response_init_mean = 1.0
response_init_stdev = 0.3
response_init_type = gaussian
response_max_value = 5.0
response_min_value = -5.0
response_mutate_power = 0.2
response_mutate_rate = 0.5
response_replace_rate = 0.1
compatibility_disjoint_coefficient = 1.0
compatibility_weight_coefficient = 0.5
compatibility_enable_coefficient = 0.0
conn_add_prob = 0.6
conn_delete_prob = 0.2
enabled_default = True
enabled_mutate_rate = 0.1
enabled_rate_to_true_add = 0.0
enabled_rate_to_false_add = 0.0
feed_forward = {feed_forward}
initial_connection = full_direct
node_add_prob = 0.5
node_delete_prob = 0.1
num_hidden = 1
num_inputs = 3
num_outputs = 2
single_structural_mutation = False
structural_mutation_surer = default
weight_init_mean = 0.0
weight_init_stdev = 1.0
weight_init_type = gaussian
weight_max_value = 5
weight_min_value = -5
weight_mutate_power = 0.5
weight_mutate_rate = 0.8
weight_replace_rate = 0.1

[DefaultSpeciesSet]
compatibility_threshold = 3.0

[DefaultStagnation]
species_fitness_func = max
max_stagnation = 20
species_elitism = 1

[DefaultReproduction]
elitism = 1
survival_threshold = 0.2
min_species_size = 1
"""
ALL = "sigmoid tanh identity relu elu selu sin gauss lelu softplus clamped abs hat square exp"


def genome(neat: Any, tmp_path: Any, seed: int, feed_forward: bool, activations: str) -> tuple[Any, Any]:
    random.seed(seed)
    path = tmp_path / "neat.ini"
    path.write_text(CONFIG.format(activations=activations, feed_forward=feed_forward))
    parts = neat.DefaultGenome, neat.DefaultReproduction, neat.DefaultSpeciesSet, neat.DefaultStagnation
    config = neat.Config(*parts, str(path))
    config.genome_config.innovation_tracker = neat.innovation.InnovationTracker()
    made = neat.DefaultGenome(0)
    made.configure_new(config.genome_config)
    for _ in range(8):
        made.mutate(config.genome_config)
    return made, config


def rebuilt(neat: Any, fields: dict[str, Any]) -> Any:
    """neat-python's network of the JSON."""
    functions = neat.activations.ActivationFunctionSet()
    fed: dict[int, list] = {node["id"]: [] for node in fields["nodes"] if node["type"] != "input"}
    for row in fields["connections"]:
        fed[row["to"]].append((row["from"], row["weight"]))
    nodes = {node["id"]: node for node in fields["nodes"]}
    done, order = set(fields["topology"]["input_keys"]), []
    while len(order) < len(fed):
        order += [key for key in fed if key not in order and all(s in done for s, _ in fed[key])]
        done |= set(order)
    evals = [
        (
            key,
            functions.get(nodes[key]["activation"]["name"]),
            sum,
            nodes[key]["bias"],
            nodes[key]["response"],
            fed[key],
        )
        for key in order
    ]
    return neat.nn.FeedForwardNetwork(fields["topology"]["input_keys"], fields["topology"]["output_keys"], evals)


@pytest.mark.filterwarnings("ignore:datetime:DeprecationWarning")
@pytest.mark.parametrize("activations", ["sigmoid tanh", ALL])
@pytest.mark.parametrize("seed", range(12))
def test_a_genome_of_neat_python_is_the_same_function_and_goes_back(activations, seed, tmp_path):
    neat, export = pytest.importorskip("neat"), pytest.importorskip("neat.export").export_network_json
    made, config = genome(neat, tmp_path, seed, True, activations)
    theirs = neat.nn.FeedForwardNetwork.create(made, config)
    text = export(theirs, filepath=str(tmp_path / "net.json"))
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(seed), **f64)
    expected = torch.tensor([theirs.activate(x) for x in points.tolist()], **f64)
    for source in (text, tmp_path / "net.json", json.loads(text)):
        ours = space.from_neat(source, **f64)
        assert_equal(ours(points).detach(), expected)
    enabled = len(json.loads(text)["connections"])
    assert ours.machine.entries.numel() == enabled
    back = rebuilt(neat, space.to_neat(ours))
    assert_equal(torch.tensor([back.activate(x) for x in points.tolist()], **f64), expected)
    if enabled:
        (gradient,) = torch.autograd.grad(ours(points).sum(), ours.machine.entries)
        assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore:datetime:DeprecationWarning")
@pytest.mark.parametrize("seed", range(6))
def test_a_recurrent_genome_is_the_same_function_of_a_series(seed, tmp_path):
    neat, export = pytest.importorskip("neat"), pytest.importorskip("neat.export").export_network_json
    made, config = genome(neat, tmp_path, seed, False, "sigmoid tanh sin")
    theirs = neat.nn.RecurrentNetwork.create(made, config)
    text = export(theirs)
    points = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed), **f64)
    expected = torch.tensor([theirs.activate(x) for x in points.tolist()], **f64)
    ours = space.from_neat(text, **f64)
    assert_equal(ours(points).detach(), expected)
    again = space.from_neat(space.to_neat(ours), **f64)
    assert_equal(again(points).detach(), expected)


@pytest.mark.unchecked
def test_what_no_machine_computes_is_refused_by_name(tmp_path):
    node = dict(id=0, activation=dict(name="sigmoid"), aggregation=dict(name="sum"), bias=0.0, response=1.0)
    fields = dict(
        network_type="feedforward", topology=dict(input_keys=[-1], output_keys=[0]), nodes=[node], connections=[]
    )
    for change, message in (
        (dict(network_type="ctrnn"), "network_type 'ctrnn' is none that a machine computes"),
        (dict(nodes=[node | dict(aggregation=dict(name="max"))]), "node 0 has aggregation 'max': a machine's is sum"),
        (
            dict(nodes=[node | dict(activation=dict(name="inv"))]),
            "node 0 has activation 'inv': known are identity, relu",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            space.from_neat(fields | change)
    for broken in (dict(nodes=3), dict(topology={}), dict(nodes=[node | dict(bias=float("nan"))])):
        with pytest.raises(ValueError, match=r"network_json gives|node 0 has bias nan: a finite number is needed"):
            space.from_neat(fields | broken)
    with pytest.raises(TypeError, match="network must be a NamedNetwork, got int"):
        space.to_neat(3)  # pyright: ignore

    def tanh(y):
        return 3 * y

    own = space.from_edges([dict(source="1", target="2", weight=1.0, activation=tanh)])
    with pytest.raises(ValueError, match="activation tanh of node 2 is none of neat-python's"):
        space.to_neat(own)
    with pytest.raises(ValueError, match="source is not JSON"):
        space.from_neat("{")
    with pytest.raises(ValueError, match=r"source is not what neat\.export\.export_network_json gives: it needs conn"):
        space.from_neat("{}")
    with pytest.raises(ValueError, match="node 'b' has no number for a name"):
        space.to_neat(space.from_edges([dict(source="1", target="b", weight=1.0)]))
