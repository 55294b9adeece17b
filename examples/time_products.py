"""Time products of a few rows on this machine, the library's and the native ones: least of interleaved rounds.

python examples/time_products.py 3072x576 576x1536 49152x576 --rows 1,4,8
"""

import argparse
import time

import torch

from specc.lower.native_calls import Native

BYTES = 80 * 2**20  # weights that are walked through: more than a cache holds


def best_times(out: int, size: int, rows: int, rounds: int) -> dict[str, float]:
    """Milliseconds a product, by form."""
    weights = [torch.randn(out, size) for _ in range(max(1, BYTES // (4 * out * size)))]
    x = torch.randn(rows, size)
    forms = {"linear": torch.nn.functional.linear, "native": Native().skinny_linear}
    best = dict.fromkeys(forms, float("inf"))
    for form in forms.values():
        form(x, weights[0])
    for _ in range(rounds):
        for name, form in forms.items():
            start = time.perf_counter()
            for weight in weights:
                form(x, weight)
            best[name] = min(best[name], (time.perf_counter() - start) / len(weights) * 1e3)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", metavar="OUTxIN")
    parser.add_argument("--rows", default="1,4,8", help="rows of x (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="least of so many (default: %(default)s)")
    options = parser.parse_args()
    print(torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads, ms a product")
    for shape in options.shapes:
        out, size = map(int, shape.split("x"))
        for rows in map(int, options.rows.split(",")):
            with torch.no_grad():
                times = best_times(out, size, rows, options.rounds)
            print(shape, f"{rows} rows:", "  ".join(f"{name} {ms:.3f}" for name, ms in times.items()))


if __name__ == "__main__":
    main()
