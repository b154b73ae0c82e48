"""Which ReLUs are kept: one bool for every element of every site."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from reluctant import _ops
from reluctant._example import Example, spell
from reluctant._files import replacing
from reluctant._rewired import put_at_site, replace_sites
from reluctant._tracer import module_paths
from reluctant.errors import ExampleError, MaskError, MaskMismatch
from reluctant.sites import survey
from reluctant.slopes import FixedReLU, Granularity, SlopedReLU, shapes

FORMAT = "reluctant.mask"
VERSION = 1


class Mask(Mapping[str, Tensor]):
    """The binary decision for every site: a mapping from its name to a bool tensor of its shape; True keeps the ReLU.

    Masks of the same sites behave as sets of ReLUs: `a & b`, `a | b`, `a - b`, `a ^ b`, `~a`, `a <= b`, `a == b`.

    Args:
        tensors: a bool tensor for every site of the network, in the order of the calls.
        granularity: what was decided at once.
        zero_out: an element that is not kept becomes zero instead of linear.

    Example:
        >>> mask = Mask({"relu": torch.tensor([True, False, True])})
        >>> mask.count, mask.total, (~mask).count, mask & ~mask <= mask
        (2, 3, 1, True)
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], *, granularity: Granularity = "pixel", zero_out: bool = False
    ) -> None:
        for site, tensor in tensors.items():
            if tensor.dtype != torch.bool:
                raise MaskError(f"the mask of site '{site}' is of {tensor.dtype}; pass bool tensors")
        self._tensors = {site: tensor.detach().cpu().clone() for site, tensor in tensors.items()}
        self.granularity = granularity
        self.zero_out = zero_out

    @property
    def count(self) -> int:
        """How many ReLUs are kept."""
        return sum(self.counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """How many ReLUs are kept at every site."""
        return {site: int(tensor.sum()) for site, tensor in self._tensors.items()}

    @property
    def total(self) -> int:
        """How many ReLUs there are without the mask."""
        return sum(tensor.numel() for tensor in self._tensors.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every site."""
        return {site: tuple(tensor.shape) for site, tensor in self._tensors.items()}

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that two masks share if they are of the same sites."""
        text = json.dumps(sorted((site, list(shape)) for site, shape in self.shapes.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def checksum(self) -> str:
        """Sixteen hexadecimal digits that two masks of the same sites share if they keep the same ReLUs."""
        digest = hashlib.sha256(f"{self.granularity} {self.zero_out}".encode())
        for tensor in self._tensors.values():
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def __getitem__(self, site: str) -> Tensor:
        return self._tensors[site].clone()  # a mask does not change

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        zero_out = ", zero_out" if self.zero_out else ""
        return f"Mask({self.count} of {self.total} ReLUs in {len(self)} sites, {self.granularity}{zero_out})"

    def __and__(self, other: Mask) -> Mask:
        return self._with(other, torch.logical_and)

    def __or__(self, other: Mask) -> Mask:
        return self._with(other, torch.logical_or)

    def __xor__(self, other: Mask) -> Mask:
        return self._with(other, torch.logical_xor)

    def __sub__(self, other: Mask) -> Mask:
        return self & ~other

    def __invert__(self) -> Mask:
        inverted = {site: ~tensor for site, tensor in self._tensors.items()}
        return Mask(inverted, granularity=self.granularity, zero_out=self.zero_out)

    def __le__(self, other: Mask) -> bool:
        return (self - other).count == 0

    def __lt__(self, other: Mask) -> bool:
        return self <= other and self != other

    def __ge__(self, other: Mask) -> bool:
        return other <= self

    def __gt__(self, other: Mask) -> bool:
        return other < self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return self.shapes == other.shapes and all(torch.equal(self[site], other[site]) for site in self)

    __hash__ = None  # type: ignore[assignment]

    def _with(self, other: Mask, operation: Callable[[Tensor, Tensor], Tensor]) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        _check_same_sites(self.shapes, other.shapes, "the other mask")
        combined = {site: operation(self[site], other[site]) for site in self}
        finer = self.granularity if self.granularity == other.granularity else "pixel"
        return Mask(combined, granularity=finer, zero_out=self.zero_out)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all."""
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "granularity": self.granularity,
            "zero_out": json.dumps(self.zero_out),
            "sites": json.dumps(list(self)),
            "fingerprint": self.fingerprint,
            "checksum": self.checksum,
        }
        try:
            with replacing(Path(path)) as part:
                save_file({site: tensor.contiguous() for site, tensor in self.items()}, part, metadata=metadata)
        except (OSError, SafetensorError) as error:
            raise MaskError(f"the mask cannot be written to {path}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Mask:
        """Read a mask file, or that of a run folder.

        Raises:
            MaskError: it is missing, damaged, not a mask, or of a newer version.
        """
        if Path(path).is_dir():
            path = Path(path) / "mask.safetensors"
        if not Path(path).is_file():
            raise MaskError(f"there is no mask file {path}")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                _check_format(path, metadata)
                tensors = {site: file.get_tensor(site) for site in json.loads(metadata["sites"])}
            mask = cls(
                tensors,
                granularity=metadata["granularity"],
                zero_out=json.loads(metadata["zero_out"]),
            )
        except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise MaskError(f"the mask file {path} is damaged ({error}); save or copy it again") from error
        if mask.fingerprint != metadata.get("fingerprint"):
            raise MaskError(f"the mask file {path} is damaged (its sites are not those it was saved with); save it again")
        if mask.checksum != metadata.get("checksum"):
            raise MaskError(f"the mask file {path} is damaged (its bits are not those it was saved with); copy it again")
        return mask

    def apply(self, model: nn.Module, example: Example) -> nn.Module:
        """Return a copy of the model that keeps the ReLUs of this mask and is linear elsewhere.

        A site of which nothing is kept becomes an identity, one of which all is kept a plain ReLU. A mask that the model
        has already is replaced by this one.

        Args:
            model: a network with the sites of this mask, such as the student it was found with; it is not changed.
            example: an input it accepts, with a batch dimension.

        Raises:
            MaskMismatch: the network has other sites.

        Example:
            >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            >>> linear = Mask({"1": torch.zeros(8, dtype=torch.bool)}).apply(net, torch.zeros(1, 4))
            >>> linear.get_submodule("1")
            Identity()
        """
        with torch.inference_mode(False):
            seen, sites = survey(model, example)
            _check_same_sites(self.shapes, sites.shapes, "the network")
            device = next((p.device for p in model.parameters()), torch.device("cpu"))
            modules = {}
            for site in sites:
                if site.reachable:
                    modules[site.name] = self._module(site.name, device).train(model.training)
                elif not self[site.name].all():
                    raise MaskMismatch(f"site '{site.name}' is out of reach, and the mask does not keep all of its ReLUs")
            return replace_sites(seen.root, seen.trace, seen.inputs, modules)

    def freeze(self, student: nn.Module) -> nn.Module:
        """Return a copy of a network with slopes in which this mask stands where the slopes were; weights as they are."""
        frozen = deepcopy(student)
        at = {m.site: m for m in frozen.modules() if isinstance(m, SlopedReLU | FixedReLU)}
        _check_same_sites(self.shapes, shapes(frozen), "the network")
        paths = module_paths(frozen)
        for site, standing in at.items():
            device = next((p.device for p in standing.parameters()), torch.device("cpu"))
            module = self._module(site, device).train(student.training)
            for path in paths[standing]:
                put_at_site(frozen, path, module)
        return frozen

    def _module(self, site: str, device: torch.device) -> nn.Module:
        tensor = self[site].to(device)
        if tensor.all():
            return nn.ReLU()
        if not tensor.any() and not self.zero_out:
            return nn.Identity()
        return MaskedReLU(tensor, zero_out=self.zero_out, site=site)


class MaskedReLU(nn.Module):
    """A ReLU where the mask is True, linear (or zero) elsewhere; the mask is a buffer, so no optimizer moves it."""

    mask: Tensor

    def __init__(self, mask: Tensor, *, zero_out: bool = False, site: str = "") -> None:
        super().__init__()
        self.register_buffer("mask", mask.clone())
        self.zero_out, self.site = zero_out, site

    @property
    def count(self) -> int:
        """How many ReLUs are kept."""
        return int(self.mask.sum())

    def forward(self, x: Tensor) -> Tensor:
        """Apply the mask."""
        if x.shape[1:] != self.mask.shape:
            raise ExampleError(
                f"site '{self.site}' was masked for features of {spell(tuple(self.mask.shape))} and got "
                f"{spell(tuple(x.shape[1:]))}; pass inputs of the size that the mask was made for"
            )
        if self.zero_out:
            return _ops.zeroing_relu(x, self.mask.to(x.dtype))
        return _ops.masked_relu(x, self.mask)

    def extra_repr(self) -> str:
        """Show how much is kept."""
        return f"{spell(tuple(self.mask.shape))}, {self.count} kept" + (", zero_out" if self.zero_out else "")


def _check_format(path: str | Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise MaskError(f"{path} is a safetensors file but not a mask of reluctant; pass one that Mask.save wrote")
    version = metadata.get("version", "")
    if not version.isdigit() or not 1 <= int(version) <= VERSION:
        raise MaskError(
            f"the mask file {path} is of format version {version or 'unknown'}, and this reluctant reads up to {VERSION}; "
            "upgrade reluctant"
        )


def _check_same_sites(mine: Mapping[str, tuple[int, ...]], theirs: Mapping[str, tuple[int, ...]], what: str) -> None:
    for site, shape in mine.items():
        if site not in theirs:
            raise MaskMismatch(f"the mask has a site '{site}' and {what} does not; it was made for another network")
        if theirs[site] != shape:
            raise MaskMismatch(
                f"site '{site}' is {spell(shape)} in the mask and {spell(theirs[site])} in {what}; "
                "it was made for another network or another input size"
            )
    for site in theirs:
        if site not in mine:
            raise MaskMismatch(f"{what} has a site '{site}' and the mask does not; it was made for another network")
