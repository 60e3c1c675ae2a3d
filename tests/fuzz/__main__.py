"""`python -m tests.fuzz`: many random networks, or one of them in full."""

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

from .run import Pool, cores, one, records


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many networks")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=cores(), help="how many processes")
    parser.add_argument("--out", type=Path, help="a file for the results, one line of JSON each; a run goes on from it")
    parser.add_argument("--seed", type=int, nargs="+", help="these seeds: print the network, and what fails")
    parser.add_argument("--minimise", action="store_true", help="with --seed: also the smallest part that still fails")
    parser.add_argument("--retry", action="store_true", help="with --out: run the failed seeds of that file again")
    return parser.parse_args()


def _show(seed: int, minimise: bool) -> bool:
    """One network and what fails; whether nothing does."""
    from .cases import case, script
    from .shrink import smallest

    found, record = case(seed), one(seed)
    print(f"# seed {seed}: {' > '.join(record['pieces'])}; loss {found.loss.text}\n{found.program.source}")
    for kind in ("skipped", "refusals", "failures"):
        for entry in [record[kind]] if kind == "skipped" and record[kind] else record[kind] or []:
            print(f"{kind}: {entry if isinstance(entry, str) else ': '.join(entry)}")
    if minimise and record["failures"]:
        how = record["failures"][0][0]
        print("\n" + script(smallest(found, how), f"seed {seed}, made smaller: {how}"))
    return not record["failures"]


def main() -> int:
    """The command line."""
    warnings.simplefilter("ignore")
    options = _arguments()
    if options.seed:
        import torch

        torch.set_num_threads(1)
        fine = [_show(seed, options.minimise) for seed in options.seed]
        return 0 if all(fine) else 1
    from .summary import summary

    out = options.out or Path(tempfile.mkdtemp(prefix="fuzz-")) / "results.jsonl"
    if options.retry:
        kept = {seed: r for seed, r in records(out).items() if not r.get("failures")}
        out.rename(out.with_suffix(".before"))
        import json

        out.write_text("".join(json.dumps(r) + "\n" for r in kept.values()))
    start = time.monotonic()
    done = Pool(range(options.start, options.start + options.count), options.jobs, out).run()
    chosen = [r for seed, r in sorted(done.items())]
    print(summary(chosen, time.monotonic() - start))
    print(f"results: {out}")
    return 1 if any(r.get("failures") for r in chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
