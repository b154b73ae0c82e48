"""Look at a network once: copy it, run the example, find every ReLU call and every other non-linear operation.

torch.fx is asked first. Where it cannot follow the network, modules are: if every ReLU that runs is a module called
exactly once, it can be replaced as a module. What neither can do is an error that says what to change.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from reluctant._example import Example, arguments, batch_size, describe
from reluctant._observe import Observed, Observer, Place, visible_attention
from reluctant._randomness import undisturbed
from reluctant._rewired import Rewired
from reluctant._trace import Trace, random_states, trace
from reluctant._tracer import is_site, module_paths, named_inputs
from reluctant.errors import ExampleError, ModelError, TraceError, first_line

log = logging.getLogger(__name__)

CHANCES = 16
"""How often a network that draws random numbers is asked whether it calls the same modules every time."""


@dataclass(frozen=True)
class Surveyed:
    """A copy of a network, ready for its sites to be replaced, and what was found in it."""

    root: nn.Module
    trace: Trace | None
    """None where torch.fx cannot follow the network and every ReLU is a module called once."""
    shapes: dict[str, tuple[int, ...]]
    """Of one example, by site, in the order of the calls."""
    observed: list[Observed]
    inputs: dict[str, Any]
    """What the example hands to forward, by name."""

    def called(self, site: str) -> str | None:
        """Return the path of the ReLU module that is called there, if one is."""
        if self.trace is None:
            return site
        return next((node.meta.get("called") for name, node in self.trace.site_nodes(False) if name == site), None)

    def standing(self, site: str) -> nn.Module | None:
        """Return the module that we have put there before, if any."""
        module = dict(self.root.named_modules(remove_duplicate=False)).get(site)
        return module if module is not None and getattr(module, "reluctant_site", False) else None

    def evaluated(self, site: str) -> int:
        """Return how many elements pass through a ReLU there; a network may have been masked before."""
        module, size = self.standing(site), prod(self.shapes[site])
        return 0 if isinstance(module, nn.Identity) else int(getattr(module, "count", size))


def look(model: nn.Module, example: Example) -> Surveyed:
    """Survey `model`, which stays as it is.

    Raises:
        ExampleError: it does not accept the example.
        ModelError: it is in half precision, or cannot be copied.
        TraceError: its ReLUs can be found neither by torch.fx nor by modules.
    """
    with undisturbed():
        return _look(model, example)


def _look(model: nn.Module, example: Example) -> Surveyed:
    _check_model(model)
    batch = batch_size(example)
    root = _copied(getattr(model, "_orig_mod", model))  # torch.compile wraps the network there
    flags = [(module, module.training) for module in root.modules()]
    expected = _run(root.eval(), example)
    traced: Trace | None = None
    try:
        traced = root.copied_trace() if isinstance(root, Rewired) else trace(root, example)
        shapes, observed = _walk(root.eval(), traced, example, batch, expected)
    except TraceError as error:
        shapes, observed = _call_modules(root.eval(), example, batch, error)
        log.warning("%s; its ReLU modules are taken instead, as if every input passed through all of them", error)
        traced = None
    for module, flag in flags:
        module.training = flag
    return Surveyed(root, traced, shapes, observed, named_inputs(root, example))


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"the network is a {type(model).__name__} ({model!r:.60}); pass an nn.Module, an instance of its class"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("the network is compiled by torch.jit; pass the nn.Module that it was made from")
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ModelError(f"the network's '{name}' is on the meta device and has no values; load its weights first")
        if parameter.is_floating_point() and parameter.dtype not in (torch.float32, torch.float64):
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ModelError(
                f"the network's '{name}' is in {kind}; call model.float() first and leave the rest to autocast"
            )


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ModelError(f"the network cannot be copied with copy.deepcopy: {first_line(error)}") from error


def _run(root: nn.Module, example: Example) -> Any:
    named_inputs(root, example)  # whether it fits the signature
    args, kwargs = arguments(example)
    try:
        with torch.no_grad():
            return root(*args, **kwargs)
    except Exception as error:  # the user's code runs in there: anything can come out
        raise ExampleError(
            f"the network does not accept an example of shape {describe(example)}: {first_line(error)}"
        ) from error


class _Walker(fx.Interpreter):
    """Runs a graph, keeps what every site returned, and observes everything else."""

    def __init__(self, root: nn.Module, graph: fx.Graph, observer: Observer) -> None:
        super().__init__(root, graph=graph)
        self.outputs: dict[str, Tensor] = {}
        self._observer = observer

    def run_node(self, n: fx.Node) -> Any:
        """Run one call."""
        site = n.meta.get("site")
        with self._observer.at(None if site else Place(n.meta.get("caller", ""), n.op == "call_module")):
            out = super().run_node(n)
        if site:
            self.outputs[site] = out
        return out


def _walk(
    root: nn.Module, traced: Trace, example: Example, batch: int, expected: Any
) -> tuple[dict[str, tuple[int, ...]], list[Observed]]:
    """Run the evaluation graph on the example, and compare with what the network itself computed."""
    graph = traced.graphs[False]
    observer = Observer(batch)
    walker = _Walker(root, graph, observer)
    inputs = named_inputs(root, example)
    with torch.no_grad(), visible_attention(), observer:
        out = walker.run(*(inputs[str(node.target)] for node in graph.nodes if node.op == "placeholder"))
    if not _same(out, expected) and _same(_run(root, example), expected):
        raise TraceError(
            f"the traced {type(root).__name__} does not compute what the network computes: it changes a tensor in place "
            "through a view, or decides by the values of its input; write its ReLUs out of place"
        )
    shapes: dict[str, tuple[int, ...]] = {}
    folded = _folded(root, graph, inputs, batch)
    for site, value in walker.outputs.items():
        by_example = value.dim() > 0 and value.shape[0] == batch and site not in folded
        if value.is_floating_point() and by_example and traced.reads_input(site):
            shapes[site] = tuple(value.shape[1:])
            continue
        if traced.reads_input(site):  # of a parameter alone, it is the server's own business and costs nothing
            observer.note(Place(site, leaf=True), "relu" if value.is_floating_point() else "clamp", value.numel())
        traced.forget(site)
    return shapes, observer.observed


def _folded(root: nn.Module, graph: fx.Graph, inputs: dict[str, Any], batch: int) -> set[str]:
    """Return the sites whose first dimension does not grow with the batch, though it happens to have its size."""

    def longer(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor[:1]]) if tensor.dim() > 0 and tensor.shape[0] == batch else tensor

    walker = _Walker(root, graph, Observer(batch))
    more = pytree.tree_map_only(Tensor, longer, inputs)
    try:
        with torch.no_grad():
            walker.run(*(more[str(node.target)] for node in graph.nodes if node.op == "placeholder"))
    except Exception as error:  # a network may insist on its batch size
        log.info("the network does not accept a batch of %d: %s", batch + 1, first_line(error))
        return set()
    return {site for site, value in walker.outputs.items() if value.dim() == 0 or value.shape[0] != batch + 1}


def _same(one: Any, other: Any) -> bool:
    ones, others = _leaves(one), _leaves(other)
    return len(ones) == len(others) and all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) if isinstance(a, Tensor) else bool(a == b)
        for a, b in zip(ones, others, strict=True)
    )


def _leaves(value: Any) -> list[Any]:
    """The tensors and plain values in what a network returns, also inside dataclasses."""
    found: list[Any] = []
    for leaf in pytree.tree_leaves(value):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            found += [each for field in fields(leaf) for each in _leaves(getattr(leaf, field.name))]
        else:
            found.append(leaf)
    return found


def _call_modules(
    root: nn.Module, example: Example, batch: int, why: TraceError
) -> tuple[dict[str, tuple[int, ...]], list[Observed]]:
    """Find the ReLU modules that run, each exactly once; any other ReLU makes the network untraceable for good."""
    observer = Observer(batch)
    shapes: dict[str, tuple[int, ...]] = {}
    calls: dict[str, int] = {}
    beyond: dict[str, int] = {}
    inside: list[Any] = []

    def enter(place: Place | None) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            inside.append(observer.at(place))
            inside[-1].__enter__()

        return hook

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        inside.pop().__exit__(None, None, None)

    def record(path: str) -> Any:
        def hook(module: nn.Module, args: Any, out: Tensor) -> None:
            calls[path] = calls.get(path, 0) + 1
            if out.dim() > 0 and out.shape[0] == batch:
                shapes[path] = tuple(out.shape[1:])
            else:
                beyond[path] = out.numel()

        return hook

    handles = []
    relus = [path for module, (path, *_) in module_paths(root).items() if is_site(module)]
    for module, (path, *_) in module_paths(root).items():
        relu = is_site(module)
        place = None if relu else Place(path, leaf=not list(module.children()))
        handles += [module.register_forward_pre_hook(enter(place)), module.register_forward_hook(leave)]
        if relu:
            handles.append(module.register_forward_hook(record(path)))
    with visible_attention(), observer:
        _run(root, example)
    first, seen = dict(calls), len(observer.observed)
    before = random_states(root)
    problem = None
    for _ in range(CHANCES):
        calls.clear()
        with visible_attention(), observer:
            _run(root, example)
        again = [one.kind for one in observer.observed[seen:]]
        del observer.observed[seen:]
        if calls != first or again != [one.kind for one in observer.observed]:
            problem = "its calls are not the same every time"
        if random_states(root) == before:  # nothing is left to chance
            break
    calls.update(first)
    for handle in handles:
        handle.remove()
    repeated = next((path for path, n in calls.items() if n > 1), None)
    if repeated is not None:
        problem = f"module '{repeated}' is called {calls[repeated]} times"
    never = [path for path in relus if path not in calls]
    if never:
        problem = f"module '{never[0]}' is not called for this example, but may be for another"
    functional = next((one for one in observer.observed if one.kind == "relu"), None)
    if functional is not None:
        where = f"module '{functional.place.path}'" if functional.place.path else type(root).__name__
        problem = f"{where} calls a ReLU that is not a module at {functional.line}"
    for path, elements in beyond.items():
        observer.note(Place(path, leaf=True), "relu", elements)
    if problem:
        raise TraceError(
            f"{why}; and {problem}: give every ReLU call an nn.ReLU of its own that every input passes through"
        ) from why
    return shapes, observer.observed
