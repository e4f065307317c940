"""Counts a GPU's work without one: operations and bytes of training steps on the meta device; for count_gpu_work.py.

Outside of compiled regions each operation of PyTorch is a launch that reads its inputs and writes its results. A
compiled region is counted by the graph that torch.compile hands to its compiler: products and attention are launches
of their own, and what lies between two of them is fused, so that it reads what comes from outside and writes what is
used outside. Sums over tokens are finished by a second launch: the gradients of a normalisation's gains, whose partial
sums the launch of its rows leaves, and those of biases, which are launches of their own. PyTorch 2.11 makes as many
launches for an H100 as are counted here: 7 and 12 for an encoder and a decoder layer, 22 and 33 for their gradients.
"""

import math
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.utils._python_dispatch import TorchDispatchMode

import heed
from heed.backends.gpu.network import Regions
from heed.backends.gpu.passes import GpuPasses
from heed.backends.gpu.training import GpuTrainingBackend
from heed.backends.training_protocol import PassSettings
from heed.model.transformer import Transformer
from heed.runtime.device import compiles_layers

aten = torch.ops.aten
PACKAGE = str(Path(heed.__file__).parent)
# What only allocates, or is a view.
FREE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize_", "detach", "_unsafe_view"}
# What writes without reading.
WRITES = {"zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "new_zeros", "new_full", "arange", "zero_"}
WRITES |= {"fill_", "rand", "bernoulli_", "scalar_tensor"}
# What reads as much of its first tensor as it writes.
LOOK_UPS = {"embedding", "index_select", "gather"}
# In a compiled region: launches of other libraries' kernels.
EXTERNAL = {"mm", "addmm", "bmm", "relu_product", "_varlen_attn", "_varlen_attn_backward"}
# Additions to rows of a result that another launch has filled with zeros; what they add is computed on the way.
SCATTERS = {"index_put", "_unsafe_masked_index_put_accumulate"}
REDUCTIONS = {"sum", "mean", "amax", "var_mean", "prod"}
# Of an element-wise result that several read, when its compiler computes it anew for each (realize_reads_threshold).
MAX_REUSED_READS = 4
# Of a launch that sums rows and columns (mix_order_reduction_max_reads), and the rows whose sum it leaves to another.
MAX_MIXED_READS = 10
MIXED_ROWS = 16
PARTS = ("forward", "losses", "backward", "gradients", "step", "adam", "upload")


@dataclass
class Cost:
    """Launches, and the bytes that they read and write."""

    launches: int = 0
    bytes: int = 0

    def add(self, other: "Cost") -> None:
        self.launches += other.launches
        self.bytes += other.bytes


@dataclass
class RegionCount:
    """The calls of one compiled graph, forward or backward, and the cost of each."""

    cost: Cost
    calls: int = 0


@dataclass
class WorkCount:
    """What was counted: operations outside of compiled regions by part, and the regions' graphs by name."""

    outside: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    regions: dict[str, RegionCount] = field(default_factory=dict)

    @property
    def n_outside(self) -> int:
        """Operations outside of compiled regions."""
        return sum(cost.launches for cost in self.outside.values())

    @property
    def n_inside(self) -> int:
        """Launches of compiled regions."""
        return sum(region.calls * region.cost.launches for region in self.regions.values())

    @property
    def n_regions(self) -> int:
        """Compiled graphs, forward and backward counted as one."""
        return sum("forward" in name for name in self.regions)

    @property
    def n_bytes(self) -> int:
        """Bytes read and written by all of them."""
        inside = sum(region.calls * region.cost.bytes for region in self.regions.values())
        return inside + sum(cost.bytes for cost in self.outside.values())

    def clear(self) -> None:
        """Counts anew; compiled graphs stay known."""
        self.outside.clear()
        for region in self.regions.values():
            region.calls = 0


class _Counting(TorchDispatchMode):
    def __init__(self, work: WorkCount):
        super().__init__()  # type: ignore[no-untyped-call]
        self.work, self.in_region = work, False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """That torch.compile may compile within the block, as if this mode were PyTorch's own."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        on_meta = any(tensor.is_meta for tensor in _tensors([args, list(kwargs.values())]))
        if name == "_fused_adam_":  # which has no kernel for the meta device
            result = None
        else:
            result = func(*args, **kwargs)
            on_meta = on_meta or any(tensor.is_meta for tensor in _tensors(result))
        if on_meta and not self.in_region and not func.is_view and name not in FREE:
            cost = Cost(1, _bytes_of(name, args, kwargs, result))
            self.work.outside[_part()].add(cost)
        return result


@contextmanager
def counted() -> Iterator[WorkCount]:
    """Within the block the work of training on the meta device is counted, its layers compiled for counting alone."""
    work = WorkCount()
    with _Counting(work) as mode:
        regions = Regions(partial(_region_compiler, mode) if compiles_layers() else lambda name: None)

        def counted_passes(backend: object, model: Transformer, totals: Tensor, settings: PassSettings) -> GpuPasses:
            return GpuPasses(model, totals, settings, regions)

        with patch.object(GpuTrainingBackend, "training_passes", counted_passes):
            yield work


def _region_compiler(mode: _Counting, name: str) -> Callable[..., Any]:
    """How torch.compile compiles a region to be counted."""

    def compiler(direction: str) -> Callable[[fx.GraphModule, Any], Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Any) -> Any:
            n_before = sum(known.startswith(f"{name} {direction}") for known in mode.work.regions)
            region = RegionCount(graph_cost(graph.graph))
            mode.work.regions[f"{name} {direction}{f' ({n_before + 1})' if n_before else ''}"] = region

            def run(values: list[Any]) -> Any:
                region.calls += 1
                mode.in_region = True
                try:
                    return graph(*values)
                finally:
                    mode.in_region = False
                    values.clear()

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_graph

    return aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )


def graph_cost(graph: fx.Graph) -> Cost:
    """Launches and bytes of a compiled graph, by the rule at the head of this file."""
    total = Cost()
    for launch in _launches(graph):
        sums = [node for node in launch.members if _over_tokens(node)]
        is_mixed = any(_name(node) in REDUCTIONS and node not in sums for node in launch.members)
        partial = sum(_node_bytes(cast(fx.Node, node.args[0])) // MIXED_ROWS for node in sums) if is_mixed else 0
        n_launches = 1 + (len(sums) if is_mixed else bool(sums))
        total.add(Cost(n_launches, sum(map(_node_bytes, launch.read | launch.written)) + 2 * partial))
    return total


@dataclass
class _Launch:
    """Nodes whose results are computed together, what they read, and which results are written."""

    members: list[fx.Node]
    read: set[fx.Node]
    written: set[fx.Node]


def _launches(graph: fx.Graph) -> list[_Launch]:
    """The launches of a graph.

    As torch.compile's own compiler does, element-wise results are computed anew wherever they are read, unless an
    external launch or the caller reads them or they would have to read much again. What remains are external launches,
    sums and those results: two of them share a launch if one reads the other or both read the same, and no external
    launch lies between. A product takes a sum with its result, which only that sum reads, into its own launch.
    """
    # Results that are written to memory, and what each reads of others that are.
    compute = [node for node in graph.nodes if node.op == "call_function" and not _is_free(node)]
    scatters = {node for node in compute if _name(node) in SCATTERS}
    external = {node for node in compute if _name(node) in EXTERNAL} | scatters
    (result,) = [node for node in graph.nodes if node.op == "output"]
    outputs = {_memory(node) for node in result.all_input_nodes}
    written = {source for node in external - scatters for source in _sources(node)}
    written = {_maker(node) for node in outputs | written | {_sources(node)[0] for node in scatters}}
    inputs: dict[fx.Node, set[fx.Node]] = {}
    reads: dict[fx.Node, set[fx.Node]] = {}
    reused = set[fx.Node]()
    for node in compute:
        found = set[fx.Node]()
        for source in _sources(node):
            found |= {source} if _maker(source) in inputs else reads.get(source, {source})
        reads[node] = found
        if node in external or node in written or _name(node) in REDUCTIONS:
            inputs[node] = found
        elif len(found) > MAX_REUSED_READS and len(node.users) > 1:
            inputs[node] = found
            reused.add(node)
    kept = list(inputs)
    # The number of external launches on the longest way to each, or as many as its first reader has.
    readers: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    depth: dict[fx.Node, int] = {}
    for node in kept:
        makers = [maker for maker in map(_maker, inputs[node]) if maker in depth]
        depth[node] = max((depth[maker] + (maker in external or node in external) for maker in makers), default=0)
        for maker in makers:
            readers[maker].append(node)
    for node in reversed(kept):
        if node not in external and readers[node]:
            depth[node] = max(depth[node], min(depth[reader] - (reader in external) for reader in readers[node]))
    # Connected ones of one depth. Sums over tokens join a row's sums if these read little (mix_order_reduction).
    # What both read, and nothing else needs in memory, is a launch before them.
    before_sums = {source for node in kept if _over_tokens(node) for source in inputs[node] & reused}
    before_sums -= {source for node in kept for source in inputs[node] & reused if depth[source] < depth[node]}
    group = {node: {node} for node in kept}
    first: dict[tuple[fx.Node, int], fx.Node] = {}
    for node in kept:
        if node not in external:
            for source in inputs[node] | {node}:
                other = first.setdefault((source, depth[node]), node)
                joined = group[other] | group[node]
                if group[other] is not group[node] and not before_sums & joined and _share_a_loop(joined, inputs):
                    group |= dict.fromkeys(joined, joined)
    groups = {id(members): [node for node in kept if node in members] for members in group.values()}
    # What a launch reads from outside, each once, and what another one or the caller reads of it.
    launches = []
    for members in groups.values():
        inside = set(members)
        read = {source for node in members for source in inputs[node] if _maker(source) not in inside}
        launches.append(_Launch(members, read, {node for node in outputs if _maker(node) in inside}))
    launch_of = {node: launch for launch in launches for node in launch.members}
    for launch in launches:
        for source in launch.read:
            if _maker(source) in launch_of:
                launch_of[_maker(source)].written.add(source)
    return [launch for launch in launches if not _is_part_of_a_product(launch, launch_of)]


def _is_part_of_a_product(launch: _Launch, launch_of: dict[fx.Node, _Launch]) -> bool:
    """Whether it only adds to a product that nobody else reads: the product's launch then reads and writes for it."""
    (node, *others) = launch.members
    if others or _name(node) != "add" or node not in launch.written:
        return False
    for product in launch.read:
        if _name(product) == "mm" and len(product.users) == 1:
            host = launch_of[product]
            host.read |= launch.read - {product}
            host.written = launch.written
            return True
    return False


def _share_a_loop(members: set[fx.Node], inputs: dict[fx.Node, set[fx.Node]]) -> bool:
    """Whether the compiler makes one launch of these, which read the same or one another."""
    sums = {node for node in members if _over_tokens(node)}
    if not sums or sums == members:
        return True
    # With a row's sums if they begin with what these begin with.
    sums_rows = any(_name(node) in REDUCTIONS for node in members - sums)
    read = {source for node in members for source in inputs[node]}
    return sums_rows and not any(inputs[node] & members for node in sums) and len(read - members) <= MAX_MIXED_READS


def _is_free(node: fx.Node) -> bool:
    """Whether a node launches nothing: views, sizes, the parts of a result."""
    if not hasattr(node.target, "overloadpacket"):
        return True
    return bool(cast(Any, node.target).is_view) or _name(node) in FREE or _name(node) in ("as_strided", "sym_size")


def _over_tokens(node: fx.Node) -> bool:
    """Whether it is a sum over the first of several axes, as gradients of gains are: another loop than a row's."""
    over = node.args[1] if _name(node) == "sum" and len(node.args) > 1 else None
    return isinstance(over, (list, tuple)) and 0 in over and len(_shape(node.args[0])) > 1


def _name(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet.__name__) if packet is not None else getattr(node.target, "__name__", str(node.target))


def _shape(node: Any) -> list[int]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return [int(size) for size in value.shape] if isinstance(value, Tensor) else []


def _sources(node: fx.Node) -> list[fx.Node]:
    """The memory that it reads."""
    return [_memory(source) for source in node.all_input_nodes]


def _memory(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows: a result, one of several results of an operation, or an input."""
    while node.op == "call_function" and _is_free(node) and not _is_part(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _maker(node: fx.Node) -> fx.Node:
    """The operation whose result, or one of whose results, this memory is."""
    return node.all_input_nodes[0] if _is_part(node) else node


def _is_part(node: fx.Node) -> bool:
    """Whether it is one of several results of an operation."""
    return node.target is operator.getitem and not _is_free(node.all_input_nodes[0])


def _node_bytes(node: fx.Node) -> int:
    return sum(_tensor_bytes(tensor) for tensor in _tensors(node.meta.get("val")))


def _tensor_bytes(tensor: Tensor) -> int:
    """Of the numbers that lie in memory: an expanded axis is read once."""
    sizes = [int(size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0]
    return math.prod(sizes) * tensor.element_size()


def _bytes_of(name: str, args: Any, kwargs: dict[str, Any], result: Any) -> int:
    """Bytes that an operation outside of regions reads and writes."""
    results = _tensors(result)
    if name in WRITES:
        return sum(map(_tensor_bytes, results or _tensors(args)[:1]))
    if name in LOOK_UPS:
        return 2 * sum(map(_tensor_bytes, results))
    given = _tensors([args, list(kwargs.values())])
    if name in ("copy_", "_foreach_copy_"):
        return sum(map(_tensor_bytes, given))
    written = [tensor for tensor in results if not any(tensor is other for other in given)]
    in_place = name.endswith("_") and name != "_fused_adam_"
    first = _tensors(args[0]) if in_place else []
    # In place: read and written. Adam reads weights, gradients and both moments and writes all but the gradients.
    again = [t for group in (args[0], args[2], args[3]) for t in _tensors(group)] if name == "_fused_adam_" else first
    return sum(map(_tensor_bytes, [*given, *written, *again]))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _part() -> str:
    """The part of a step to which the running code belongs: by the innermost of Heed's functions."""
    frame, in_backward = sys._getframe(2), False
    while frame is not None:
        code = frame.f_code
        in_backward |= code.co_name in ("backward", "grad") and "autograd" in code.co_filename
        if code.co_filename.startswith(PACKAGE):
            if in_backward:
                return "backward"
            return _PART_OF.get(code.co_qualname.rpartition(".")[2].lstrip("_"), "step")
        frame = frame.f_back  # type: ignore[assignment]
    return "step"


_PART_OF = {
    **dict.fromkeys(("forward", "position_table", "kept", "embed", "encoder_layer", "decoder_layer"), "forward"),
    **dict.fromkeys(("final_norm", "attend_to_itself", "attend_to_memory", "split_heads"), "forward"),
    **dict.fromkeys(("losses", "smoothed_loss_", "consistent_loss_"), "losses"),
    "compute": "gradients",
    "backward": "backward",
    "update": "adam",
    "send": "upload",
}
