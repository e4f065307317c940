"""A "cuda" device that computes on the CPU: the code written for a GPU runs, with numbers, on a machine without one.

`emulated_cuda` opens the device. Its tensors say that they are on cuda:0; their numbers lie in CPU memory and are
computed there. It raises what a GPU would raise for tensors on different devices, counts every place where Heed's code
would wait for a GPU, and counts operations. A copy that has not arrived holds garbage, so a value read too early shows.

It cannot show speed, which of PyTorch's kernels runs, real memory use, races between streams, or NCCL. It is stricter
than a GPU in two points: a copy sent with non_blocking arrives only when an event recorded after it, or the whole
device, is waited for, where on a GPU any later wait would do; and to write one number where a mask is true counts as a
wait. real.py opens a real GPU.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import heed

aten = torch.ops.aten
CUDA = torch.device("cuda:0")
PLAIN_ATTENTION, PLAIN_NUMPY = F.scaled_dot_product_attention, Tensor.numpy
MEMORY_BYTES = 80 * 2**30
HEED = Path(heed.__file__).parent

COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
RANDOM = {aten.rand.default, aten.native_dropout.default, aten.bernoulli.default, aten.bernoulli_.float}
# Operations whose result, or its shape, the CPU must know before it goes on.
READ_BACK = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten.unique_dim.default,
    aten._unique2.default,
}


class Wait(NamedTuple):
    """Where Heed waits for the device, and what for."""

    file: str  # relative to the package
    function: str
    cause: str


class CudaTensor(Tensor):
    """A tensor that says that it is on cuda:0, around a CPU tensor with its numbers.

    PyTorch's C++ code takes it for a meta tensor: builds without CUDA refuse to make any other.
    """

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "CudaTensor":
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device="meta",
        )
        tensor.numbers = numbers
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func}: a tensor of an emulated device was used after the device was closed")

    # With these two nn.Module.to swaps a parameter in place instead of making another, so shared matrices stay shared.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], context: None, size: Any, stride: Any) -> "CudaTensor":
        return CudaTensor(parts["numbers"])

    def __deepcopy__(self, memo: dict[int, Any]) -> "CudaTensor":
        if id(self) not in memo:
            copied = CudaTensor(self.numbers.detach().clone()).requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copied._is_param = True
            memo[id(self)] = copied
        copy: CudaTensor = memo[id(self)]
        return copy

    # PyTorch would make indices of a list on the meta device, without their numbers.
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_sent_lists(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_sent_lists(index), value)

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"CudaTensor({self.numbers!r})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")


def _sent_lists(index: Any) -> Any:
    """An index whose lists have become tensors on the device, by a copy as on a GPU."""
    if isinstance(index, tuple):
        return tuple(map(_sent_lists, index))
    return torch.tensor(index).to(CUDA) if isinstance(index, list) else index


def _mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """An operation's arguments or results with every tensor changed: three times as fast as torch's pytree."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(change, part) for part in value])
    return value


def _tensors(value: Any) -> list[Tensor]:
    """All of an operation's arguments or results."""
    found: list[Tensor] = []
    _mapped(found.append, value)
    return found


class WaitCounter:
    """Counts how often Heed's code waits for a device, by place."""

    def __init__(self, watched: Path) -> None:
        self._watched = str(watched)
        self.forget()

    def forget(self) -> None:
        """Starts counting anew."""
        self.waits: Counter[Wait] = Counter()

    def places(self) -> set[tuple[str, str]]:
        """(file, function) of all waits."""
        return {(wait.file, wait.function) for wait in self.waits}

    def wait(self, cause: str) -> None:
        """Counts a wait for the innermost of the watched functions that are being executed."""
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(self._watched):
            frame = frame.f_back
        if frame is not None:  # else a test looks at numbers
            file = Path(frame.f_code.co_filename).relative_to(self._watched).as_posix()
            self.waits[Wait(file, frame.f_code.co_qualname.partition(".<locals>")[0], cause)] += 1


class EmulatedCuda(WaitCounter, TorchDispatchMode):
    """The device: runs every operation of the block, and keeps account of it.

    waits: how often Heed's code waited for the device, by place. operations: how often each ran on the device, by
    name. mask_operations: those among them that read or wrote booleans, views left out. largest_allocation: an
    operation whose result has more bytes raises torch.OutOfMemoryError. allocated: the results in memory of their
    own, by (type, how many numbers); n_allocations: how many of them lie outside of graphs. graphs: all CUDA graphs
    that were captured.
    """

    def __init__(self, watched: Path) -> None:
        TorchDispatchMode.__init__(self)
        WaitCounter.__init__(self, watched)
        self.largest_allocation: float = MEMORY_BYTES
        self.n_sent = 0  # copies to the CPU that nobody waited for when they were sent
        self.graphs: list[EmulatedGraph] = []
        self.capturing: EmulatedGraph | None = None
        self.stream: Any = EmulatedStream()  # the current one
        self.guarded = 0  # blocks of torch.cuda.device that are open
        self.generator_captures = False  # as after a recording that failed
        self._under_way: list[tuple[int, Tensor, Tensor]] = []  # of them: (which, where to, the numbers)

    def forget(self) -> None:
        """Starts counting anew, operations too."""
        super().forget()
        self.operations: Counter[str] = Counter()
        self.mask_operations: Counter[str] = Counter()
        self.allocated: Counter[tuple[torch.dtype, int]] = Counter()
        self.n_allocations = 0

    @property
    def n_recordings(self) -> int:
        """The graphs that were captured."""
        return len(self.graphs)

    @property
    def n_replays(self) -> int:
        """Of all graphs."""
        return sum(graph.n_replays for graph in self.graphs)

    def wait(self, cause: str) -> None:
        if self.capturing is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {cause}")
        super().wait(cause)

    def arrive(self, n_sent: int) -> None:
        """The CPU has waited for the first `n_sent` copies."""
        for number, target, numbers in self._under_way:
            if number <= n_sent:
                target.copy_(numbers)
        self._under_way = [copy for copy in self._under_way if copy[0] > n_sent]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The numbers must not become inference tensors, which no later step could write to.
        with torch.inference_mode(False), torch.no_grad():
            return self._run(func, args, dict(kwargs or {}))

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            with self:  # inference mode sends these undivided; the parts are what runs on the device
                return func.decompose(*args, **kwargs)
        tensors = _tensors([args, list(kwargs.values())])
        inputs = [tensor for tensor in tensors if isinstance(tensor, CudaTensor)]
        on_cpu = [tensor for tensor in tensors if not isinstance(tensor, CudaTensor)]
        if kwargs.get("device") is not None:
            on_device = torch.device(kwargs["device"]).type in ("cuda", "meta")  # C++ takes our tensors for meta ones
        else:
            on_device = isinstance(args[0], CudaTensor) if func is aten.copy_.default else bool(inputs)
        if not inputs and not on_device:
            return func(*args, **kwargs)
        self._check(func, args, inputs, on_cpu)
        if self.generator_captures and self.capturing is None and func in RANDOM:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        arrives_later = func in COPIES and self._check_copy(func, args, kwargs, on_device=on_device)
        if self.capturing is not None:
            if not on_device:
                raise RuntimeError("emulated: a graph whose copies to the CPU are part of it")
            self.capturing.keep_what_is_written(func, args, kwargs)
        result = self._computed(func, args, kwargs, on_device=on_device)
        self._count_operation(func, inputs, result)
        return self._sent(result) if arrives_later else result

    def _check(self, func: Any, args: Any, inputs: list[CudaTensor], on_cpu: list[Tensor]) -> None:
        """Raises for tensors on different devices, and counts an operation that the CPU waits for."""
        if inputs and func in READ_BACK:
            self.wait(str(func))
        if inputs and func in INDEXING:
            indices = [index for index in args[1] if index is not None]
            if any(isinstance(index, CudaTensor) and index.dtype == torch.bool for index in indices):
                self.wait(f"{func} by a mask")
            if any(not isinstance(index, CudaTensor) for index in indices):
                self.wait(f"{func} by indices in CPU memory")
        elif inputs and func not in COPIES and any(tensor.dim() > 0 or tensor.is_meta for tensor in on_cpu):
            raise RuntimeError(f"{func}: Expected all tensors to be on the same device, found cuda:0 and cpu!")

    def _check_copy(self, func: Any, args: Any, kwargs: dict[str, Any], *, on_device: bool) -> bool:
        """Whether it is a copy to the CPU that goes on while the CPU does; counts one that the CPU waits for."""
        if func is aten.copy_.default:
            (into, source), non_blocking = args[:2], len(args) > 2 and args[2]
        else:  # PyTorch pins the memory that .to("cpu", non_blocking=True) makes
            into, source, non_blocking = None, args[0], kwargs.get("non_blocking", False)
        if isinstance(source, CudaTensor) == on_device:
            return False
        in_memory = source if on_device else into
        pinned = in_memory is None or hasattr(in_memory, "pinned_by_emulation")
        if pinned and non_blocking:
            return not on_device
        self.wait(f"{'blocking' if pinned else 'pageable'} copy {'to the device' if on_device else 'to the CPU'}")
        return False

    def _computed(self, func: Any, args: Any, kwargs: dict[str, Any], *, on_device: bool) -> Any:
        """The operation on the numbers; what it writes to stays the tensor that it was."""
        known = {id(x.numbers): x for x in _tensors([args, list(kwargs.values())]) if isinstance(x, CudaTensor)}

        def numbers(x: Tensor) -> Tensor:
            return x.numbers if isinstance(x, CudaTensor) else x

        def placed(x: Tensor) -> Tensor:
            if id(x) in known:
                return known[id(x)]
            if x.nbytes > self.largest_allocation and not func.is_view:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {x.nbytes} bytes, emulated.")
            if not func.is_view:
                self.allocated[x.dtype, x.numel()] += 1
                self.n_allocations += self.capturing is None
            return CudaTensor(x)

        changes = {"device": torch.device("cpu"), "pin_memory": False}
        kwargs = kwargs | {name: value for name, value in changes.items() if kwargs.get(name) is not None}
        kwargs = {name: _mapped(numbers, value) for name, value in kwargs.items()}
        args = _mapped(numbers, args)
        results = func(*args, **kwargs)
        if self.capturing is not None and not func.is_view:
            written = [x for x in _tensors(results) if id(x) not in known]
            self.capturing.add(lambda: func(*args, **kwargs), results, written)
        return _mapped(placed, results) if on_device else results

    def _sent(self, copied: Tensor) -> Tensor:
        """The result of a copy to the CPU that nobody has waited for: wrong in every place."""
        self.n_sent += 1
        self._under_way.append((self.n_sent, copied, copied.clone()))
        return copied.fill_(torch.nan) if copied.is_floating_point() else copied.bitwise_not_()

    def count_attention(self, tensors: list[Tensor]) -> None:
        """Counts a call of torch's attention, which makes an additive mask of one of booleans itself."""
        if not all(isinstance(tensor, CudaTensor) for tensor in tensors):
            raise RuntimeError("attention: Expected all tensors to be on the same device, found cuda:0 and cpu!")
        self.operations["scaled_dot_product_attention"] += 1
        self.mask_operations["scaled_dot_product_attention"] += any(x.dtype == torch.bool for x in tensors)

    def _count_operation(self, func: Any, inputs: list[CudaTensor], result: Any) -> None:
        name = func.overloadpacket.__name__
        self.operations[name] += 1
        if not func.is_view and any(x.dtype == torch.bool for x in (*inputs, *_tensors(result))):
            self.mask_operations[name] += 1


class EmulatedStream:
    """A stream: all of them compute at once."""

    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass


class EmulatedGraph:
    """A CUDA graph: the operations of a region, with the memory that they read and write.

    While it is captured nothing is computed on a GPU, so what its operations wrote is undone at the end, and what they
    allocated holds garbage. `replay` computes on the very same memory: a tensor that moved since is not seen, and one
    whose shape would change cannot.
    """

    def __init__(self) -> None:
        self.n_replays = 0
        self.pool = self.stream = None
        self._operations: list[tuple[Callable[[], Any], list[Tensor]]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def keep_what_is_written(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Remembers what this operation will overwrite."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for tensor in (found for found in _tensors([value]) if isinstance(found, CudaTensor)):
                    storage = tensor.numbers.untyped_storage()
                    self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))

    def add(self, compute: Callable[[], Any], results: Any, allocated: list[Tensor]) -> None:
        """An operation with its results; allocated: those of them that are new memory."""
        keep = {id(x) for x in allocated}
        self._operations.append((compute, [x if id(x) in keep else None for x in _tensors(results)]))

    def end(self) -> None:
        """Undoes what the operations did."""
        for _, targets in self._operations:
            for target in targets:
                if target is not None:
                    target.untyped_storage().fill_(255)
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        with _disable_current_modes(), torch.inference_mode():
            for compute, targets in self._operations:
                for target, result in zip(targets, _tensors(compute()), strict=True):
                    if target is not None:
                        assert target.shape == result.shape
                        target.copy_(result)
        self.n_replays += 1


class _FusedAttention(torch.autograd.Function):
    """torch's attention as one operation; it would write out a dozen for a device unknown to it."""

    @staticmethod
    def forward(ctx: Any, q: CudaTensor, k: CudaTensor, v: CudaTensor, *options: Any) -> CudaTensor:
        with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
            ctx.inputs = [x.numbers.detach().requires_grad_() for x in (q, k, v)]
            ctx.out = PLAIN_ATTENTION(*ctx.inputs, *options[:-1], scale=options[-1])
        return CudaTensor(ctx.out.detach())

    @staticmethod
    def backward(ctx: Any, *grads: CudaTensor) -> tuple[CudaTensor | None, ...]:
        with _disable_current_modes():
            found = torch.autograd.grad(ctx.out, ctx.inputs, grads[0].numbers)
        return *map(CudaTensor, found), None, None, None, None


@contextmanager
def emulated_cuda(*, watched: Path = HEED) -> Iterator[EmulatedCuda]:
    """Within the block torch.cuda is the emulated device, whose tensors cannot be used afterwards.

    watched: the folder, or the file, of the code whose waits are counted.
    """
    device = EmulatedCuda(watched)

    class Event:
        n_sent = 0  # nothing recorded

        def record(self, stream: Any = None) -> None:
            self.n_sent = device.n_sent

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            device.wait("event")
            device.arrive(self.n_sent)

    def synchronize(_: Any = None) -> None:
        device.wait("torch.cuda.synchronize")
        device.arrive(device.n_sent)

    @contextmanager
    def captured(
        graph: EmulatedGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
    ) -> Iterator[None]:
        synchronize()  # as torch.cuda.graph does
        graph.pool, graph.stream = pool, stream
        before, device.stream = device.stream, stream
        device.capturing, device.generator_captures = graph, True
        try:
            yield
        finally:
            device.capturing = None
            graph.end()
        # torch.cuda.graph leaves these as they are if the recording cannot be ended.
        device.stream, device.generator_captures = before, False
        device.graphs.append(graph)

    @contextmanager
    def guard(_: Any) -> Iterator[None]:
        device.guarded += 1
        try:
            yield
        finally:
            device.guarded -= 1

    def set_stream(stream: Any) -> None:
        device.stream = stream

    def replace_state(_: Any) -> None:
        device.generator_captures = False

    generator = SimpleNamespace(clone_state=lambda: None, graphsafe_set_state=replace_state)

    properties = SimpleNamespace(name="emulated", major=9, minor=0, total_memory=MEMORY_BYTES)
    replaced: dict[str, Any] = {
        "CUDAGraph": EmulatedGraph,
        "Event": Event,
        "Stream": EmulatedStream,
        "current_device": lambda: 0,
        "current_stream": lambda _=None: device.stream,
        "default_generators": (generator,),
        "device": guard,
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "get_device_capability": lambda _=None: (properties.major, properties.minor),
        "get_device_properties": lambda _=None: properties,
        "get_rng_state": lambda _=None: torch.empty(0),
        "graph": captured,
        "graph_pool_handle": object,
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: device.capturing is not None,
        "mem_get_info": lambda _=None: (MEMORY_BYTES, MEMORY_BYTES),
        "set_rng_state": lambda state, _=None: None,
        "set_stream": set_stream,
        "stream": lambda _: nullcontext(),
        "synchronize": synchronize,
    }
    if not torch.cuda.is_available():  # a real GPU may be made ready: it will not be used
        replaced["_lazy_init"] = lambda: None
    torch._C._ensureCUDADeviceGuardSet()

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None,
    ) -> Tensor:  # fmt: skip
        given = [x for x in (query, key, value, attn_mask) if x is not None]
        if not any(isinstance(x, CudaTensor) for x in given):
            return PLAIN_ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
        mask = attn_mask.numbers if isinstance(attn_mask, CudaTensor) else attn_mask
        device.count_attention(given)
        if device.capturing is not None:
            inputs = [x.numbers for x in (query, key, value)]

            def compute() -> Tensor:
                with _disable_current_modes(), torch.inference_mode():
                    return PLAIN_ATTENTION(*inputs, mask, dropout_p, is_causal, scale=scale)

            result = compute()
            device.capturing.add(compute, result, [result])
            return CudaTensor(result)
        return _FusedAttention.apply(query, key, value, mask, dropout_p, is_causal, scale)

    def pin_memory(tensor: Tensor) -> Tensor:
        pinned = tensor.clone()
        pinned.pinned_by_emulation = True
        return pinned

    def numpy(tensor: Tensor, **options: Any) -> Any:
        with _disable_current_modes():
            return PLAIN_NUMPY(tensor, **options)

    before = torch._C._only_lift_cpu_tensors()
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(Tensor, "pin_memory", pin_memory))
        stack.enter_context(patch.object(Tensor, "numpy", numpy))
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", attention))
        # torch.tensor(..., device="cuda") then fills CPU memory first and copies it, as for a GPU.
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        torch._C._set_only_lift_cpu_tensors(True)
        stack.enter_context(device)
        yield device
