"""Time attention of a few rows over cached slots, in native code and in plain ops run one by one: least of rounds.

python examples/time_attention.py --heads 9 --groups 3 --size 64 --rows 1,5,8 --slots 500,1500
"""

import argparse
import time

import torch

from specc.attention import two_part_attention
from specc.lower.native_calls import Native


def best_times(heads: int, groups: int, size: int, rows: int, slots: int, layers: int, rounds: int) -> dict[str, float]:
    """Microseconds a layer, by form."""
    caches = [(torch.randn(1, groups, slots, size), torch.randn(1, groups, slots, size)) for _ in range(layers)]
    q, k, v = (torch.randn(1, rows, count, size).transpose(1, 2) for count in (heads, groups, groups))
    seen, length = torch.ones(1, rows, rows).tril().bool(), torch.tensor([slots])
    scale, bucket, code = size**-0.5, torch.zeros(slots, dtype=torch.uint8), Native()
    forms = {
        "native": lambda cache: code.cached_attention(q, *cache, k, v, length, seen, bucket, scale=scale),
        "plain": lambda cache: two_part_attention(q, *cache, k, v, length=length, slots=slots, mask=seen, scale=scale),
    }
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(rounds):
        for name, form in forms.items():
            start = time.perf_counter()
            for cache in caches:
                form(cache)
            best[name] = min(best[name], (time.perf_counter() - start) / layers * 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=9, help="of queries (default: %(default)s)")
    parser.add_argument("--groups", type=int, default=3, help="heads of keys (default: %(default)s)")
    parser.add_argument("--size", type=int, default=64, help="of a head (default: %(default)s)")
    parser.add_argument("--rows", default="1,5,8", help="of a step (default: %(default)s)")
    parser.add_argument("--slots", default="500,1500", help="in the cache (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=30, help="run in turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="least of so many (default: %(default)s)")
    options = parser.parse_args()
    print(torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads, us a layer, calls included")
    for slots in map(int, options.slots.split(",")):
        for rows in map(int, options.rows.split(",")):
            with torch.no_grad():
                times = best_times(
                    options.heads, options.groups, options.size, rows, slots, options.layers, options.rounds
                )
            print(f"{slots} slots, {rows} rows:", "  ".join(f"{name} {us:.0f}" for name, us in times.items()))


if __name__ == "__main__":
    main()
