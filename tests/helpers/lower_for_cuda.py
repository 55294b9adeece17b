"""`python -m helpers.lower_for_cuda RULE WIDTHS CAPABILITY`: a step through Inductor's CUDA lowering, with no GPU.

What a device would be asked for is made up, so this must be a process of its own. It ends before the first launch:
where Inductor would time its kernels they are compiled instead, each in its first configuration. Nothing runs, and
nothing is said about results or speed. Private names of torch are used: where they move, the test that calls this
skips.

Prints one line of JSON: `kernels`, how many were compiled; `called`, what a library or PyTorch does, and how often.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections import Counter
from typing import Any

import torch
from helpers.bound import captured, empty_program

from specc.drafter import parse_drafter
from specc.lower.aotinductor import OPTIONS
from specc.lower.exporting import export_lifted
from specc.passes import run, step_passes
from specc.program import WeightStore
from specc.tree import DraftTree

PRIVATE = {
    "joint_graph_constant_folding": False,  # these three would run ops on the device
    "shape_padding": False,
    "always_keep_tensor_constants": True,
}


class Lowered(Exception):
    """Raised where Inductor would begin to time kernels; holds their code."""


class _Nothing:
    """A context of any kind: there is no device to choose."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def pretend(capability: int) -> None:
    """Answer what Inductor and Triton ask of a GPU of this capability (80, 90)."""
    import torch._inductor.fx_passes.fuse_attention as fuse_attention
    import torch._inductor.fx_passes.joint_graph as joint_graph
    import triton
    from torch._dynamo.device_interface import CudaInterface
    from triton.backends.compiler import GPUTarget

    major, minor = divmod(capability, 10)
    gpu = types.SimpleNamespace(
        name="none", major=major, minor=minor, multi_processor_count=100, warp_size=32, total_memory=2**36,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        shared_memory_per_block=49152, shared_memory_per_block_optin=166912, L2_cache_size=2**25, gcnArchName="",
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": True, "current_device": 0, "device_count": 1, "get_device_properties": gpu,
        "get_device_capability": (major, minor), "get_compute_capability": capability, "is_triton_capable": True,
        "raise_if_triton_unavailable": None, "synchronize": None, "set_device": None, "_exchange_device": 0,
        "_maybe_exchange_device": 0, "_lazy_init": None, "is_bf16_supported": True, "set_rng_state": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8), "get_raw_stream": 0, "current_stream": _Nothing(),
    }  # fmt: skip
    for name, answer in answers.items():
        for owner in (torch.cuda, CudaInterface, CudaInterface.Worker):
            if hasattr(owner, name):
                said = _say(answer)
                setattr(owner, name, said if owner is torch.cuda else staticmethod(said))
    for owner in (torch.cuda, CudaInterface):
        owner.device = _Nothing
    torch.cuda._DeviceGuard = _Nothing
    for module in (joint_graph, fuse_attention):
        module._sfdp_init = _say(None)  # patterns of attention, which are traced on the device
    target = GPUTarget("cuda", capability, 32)
    driver = types.SimpleNamespace(get_current_target=_say(target), get_current_device=_say(0), is_active=_say(True))
    triton.runtime.driver.set_active(driver)


def _kernel_of(op: Any) -> Any:
    return getattr(op, "op_overload", None) or op.python_kernel_name


def _say(answer: Any) -> Any:
    return lambda *_, **__: answer


def lower(rule: str, widths: str) -> tuple[str, list[str]]:
    """The code of a step's Triton kernels, and what is called beside them: products, and ops that have none."""
    from torch._inductor import ir
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.virtualized import V

    store = WeightStore()
    for model in captured()[0].values():
        for name, tensor in model.weights.items():
            store.add(name, tensor)
    tree = DraftTree.from_widths([int(width) for width in widths.split(",")]) if widths != "0" else DraftTree.chain(0)
    program = empty_program("step", device="cuda", store=store)
    run(program, step_passes(tree=tree, rule=rule, drafter=parse_drafter("model")))
    exported = export_lifted(program)
    exported._example_inputs = (tuple(n.meta["val"] for n in exported.graph.find_nodes(op="placeholder")), {})

    def stop(wrapper: Any) -> None:
        called = [_kernel_of(op) for op in V.graph.operations if isinstance(op, ir.ExternKernel)]
        raise Lowered(wrapper.kernel_autotune_defs.getvalue(), [str(kernel) for kernel in called if kernel])

    PythonWrapperCodegen.generate_and_run_autotune_block = stop
    try:
        torch._inductor.aoti_compile_and_package(exported, inductor_configs={**OPTIONS, **PRIVATE})
    except Exception as e:
        found: BaseException | None = e
        while found is not None and not isinstance(found, Lowered):
            found = getattr(found, "inner_exception", None) or found.__cause__
        if found is None:
            raise
        return found.args[0], found.args[1]
    raise AssertionError("Inductor did not come to the place where kernels are timed")


def compile_kernels(code: str, capability: int) -> int:
    """Compile every Triton kernel of Inductor's code to machine code; returns how many there are."""
    import triton
    from torch._inductor.codecache import PyCodeCache
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernels = re.findall(r"^(\w+) = async_compile\.triton\('\w+', '''(.*?)''', device_str='cuda'\)", code, re.M | re.S)
    for name, source in kernels:
        tuner = getattr(PyCodeCache.load(source.replace("triton_helpers.set_driver_to_gpu()", "")), name)
        signature, sizes = dict(tuner.triton_meta["signature"]), dict(tuner.configs[0].kwargs)
        constants = {**tuner.triton_meta.get("constants", {}), **sizes}
        constants |= {n: 1 for n, kind in signature.items() if kind == "constexpr" and n not in constants}
        made = triton.compile(
            ASTSource(
                tuner.fn, {n: "constexpr" if n in constants else kind for n, kind in signature.items()}, constants
            ),
            target=GPUTarget("cuda", capability, 32),
        )
        assert made.asm["cubin"], name
    return len(kernels)


def main() -> None:
    """As the module's text says."""
    rule, widths, capability = sys.argv[1], sys.argv[2], int(sys.argv[3])
    captured()  # on the processor that is there
    try:
        pretend(capability)
    except (AttributeError, ImportError) as e:
        raise SystemExit(f"private names of torch have moved: {e}") from e
    code, called = lower(rule, widths)
    print(json.dumps({"kernels": compile_kernels(code, capability), "called": dict(Counter(called))}))


if __name__ == "__main__":
    main()
