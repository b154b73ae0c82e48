"""The layouts image sets come in.

A reader returns None where a folder is not in its layout, and raises where it is but something is damaged.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reluctant.errors import DataError, first_line

Array = np.ndarray[Any, Any]
Part = tuple[Array, Array]
"""Pixels as uint8 N×3×H×W, labels as int64."""


@dataclass(frozen=True)
class Raw:
    """A set as it was found."""

    kind: str
    train: Part
    test: Part
    classes: tuple[str, ...]


Reader = Callable[[Path, str, Sequence[str], int | None], Raw | None]


def read_parquet(folder: Path, label: str, test_parts: Sequence[str], classes: int | None) -> Raw | None:
    """Read the parquet files of Hugging Face: an image column of `{bytes, path}` and a label column."""
    places = [folder, *(folder / name for name in ("data", "plain_text", folder.name))]  # as their repositories have them
    files = {
        part: sorted(path for place in places for path in place.glob(f"{part}*.parquet")) for part in ("train", *test_parts)
    }
    test = next((files[part] for part in test_parts if files[part]), [])
    if not files["train"]:
        return None
    if not test:
        raise DataError(f"{folder} has train*.parquet but no {test_parts[0]}*.parquet; fetch the set again")
    train, names = _parquet_part(files["train"], label)
    held_out, _ = _parquet_part(test, label)
    return Raw("parquet", train, held_out, names or _numbered(classes, train, held_out))


def _parquet_part(files: Sequence[Path], label: str) -> tuple[Part, tuple[str, ...]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    encoded: list[bytes] = []
    labels: list[int] = []
    names: tuple[str, ...] = ()
    for file in files:
        try:
            table = pq.read_table(file)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file} is damaged or not a parquet file ({first_line(error)}); fetch it again") from error
        image = next((c for c in ("img", "image") if c in table.column_names), None)
        column = label if label in table.column_names else None
        if image is None or column is None:
            raise DataError(f"{file} has the columns {', '.join(table.column_names)}; expected img or image, and {label}")
        encoded += [row["bytes"] for row in table.column(image).to_pylist()]
        labels += table.column(column).to_pylist()
        names = names or _feature_names(table.schema.metadata, column)
    where = files[0] if len(files) == 1 else files[0].parent
    return (_decoded(encoded, str(where)), np.array(labels, dtype=np.int64)), names


def _feature_names(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(features[column]["names"])
    except (KeyError, TypeError, json.JSONDecodeError):
        return ()


def read_pickles(folder: Path, label: str, test_parts: Sequence[str], classes: int | None) -> Raw | None:
    """Read the official Python batches of CIFAR-10 or CIFAR-100."""
    if label == "fine_label":
        batches, test, meta = [folder / "train"], folder / "test", folder / "meta"
    else:
        batches, test = [folder / f"data_batch_{n}" for n in range(1, 6)], folder / "test_batch"
        meta = folder / "batches.meta"
    if not batches[0].is_file():
        return None
    parts = [_pickled(path, label) for path in _all_there([*batches, test])]
    train = tuple(np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    names: tuple[str, ...] = ()
    if meta.is_file():
        content = _unpickled(meta)
        names = tuple(n.decode() for n in content.get(b"fine_label_names") or content.get(b"label_names") or ())
    return Raw("official pickles", (train[0], train[1]), parts[-1], names or _numbered(classes, parts[0], parts[-1]))


class _NumbersOnly(pickle.Unpickler):
    """Unpickles arrays, and refuses everything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Allow what the official files hold."""
        if (module, name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _unpickled(path: Path) -> dict[bytes, Any]:
    try:
        with path.open("rb") as file:
            content = _NumbersOnly(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{path} is damaged or not an official batch ({first_line(error)}); fetch it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not an official batch; fetch it again")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}


def _pickled(path: Path, label: str) -> Part:
    content = _unpickled(path)
    labels = content.get(f"{label}s".encode())
    pixels = content.get(b"data")
    if labels is None or not isinstance(pixels, np.ndarray) or pixels.size != len(labels) * 3072:
        raise DataError(f"{path} is not a batch of 32×32 images with {label}s; is it of another set?")
    return pixels.reshape(-1, 3, 32, 32).astype(np.uint8), np.array(labels, dtype=np.int64)


def read_binaries(folder: Path, label: str, test_parts: Sequence[str], classes: int | None) -> Raw | None:
    """Read the official binary batches of CIFAR-10 or CIFAR-100."""
    fine = label == "fine_label"
    batches = [folder / "train.bin"] if fine else [folder / f"data_batch_{n}.bin" for n in range(1, 6)]
    test = folder / ("test.bin" if fine else "test_batch.bin")
    if not batches[0].is_file():
        return None
    parts = [_binary(path, labels=2 if fine else 1) for path in _all_there([*batches, test])]
    train = tuple(np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    texts = folder / ("fine_label_names.txt" if fine else "batches.meta.txt")
    names = tuple(texts.read_text().split()) if texts.is_file() else ()
    return Raw("official binaries", (train[0], train[1]), parts[-1], names or _numbered(classes, parts[0], parts[-1]))


def _binary(path: Path, labels: int) -> Part:
    content = np.fromfile(path, dtype=np.uint8)
    if content.size == 0 or content.size % (labels + 3072):
        raise DataError(f"{path} has {content.size} bytes, not a whole number of images; fetch it again")
    rows = content.reshape(-1, labels + 3072)
    return rows[:, labels:].reshape(-1, 3, 32, 32).copy(), rows[:, labels - 1].astype(np.int64)


def read_folder(folder: Path, label: str, test_parts: Sequence[str], classes: int | None) -> Raw | None:
    """Read a folder of images: train/CLASS/*.png, or Tiny-ImageNet's own train/CLASS/images and val_annotations.txt."""
    test = next((folder / part for part in test_parts if (folder / part).is_dir()), None)
    train = folder / "train"
    if not train.is_dir() or test is None:
        return None
    names = tuple(sorted(child.name for child in train.iterdir() if child.is_dir()))
    if not names:
        return None
    annotations = test / "val_annotations.txt"
    held_out = _annotated(annotations, names) if annotations.is_file() else _by_class(test, names)
    return Raw("image folder", _images(train, _by_class(train, names)), _images(test, held_out), names)


_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp"}


def _by_class(folder: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    found: list[tuple[Path, int]] = []
    for number, name in enumerate(names):
        files = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in _SUFFIXES)
        found += [(path, number) for path in files]
    return found


def _annotated(annotations: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    found = []
    for line in annotations.read_text().splitlines():
        file, name, *_ = line.split("\t")
        if name in names:
            found.append((annotations.parent / "images" / file, names.index(name)))
    return found


def _images(folder: Path, found: Sequence[tuple[Path, int]]) -> Part:
    if not found:
        raise DataError(f"{folder} holds no png or jpeg image in a folder of its class; put some there")
    pixels = _decoded([path for path, _ in found], str(folder))
    return pixels, np.array([label for _, label in found], dtype=np.int64)


def _decoded(sources: Sequence[bytes | Path], where: str) -> Array:
    def decode(number: int) -> Array:
        source = sources[number]
        try:
            with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as image:
                return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        except Exception as error:  # damaged images fail in any way
            name = str(source) if isinstance(source, Path) else f"image {number} of {where}"
            raise DataError(f"{name} is damaged ({first_line(error)}); fetch it again") from error

    if not sources:
        raise DataError(f"{where} holds no images; fetch it again")
    first = decode(0)
    pixels = np.empty((len(sources), *first.shape), dtype=np.uint8)

    for number in range(len(sources)):  # threads make this slower: so small images spend their time in Python
        image = decode(number)
        if image.shape != first.shape:
            size, expected = (f"{shape[1]}×{shape[2]}" for shape in (image.shape, first.shape))
            raise DataError(f"image {number} of {where} is {size} and the first is {expected}; make them one size")
        pixels[number] = image
    return pixels


def _all_there(paths: Iterable[Path]) -> list[Path]:
    paths = list(paths)
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path.parent} has no {path.name}; fetch the set again")
    return paths


def _numbered(classes: int | None, *parts: Part) -> tuple[str, ...]:
    count = classes or 1 + max(int(labels.max()) for _, labels in parts)
    return tuple(str(number) for number in range(count))


READERS: tuple[Reader, ...] = (read_parquet, read_pickles, read_binaries, read_folder)
