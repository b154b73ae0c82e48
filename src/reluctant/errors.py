"""Every error Reluctant raises on purpose.

    ReluctantError
    ├── BudgetError        a budget that cannot be read, or that this network cannot meet
    ├── ModelError         a network we cannot work with
    │   ├── TraceError     its ReLU calls cannot be found or replaced
    │   └── NoReLUError    it has no ReLU call at all
    ├── ExampleError       an example input the network does not accept
    ├── MaskError          a mask, or a mask file, that is not usable
    │   └── MaskMismatch   a mask of another network
    ├── DataError          images that are missing, damaged or of an unknown kind
    ├── WeightsError       a weight file that cannot be read or does not fit
    ├── TrainingError      training that cannot go on
    ├── RunError           a run folder that cannot be read, written or continued
    │   └── RunBusyError   another process is at work in it
    ├── PlanError          a network that cannot become a plan for two parties, or a plan that is not believed
    ├── PeerError          the other party of a private inference is gone, refuses, or says what cannot be believed
    ├── MaterialError      offline material that is missing, spent or of another plan
    └── OptionError        an option, or a name, that does not exist

Each is also the built-in error a caller would expect, and its message is one sentence: what is wrong, what was
got, what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ReluctantError(Exception):
    """The root of the family: catch this to catch all of them."""


class BudgetError(ReluctantError, ValueError):
    """A budget that cannot be read, or that this network cannot meet."""


class ModelError(ReluctantError, ValueError):
    """A network we cannot work with."""


class TraceError(ModelError):
    """A network whose ReLU calls cannot be found or replaced."""


class NoReLUError(ModelError):
    """A network without a ReLU call."""


class ExampleError(ReluctantError, ValueError):
    """An example input the network does not accept."""


class MaskError(ReluctantError, ValueError):
    """A mask, or a mask file, that is not usable."""


class MaskMismatch(MaskError):  # noqa: N818 - the name says what happened
    """A mask of another network."""


class DataError(ReluctantError, ValueError):
    """Images that are missing, damaged or of an unknown kind."""


class WeightsError(ReluctantError, ValueError):
    """A weight file that cannot be read or does not fit."""


class TrainingError(ReluctantError, ValueError):
    """Training that cannot go on."""


class RunError(ReluctantError, ValueError):
    """A run folder that cannot be read, written or continued."""


class RunBusyError(RunError):
    """A run folder that another process is at work in."""


class PlanError(ReluctantError, ValueError):
    """A network that cannot become a plan for two parties, or a plan that is not believed."""


class PeerError(ReluctantError, ValueError):
    """The other party of a private inference is gone, refuses, or says what cannot be believed."""


class MaterialError(ReluctantError, ValueError):
    """Offline material that is missing, spent or of another plan."""


class OptionError(ReluctantError, ValueError):
    """An option, or a name, that does not exist."""


def unknown(what: str, got: str, known: Iterable[str]) -> OptionError:
    """Make the error for a name that is not among the known ones, with the nearest one suggested.

    >>> print(unknown("architecture", "resnet8", ["resnet18", "vgg"]))
    unknown architecture 'resnet8'; did you mean 'resnet18'? known: resnet18, vgg
    """
    names = list(known)
    near = get_close_matches(got, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return OptionError(f"unknown {what} '{got}'; {hint}known: {', '.join(names)}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, for a sentence of ours to quote.

    >>> first_line(OSError("no room\\nreally none"))
    'no room'
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]
