"""Write a pass of your own, run it on a small captured model, and see the graph before and after.

python examples/write_a_pass.py
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specc.capture import capture
from specc.passes import Pass, run
from specc.passes.dump import dump
from specc.passes.graph import clean_up
from specc.program import Level, Program, Sizes, WeightStore

aten = torch.ops.aten


class SquareByProduct(Pass):
    """A square is a product, which every back end has.

    Before: `y = pow.Tensor_Scalar(x, 2)`
    After:  `y = mul.Tensor(x, x)`
    """

    reads = leaves = Level.CAPTURED

    def run(self, program: Program) -> int:
        rewrites = 0
        for model in program.models.values():
            for node in model.graph.find_nodes(op="call_function", target=aten.pow.Tensor_Scalar):
                x, exponent = node.args
                if exponent != 2:
                    program.decline(self, node, f"the exponent is {exponent}")
                    continue
                with model.graph.inserting_before(node):
                    product = model.graph.call_function(aten.mul.Tensor, (x, x))
                product.meta = {**node.meta, "specc_pass": type(self).__name__}  # value and stack trace stay
                node.replace_all_uses_with(product)
                rewrites += 1
            clean_up(model.graph)
        return rewrites


def main() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    model = capture(LlamaForCausalLM(config).eval(), name="target")
    program = Program("example", {"target": model}, WeightStore(), Sizes(batch=1, slots=32, chunk=8))
    tokens = torch.randint(0, 64, (1, 5)), torch.arange(5)[None]

    before, logits = dump(model.graph), model.module()(*tokens)[0]
    (report,) = run(program, [SquareByProduct()])
    after, same = dump(model.graph), torch.equal(model.module()(*tokens)[0], logits)

    print(f"--- before\n{before}\n\n--- after\n{after}\n")
    print(f"{report.name}: {report.rewrites} rewrites, {report.nodes} nodes; logits bit-equal: {same}")


if __name__ == "__main__":
    main()
