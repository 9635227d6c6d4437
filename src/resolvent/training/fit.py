"""Training, by Lightning: it goes on from its last checkpoint, with the numbers of a run that was never stopped."""

import json
import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.nn.functional as F
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ..files.folder import replace_text
from .network import Model
from .processes import rank

PATIENCE, STEPS = (
    15,
    300,
)  # epochs without a better validation loss, and at least so many steps: of few rows, 15 are few
FINISHED = "finished.json"


class Diverged(ValueError):
    """The loss became infinite or NaN."""


class Rows(Dataset):
    """Inputs and targets, fetched a batch at a time."""

    def __init__(self, inputs: Tensor, targets: Tensor):
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        return self.inputs[rows], self.targets[rows]


class Training(LightningModule):
    """Cross entropy for classes, squared error for numbers; what has no target (NaN) does not count."""

    def __init__(self, network: Model, lr: float, epochs: int):
        super().__init__()
        self.network, self.lr, self.epochs = network, lr, epochs
        self.history: list[dict[str, float]] = []

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        outputs = self.network(inputs)
        if not targets.is_floating_point():
            return F.cross_entropy(outputs, targets)
        counted = ~targets.isnan()
        return F.mse_loss(outputs[counted], targets[counted])

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        self.log("val_loss", self.loss(batch), prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), self.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)]

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        self.history.append({name: metrics[name].item() for name in ("train_loss", "val_loss")})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.history = list(checkpoint["history"])


class Stop(EarlyStopping):
    """A run that was killed after its last epoch is not to train one more."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = self.wait_count >= self.patience


class Keep(ModelCheckpoint):
    """A folder that was moved since still has its best epoch."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        path = str(Path(str(self.dirpath)) / Path(state_dict["best_model_path"]).name)
        moved: dict[str, Any] = dict(dirpath=self.dirpath, best_model_path=path)
        if state_dict["best_k_models"]:
            moved |= dict(kth_best_model_path=path, best_k_models={path: state_dict["best_model_score"]})
        super().load_state_dict(state_dict | moved)


class BesideThenReplace(TorchCheckpointIO):
    """A checkpoint that is cut off in writing leaves the one before."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        torch.save(checkpoint, f"{path}.new")
        os.replace(f"{path}.new", path)


def fit(
    network: Model,
    train: Rows,
    validation: Rows,
    folder: Path,
    *,
    epochs: int,
    lr: float,
    batch_size: int,
    seed: int,
    device: str,
    title: str,
    progress: bool,
) -> list[dict[str, float]]:
    """Train the network and give it the weights of its best epoch; returns the losses of all epochs.

    The folder keeps the best and the last epoch, and a mark when it is finished.
    """
    training = Training(network, lr, epochs)
    if not (folder / FINISHED).is_file():
        processes = int(os.environ.get("WORLD_SIZE", 1))
        share: Any = dict(num_replicas=processes, rank=rank())
        order = DistributedSampler(train, **share, shuffle=True, seed=seed)  # by seed and epoch, so that it can go on
        loader = _loader(train, batch_size=max(1, batch_size // processes), sampler=order)
        checked = _loader(validation, batch_size=1024, sampler=DistributedSampler(validation, **share, shuffle=False))
        last = folder / "last.ckpt"
        if last.is_file():
            load_checkpoint(last)  # if it is damaged, this says so
        with _quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore", PossibleUserWarning)  # advice on workers, for data that is in memory
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists")  # it does, when a run goes on
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # Lightning's own use of PyTorch
            patience = max(PATIENCE, math.ceil(STEPS / max(1, len(loader))))
            trainer = _trainer(folder, epochs, patience, device, processes, _bar(title) if progress else [])
            try:
                trainer.fit(
                    training, loader, checked, ckpt_path=str(last) if last.is_file() else None, weights_only=True
                )
            except SystemExit:  # what Lightning makes of Ctrl-C
                raise KeyboardInterrupt from None
        if trainer.is_global_zero:
            replace_text(folder / FINISHED, json.dumps(training.history))
        trainer.strategy.barrier()
    history = json.loads((folder / FINISHED).read_text())
    if not any(math.isfinite(epoch["val_loss"]) for epoch in history):
        raise Diverged(f"training diverged: its loss is not finite. A smaller learning rate than {lr} may help")
    training.cpu().load_state_dict(load_checkpoint(folder / "best.ckpt")["state_dict"])
    return [epoch for epoch in history if math.isfinite(epoch["val_loss"])]


def load_checkpoint(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, UnpicklingError):
        raise ValueError(f"{path} is damaged: remove {path.parent} to train this network again") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning as a part of something larger: no advice, and PyTorch's settings afterwards as before."""
    logger, deterministic = logging.getLogger("lightning.pytorch"), torch.are_deterministic_algorithms_enabled()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        torch.use_deterministic_algorithms(deterministic)


def _loader(rows: Rows, **options: Any) -> DataLoader:
    return DataLoader(rows, collate_fn=lambda batch: batch, **options)


def _bar(title: str) -> list[Callback]:
    class Bar(RichProgressBar):
        def get_metrics(self, *given: Any) -> Any:
            return {name: value for name, value in super().get_metrics(*given).items() if name != "v_num"}

        def _get_train_description(self, current_epoch: int) -> str:
            return f"{title}, epoch {current_epoch + 1}"

    return [Bar(leave=False)]


def _trainer(
    folder: Path, epochs: int, patience: int, device: str, processes: int, bars: Sequence[Callback]
) -> Trainer:
    keep: Any = dict(dirpath=folder, enable_version_counter=False, save_on_train_epoch_end=True)
    callbacks = [
        *bars,
        Stop("val_loss", patience=patience, check_on_train_epoch_end=True),
        Keep(filename="best", monitor="val_loss", **keep),
        Keep(filename="last", **keep),  # after the best, so that the last one knows which that is
    ]
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=local,
        num_nodes=processes // local,
        strategy="ddp" if processes > 1 else "auto",
        max_epochs=epochs,
        callbacks=callbacks,
        plugins=[BesideThenReplace()],
        logger=CSVLogger(folder, name="logs"),
        deterministic=True,
        use_distributed_sampler=False,
        enable_progress_bar=bool(bars),
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
