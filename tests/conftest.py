import os

if not os.path.exists("/dev/nvidiactl"):  # without a GPU, kernels are interpreted; Triton looks when it is imported
    os.environ["TRITON_INTERPRET"] = "1"

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("laws", deadline=None, derandomize=True, max_examples=40)
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
def schedules_of_their_own():
    """What a test changes of how a plan is made and scheduled is not to be seen by the next."""
    from resolvent.sweep import plan as _plan
    from resolvent.sweep import stages as _stages
    from resolvent import _triton  # here
    from resolvent import since they import Triton

    _plan.make_plan.cache_clear()
    yield
    _plan.make_plan.cache_clear()
    _stages.schedule_of.cache_clear()
    _stages.cover.cache_clear()
    _triton._launches.cache_clear()
