"""From rows to numbers: fitted by scikit-learn, kept and applied as plain data, so that no run needs a pickle."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from .data import LARGEST, Data

FORMAT, VERSION = "resolvent preprocessing", 1


@dataclass(frozen=True)
class Column:
    """A number becomes (x - mean) / scale, a category one entry for each of `categories`; `fill` for missing ones."""

    name: str
    fill: Any
    mean: float = 0.0
    scale: float = 1.0
    categories: list[str] | None = None

    def apply(self, values: pd.Series) -> np.ndarray:
        if self.categories is not None:
            texts = _texts(values.to_frame()).fillna(self.fill).to_numpy()
            return (texts == np.array(self.categories, dtype=object)).astype(float)
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(float, na_value=np.nan)
        wrong = (np.isnan(numbers) & values.notna().to_numpy()) | (np.abs(numbers) >= LARGEST)
        if wrong.any():
            row = int(wrong.argmax())
            needed = f"must be numbers below {LARGEST:.0e}"
            raise ValueError(f"column {self.name!r} {needed}, row {row + 1} has {values.iloc[row]}")
        return ((np.where(np.isnan(numbers), self.fill, numbers) - self.mean) / self.scale)[:, None]


@dataclass(frozen=True)
class Preprocessing:
    """What makes numbers of rows, and predictions of numbers. A target becomes a class's place or a scaled number."""

    task: str
    target: str
    columns: tuple[Column, ...]
    image: tuple[int, int, int] | None
    classes: list[Any] | None
    mean: float = 0.0
    scale: float = 1.0

    def inputs(self, frame: pd.DataFrame) -> np.ndarray:
        """(rows, features), or (rows, channels, height, width) for images; columns may be in any order."""
        frame = frame.rename(columns=str)
        missing = [column.name for column in self.columns if column.name not in frame]
        if missing:
            hint = ": a forecast is made from the values before it" if self.target in missing else ""
            raise ValueError(f"the data lacks the columns {', '.join(missing)}{hint}")
        features = np.concatenate([column.apply(frame[column.name]) for column in self.columns], 1)
        return features.reshape(-1, *self.image) if self.image else features

    def of_features(self, used: Sequence[bool]) -> "Preprocessing":
        """The preprocessing of some of its numbers, in which a row is no image any more."""
        rest, columns = iter(used), []
        for column in self.columns:
            if column.categories is None:
                columns += [column] if next(rest) else []
            elif kept := [category for category in column.categories if next(rest)]:
                columns.append(replace(column, categories=kept))
        return replace(self, columns=tuple(columns), image=None)

    def goals(self, target: pd.Series) -> np.ndarray:
        if self.classes is not None:
            return np.array([self.classes.index(value) for value in target.tolist()])
        return ((target.to_numpy(float) - self.mean) / self.scale)[:, None]

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """The most likely classes, or numbers in the target's own units."""
        if self.classes is not None:
            return np.array(self.classes, dtype=object)[outputs.argmax(1)]
        return outputs[..., 0].astype(float) * self.scale + self.mean

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION} | asdict(self)

    @classmethod
    def from_json(cls, fields: Any) -> "Preprocessing":
        if not isinstance(fields, dict) or fields.get("format") != FORMAT or fields.get("version") != VERSION:
            raise ValueError(f"not a preprocessing of version {VERSION}")
        fields = {name: value for name, value in fields.items() if name not in ("format", "version")}
        try:
            fields["columns"] = tuple(Column(**column) for column in fields["columns"])
            fields["image"] = fields["image"] and tuple(fields["image"])
            read = cls(**fields)
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a preprocessing of version {VERSION}: {error}") from None
        numbers = [read.mean, read.scale, *(n for c in read.columns for n in (c.mean, c.scale))]
        numbers += [c.fill for c in read.columns if c.categories is None]
        if not read.columns or read.classes == [] or not all(isinstance(n, int | float) for n in numbers):
            raise ValueError(f"not a preprocessing of version {VERSION}: its columns, classes or numbers are wrong")
        return read

    @property
    def features(self) -> int:
        """How many numbers a row becomes."""
        return sum(1 if column.categories is None else len(column.categories) for column in self.columns)


def fit(data: Data, rows: Sequence[int] | np.ndarray) -> Preprocessing:
    """The preprocessing of the data, from these rows alone."""
    train, target = data.inputs.iloc[rows], data.target.iloc[rows]
    classes, mean, scale = None, 0.0, 1.0
    if data.task == "classification":
        classes = np.unique(data.target.to_numpy()).tolist()
    else:
        mean, scale = _center(target.to_numpy(float)[:, None])
    columns = _image_columns(train) if data.image else _table_columns(train.dropna(axis=1, how="all"))
    return Preprocessing(data.task, str(data.target.name), columns, data.image, classes, mean, scale)


def transformer(train: pd.DataFrame) -> ColumnTransformer:
    """scikit-learn's own tools, fitted: missing values, scaling, one entry for each category."""
    numbers, categories = _kinds(train)
    number = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    category = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    )
    fitted = ColumnTransformer([("number", number, numbers), ("category", category, categories)])
    return fitted.fit(train.assign(**_texts(train[categories])))


def _table_columns(train: pd.DataFrame) -> tuple[Column, ...]:
    numbers, categories = _kinds(train)
    fitted = transformer(train).named_transformers_
    columns = []
    if numbers:
        imputer, scaler = (step for _, step in fitted["number"].steps)
        parts = zip(numbers, imputer.statistics_, scaler.mean_, scaler.scale_, strict=True)
        columns += [Column(name, *(float(value) for value in values)) for name, *values in parts]
    if categories:
        imputer, encoder = (step for _, step in fitted["category"].steps)
        parts = zip(categories, imputer.statistics_, encoder.categories_, strict=True)
        columns += [Column(name, fill, categories=list(values)) for name, fill, values in parts]
    return tuple(columns)


def _image_columns(train: pd.DataFrame) -> tuple[Column, ...]:
    """One scale for all pixels, since a convolution treats them alike."""
    fills = SimpleImputer(strategy="median", keep_empty_features=True).fit(train).statistics_
    mean, scale = _center(train.fillna(dict(zip(train, fills, strict=True))).to_numpy(float).reshape(-1, 1))
    return tuple(Column(name, float(fill), mean, scale) for name, fill in zip(train, fills, strict=True))


def _center(values: np.ndarray) -> tuple[float, float]:
    scaler: Any = StandardScaler().fit(values)
    return float(scaler.mean_[0]), float(scaler.scale_[0])


def _kinds(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    numbers = [str(name) for name in frame if types.is_numeric_dtype(frame[name])]
    return numbers, [str(name) for name in frame if name not in numbers]


def _texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as texts, missing ones as NaN; a whole number's text does not depend on the rows beside it."""

    def text(value: Any) -> str:
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

    return frame.astype(object).map(text, na_action="ignore").astype(object).where(frame.notna(), np.nan)
