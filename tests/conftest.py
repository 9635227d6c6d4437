import os

if not os.path.exists("/dev/nvidiactl"):  # without a GPU, kernels are interpreted; Triton looks when it is imported
    os.environ["TRITON_INTERPRET"] = "1"

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("laws", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.register_profile("long", deadline=None, max_examples=400)
hypothesis.settings.load_profile("laws")
torch.set_num_threads(1)  # the tests run in two processes


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def uninitialized_memory_is_nan():
    torch.use_deterministic_algorithms(True)  # which fills what torch.empty returns with NaN
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def products_of_views_read_no_further():
    """On processors with AMX, oneDNN's products in 16 bits read what lies behind a view, and are NaN where that is."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.fixture
def schedules_of_their_own():
    """What a test changes of how a plan is made and scheduled is not to be seen by the next."""
    from resolvent.executors.triton import launches  # here, since it imports Triton
    from resolvent.sweep import stages, system

    caches = system._interned, stages.schedule_of, stages.cover, launches.launches
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
