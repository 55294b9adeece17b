"""Weights of 8 bits as ONNX Runtime makes and multiplies them."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch import Tensor

BLOCK = 32  # numbers of a row that share a factor
# Level 4 rounds rows to 8 bits as well: 0.02 ms at 1 row of 1,536 x 576, where weights of float32 take 0.17 and level 1
# takes 1.2 (one core with AVX-512 VNNI, ONNX Runtime 1.32). But what differs by 1e-7 between one row and four then
# falls to another level here and there; 30 layers make 0.2 to 0.5 of it in the logits of SmolLM2-135M, and drafts would
# change the text.
_FLOAT_PRODUCTS = 1  # `accuracy_level`


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Levels `[out, blocks, 32]` uint8 and factors `[out, blocks]` float32 of a weight `[out, in]`.

    They are what ONNX Runtime's own quantiser makes of a model with one product: symmetric, 128 stands for 0.
    """
    from onnx import TensorProto, helper, numpy_helper

    out, size = weight.shape
    turned = numpy_helper.from_array(weight.float().t().contiguous().numpy(), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n]) for name, n in (("x", size), ("y", out))]
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([product], "product", ends[:1], ends[1:], [turned])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    quantiser = _quantiser()(model, bits=8, block_size=BLOCK, is_symmetric=True)
    quantiser.process()
    made = [torch.from_numpy(numpy_helper.to_array(t).copy()) for t in quantiser.model.model.graph.initializer]
    levels, factors = sorted((t for t in made if t.shape[0] == out), key=lambda t: t.dtype != torch.uint8)
    return levels, factors


@functools.cache
def _quantiser() -> Any:
    """The class; its module sets up logging for the whole process, which is undone."""
    root = logging.getLogger()
    before = root.level, [*root.handlers]
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    root.level, root.handlers = before
    return MatMulNBitsQuantizer


def byte_linear(x: Any, levels: Any, factors: Any, size: int) -> Any:
    """`specc::byte_linear` as the op that ONNX Runtime has for it."""
    numbers = {"K": int(size), "N": int(levels.shape[0]), "bits": 8, "block_size": BLOCK}
    return _product()(x, levels, factors, **numbers, accuracy_level=_FLOAT_PRODUCTS)


@functools.cache
def _product() -> Any:
    """`MatMulNBits` of ONNX Runtime, which onnx does not know."""
    from onnx.defs import OpSchema
    from onnxscript.values import Op, Opset

    inputs = {"A": "T", "B": "tensor(uint8)", "scales": "T"}
    attributes = ("K", "N", "bits", "block_size", "accuracy_level")
    schema = OpSchema(
        "MatMulNBits",
        "com.microsoft",
        1,
        inputs=[OpSchema.FormalParameter(name, kind) for name, kind in inputs.items()],
        outputs=[OpSchema.FormalParameter("Y", "T")],
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[OpSchema.Attribute(name, OpSchema.AttrType.INT, required=True) for name in attributes],
    )
    return Op(Opset(schema.domain, 1), schema.name, schema)
