"""A copy of a model in which other modules stand where its ReLU calls were."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx, nn
from torch.nn import functional as F

from reluctant._trace import Trace
from reluctant._tracer import module_paths
from reluctant.errors import ModelError


def replace_sites(
    root: nn.Module, trace: Trace | None, inputs: Mapping[str, Any], modules: Mapping[str, nn.Module]
) -> nn.Module:
    """Put a module at every named site of `root`, a copy that is ours to change.

    Args:
        root: the copy.
        trace: its graphs; None where torch.fx could not follow it and every site is a module called once.
        inputs: what the example handed to forward, by name.
        modules: what to put at each site; it becomes the submodule of that name.

    Returns:
        The changed network. Parameters and buffers keep their names.
    """
    if trace is None:
        by_module = module_paths(root)
        for name, module in modules.items():
            for path in by_module[root.get_submodule(name)]:
                put_at_site(root, path, module)
        return root
    for name, module in modules.items():
        put_at_site(root, name, module)
    for graph in {id(graph): graph for graph in trace.graphs.values()}.values():
        for node in [node for node in graph.nodes if node.meta.get("site") in modules]:
            _call_module(graph, node)
    return Rewired(root, trace.graphs, inputs)


def put_at_site(root: nn.Module, path: str, module: nn.Module) -> None:
    """Make a module the submodule at that path, and let it know that it stands at a site."""
    module.reluctant_site = True  # type: ignore[assignment]
    parent_path, _, name = path.rpartition(".")
    parent = root.get_submodule(parent_path)
    parent.__dict__.pop(name, None)  # such as `self.relu = F.relu`, which the graph has no use for
    parent._modules[name] = module


def _call_module(graph: fx.Graph, node: fx.Node) -> None:
    with graph.inserting_after(node):
        call = graph.call_module(node.meta["site"], (node.all_input_nodes[0],))
    call.meta = node.meta
    node.replace_all_uses_with(call)
    graph.erase_node(node)


class Rewired(nn.Module):
    """A network that computes what its graphs say, one for training and one for evaluation.

    It has the parameters, buffers, submodules and data attributes of the model it was made from, but not its methods:
    they would still call the ReLUs that were replaced.
    """

    def __init__(self, root: nn.Module, graphs: dict[bool, fx.Graph], inputs: Mapping[str, Any]) -> None:
        super().__init__()
        self.__dict__.update({name: value for name, value in vars(root).items() if not callable(value)})
        self._graphs = _Graphs(graphs)
        self._made_from = getattr(root, "_made_from", type(root).__name__)
        self._names = list(inputs)
        traced = {str(node.target) for node in graphs[False].nodes if node.op == "placeholder"}
        self._fixed = {name: value for name, value in inputs.items() if name not in traced}
        self._defaults = getattr(root, "_defaults", None) or _defaults(root)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the graph of the current mode."""
        if self._fixed:
            kwargs = self._checked(args, kwargs)
            args = ()
        return self._graphs.functions[self.training](self, *args, **kwargs)

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Take out the arguments that were no tensors in the example: the graph was made for those values."""
        given = dict(zip(self._names, args, strict=False)) | kwargs
        for name, value in self._fixed.items():
            if given.pop(name, self._defaults.get(name)) != value:
                raise ModelError(f"this copy was made for {name}={value!r}; pass that, or copy with another example")
        return given

    @property
    def traced_signature(self) -> inspect.Signature:
        """What forward takes: the inputs that the example had."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self._names])

    def copied_trace(self) -> Trace:
        """Return graphs of one's own, ready to be changed."""
        evaluation, training = self._graphs.graphs[False], self._graphs.graphs[True]
        mine = copy.deepcopy(evaluation)
        return Trace({False: mine, True: mine if training is evaluation else copy.deepcopy(training)})

    def _get_name(self) -> str:
        return f"{type(self).__name__}[{self._made_from}]"


def _defaults(root: nn.Module) -> dict[str, Any]:
    parameters = inspect.signature(root.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


class _Graphs:
    """Graphs and the functions compiled from them; shared between copies of a network, since neither ever changes."""

    def __init__(self, graphs: dict[bool, fx.Graph]) -> None:
        self.graphs = graphs
        compiled = {id(graph): _compiled(graph) for graph in graphs.values()}
        self.functions = {training: compiled[id(graph)] for training, graph in graphs.items()}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Graphs:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        same = self.graphs[True] is self.graphs[False]
        return _unpickled, (_named(self.graphs[False]), None if same else _named(self.graphs[True]))


class _Function:
    """A function of torch.nn.functional by name: some of them are closures, which cannot be pickled."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(F, self.__name__)(*args, **kwargs)


def _named(graph: fx.Graph) -> fx.Graph:
    graph = copy.deepcopy(graph)
    names = {id(value): name for name, value in vars(F).items() if callable(value)}
    for node in graph.nodes:
        if (
            node.op == "call_function"
            and "<locals>" in getattr(node.target, "__qualname__", "")
            and id(node.target) in names
        ):
            node.target = _Function(names[id(node.target)])
    return copy.deepcopy(graph)  # this one has forgotten the old targets


def _unpickled(evaluation: fx.Graph, training: fx.Graph | None) -> _Graphs:
    for graph in (evaluation, training):
        for node in graph.nodes if graph is not None else ():
            if isinstance(node.target, _Function):
                node.target = getattr(F, node.target.__name__)
    return _Graphs({False: evaluation, True: evaluation if training is None else training})


def _compiled(graph: fx.Graph) -> Callable[..., Any]:
    code = graph.python_code("self")
    namespace = dict(code.globals)
    exec(compile(code.src, "<the traced graph of a network>", "exec"), namespace)
    function: Callable[..., Any] = namespace["forward"]
    return function
