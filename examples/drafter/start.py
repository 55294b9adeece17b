"""First weights of the drafter: an ordinary Llama with tied embeddings, started from what the target knows.

1. The target's logits are E n, with n its normed last hidden state. The h directions of n that matter most for the
   logits of likely tokens are found (a principal component analysis of n, weighted by E^T F E, F the frequency of
   tokens), and E is projected on them. So the small embedding starts as a good output matrix, and unseen tokens have
   sensible rows: it is trained as `base @ mix + own`, in which `mix` is shared by all tokens.
2. A copying circuit: one head of layer 0 writes a sketch of the previous token, two heads of layer 1 look for places
   whose previous token is the current one and copy what stood there. A small model needs millions of tokens to
   find this by itself, and answers of small models copy a lot (from the prompt and from themselves).
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SHARP = 20.0  # score of a place whose previous token is the current one, about
SKETCH = 30  # residual dimensions kept free at the start for the sketch of the previous token


def make_config(target, hidden: int, layers: int, inner: int, head: int = 64, theta: float = 500_000.0) -> LlamaConfig:
    heads = max(1, hidden // head)
    rope = {"rope_type": "default", "rope_theta": theta}
    return LlamaConfig(
        vocab_size=target.vocab_size, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=head, tie_word_embeddings=True,
        rms_norm_eps=1e-5, max_position_embeddings=target.max_position_embeddings, rope_parameters=rope,
        bos_token_id=target.bos_token_id, eos_token_id=target.eos_token_id, pad_token_id=target.pad_token_id,
    )  # fmt: skip


@torch.inference_mode()
def basis(model, rows: list[torch.Tensor], counts: torch.Tensor) -> torch.Tensor:
    """The target's output matrix in the order of importance -> [V, E]: row products with a rotated n give the logits.

    rows: token ids [n] of some text; counts [V]: how often the target predicts each token.
    """
    table = model.lm_head.weight.double()
    second = torch.zeros(table.shape[1], table.shape[1], dtype=torch.double)
    for row in rows:
        t = len(row)
        mask = torch.where(torch.ones(t, t, dtype=torch.bool).tril(), 0.0, torch.finfo(model.dtype).min)[None, None]
        place = torch.arange(t)[None]
        n = model.model(input_ids=row[None], attention_mask=mask, position_ids=place, use_cache=False)[0][0].double()
        second += n.T @ n
    weight = counts.double() + 0.1 * counts.double().mean()
    metric = (table * (weight / weight.sum())[:, None]).T @ table
    value, vector = torch.linalg.eigh(metric)
    root = vector * value.clamp(min=1e-9 * value.max()).sqrt() @ vector.T
    inverse = vector * value.clamp(min=1e-9 * value.max()).rsqrt() @ vector.T
    _, order = torch.linalg.eigh(root @ second @ root)
    out = table @ inverse @ order.flip(1)  # eigh sorts upwards
    return (out / out.square().mean().sqrt()).float()


def previous_token_key(head: int, theta: float) -> torch.Tensor:
    """A key direction [D] for which the score with the query turned back by one position peaks at distance 1."""
    frequency = theta ** (-torch.arange(head // 2) / (head // 2))
    half = (frequency > 0.08).float() * frequency.sqrt()
    return torch.cat([half, torch.zeros(head // 2)])


@torch.no_grad()
def make_drafter(config: LlamaConfig, target_basis: torch.Tensor, circuit: bool = True, seed: int = 0):
    """-> drafter, base [V, E], mix [E, h]. The drafter's embedding equals `base @ mix` plus a constant column 0.

    Column 0 is the same for all tokens, so it changes no probability; it gives the first head a constant query and key.
    """
    torch.manual_seed(seed)
    h, d, theta = config.hidden_size, config.head_dim, config.rope_parameters["rope_theta"]
    model = LlamaForCausalLM(config)
    scale = 0.1
    for layer in model.model.layers:
        for name, weight in layer.named_parameters():
            if weight.dim() == 2:
                small = 0.3 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                weight.normal_(0, small * weight.shape[1] ** -0.5)
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weight.mul_(scale)  # the residual stream has this scale
    base = target_basis
    mix = torch.zeros(base.shape[1], h)
    circuit = circuit and h > 2 * SKETCH and config.num_hidden_layers > 1 and config.num_attention_heads > 1
    used = h - 1 - (SKETCH if circuit else 0)
    mix[torch.arange(min(used, base.shape[1])), 1 + torch.arange(min(used, base.shape[1]))] = scale
    # The constant outweighs a token's own columns, so that all tokens have nearly the same norm; gains make up for it.
    constant = 15 * scale
    for layer in model.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.fill_(2.0)
            norm.weight[0] = h**-0.5
    model.model.norm.weight.fill_(1.0)
    model.model.norm.weight[0] = 0
    if circuit:
        key = previous_token_key(d, theta)
        frequency = theta ** (-torch.arange(d // 2) / (d // 2))
        # A query turned by -1 position: its rotary angle cancels a distance of one.
        turned = torch.cat([key[: d // 2] * frequency.cos(), -key[: d // 2] * frequency.sin()])
        first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
        gain = (40.0 * d**0.5 / (key @ key)) ** 0.5
        first.q_proj.weight[:d] = 0
        first.k_proj.weight[:d] = 0
        first.q_proj.weight[:d, 0], first.k_proj.weight[:d, 0] = turned * gain, key * gain
        sketch = torch.linalg.qr(torch.randn(h, SKETCH))[0].T  # [SKETCH, h], read from the token columns
        sketch[:, 0] = 0
        sketch[:, -SKETCH:] = 0
        first.v_proj.weight[:d] = 0
        first.v_proj.weight[:SKETCH] = sketch
        first.o_proj.weight[:, :d] = 0
        first.o_proj.weight[-SKETCH:, :SKETCH] = scale * torch.eye(SKETCH)
        # Only slowly turning pairs can compare tokens over long distances; rotary pairs are (i, i + D/2).
        pairs = SKETCH // 2
        slow = torch.cat([torch.arange(d // 2 - pairs, d // 2), torch.arange(d - pairs, d)])
        for head in range(min(2, config.num_attention_heads)):
            at = head * d
            for p in (second.q_proj, second.k_proj, second.v_proj):
                p.weight[at : at + d] = 0
            match = (SHARP * d**0.5 / SKETCH) ** 0.5
            second.q_proj.weight[at + slow] = match * sketch
            second.k_proj.weight[at + slow, h - SKETCH + torch.arange(SKETCH)] = match
            columns = torch.arange(d) + 1 + head * d
            columns = columns[columns < 1 + used]
            n = len(columns)
            second.v_proj.weight[at + torch.arange(n), columns] = 1.0
            second.o_proj.weight[:, at : at + d] = 0
            second.o_proj.weight[columns, at + torch.arange(n)] = 2 * scale
    table = base @ mix
    table[:, 0] = constant
    model.model.embed_tokens.weight.copy_(table)
    model.tie_weights()
    return model, base, mix
