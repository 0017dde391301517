"""Prepare data: make the demo data, download the real sets, turn a corpus into token files.

    python data/prepare.py demo                                      made from documentation on this machine, in seconds
    python data/prepare.py download glue squad race cifar10 wmt14    from the official addresses, checked
    python data/prepare.py corpus --corpus TEXT... --to DIR          a tokenizer and memory-mapped token files

README.md beside this file says what each set is, and whose.
"""
import argparse
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
if __name__ == "__main__":  # run as a program, Python looks for modules in data/ and not in the repository above it
    sys.path[0] = str(HERE.parent)

from common.cli import Parser, UserError, run  # noqa: E402
from common.tokenization import load_tokenizer, text_files, train_sentencepiece  # noqa: E402
from data.demo import make_demo  # noqa: E402  (offered to the paper files: `from data.prepare import make_demo`)
from data.download import FINISH, download  # noqa: E402
from data.text import prepare_corpus  # noqa: E402


def demo(args):
    """Make the demo data and say what is in it."""
    paths = make_demo(args.to)
    about = json.loads((pathlib.Path(args.to) / "demo.json").read_text(encoding="utf-8"))
    print(f"{args.to}: {about['text_bytes'] / 1e6:.1f} MB of text in {about['documents']} documents, "
          f"sha256 {paths['sha256'][:16]}...")


def fetch(args):
    """Download the named sets."""
    for name in args.names:
        print(f"{download(name, args.to)}: complete")


def corpus(args):
    """Train or load the tokenizer and make the token files."""
    lower, folder, files = not args.cased, pathlib.Path(args.to), text_files(args.corpus)
    folder.mkdir(parents=True, exist_ok=True)
    if args.tokenizer:
        tokenizer = load_tokenizer(args.tokenizer, lower)
        if args.vocab_size not in (None, tokenizer.vocab_size):
            raise UserError(f"{args.tokenizer}: it has {tokenizer.vocab_size} pieces, not {args.vocab_size}; leave "
                            "--vocab_size or --tokenizer out")
        tokenizer.save(folder)
    else:
        vocab_size = args.vocab_size or 30_000
        path = train_sentencepiece(files, folder / "spiece.model", vocab_size, lower, threads=args.workers)
        tokenizer = load_tokenizer(path, lower)
    start, size = time.perf_counter(), sum(path.stat().st_size for path in files)
    made = prepare_corpus(files, tokenizer, folder, workers=args.workers)
    speed = size / 1e6 / (time.perf_counter() - start)
    counts = ", ".join(f"{made.meta[name]:,} {name}" for name in ("tokens", "sentences", "documents"))
    print(f"{folder}: {counts}, vocabulary {tokenizer.vocab_size:,}, {speed:.1f} MB/s")


def parser():
    """The command line: one sub-command for each of the three jobs."""
    raw = argparse.RawDescriptionHelpFormatter
    top = Parser(prog="prepare.py", description=__doc__, allow_abbrev=False, formatter_class=raw)
    jobs = top.add_subparsers(title="jobs", metavar="JOB")
    make = jobs.add_parser("demo", help="make the demo data", allow_abbrev=False)
    make.add_argument("--to", metavar="DIR", default=str(HERE / "demo"), help="folder to make (default: %(default)s)")
    make.set_defaults(job=demo)
    get = jobs.add_parser("download", help="download real data sets", allow_abbrev=False)
    get.add_argument("names", nargs="+", choices=list(FINISH), metavar="NAME", help="any of " + ", ".join(FINISH))
    get.add_argument("--to", metavar="DIR", default=str(HERE / "downloads"), help="where to (default: %(default)s)")
    get.set_defaults(job=fetch)
    text = jobs.add_parser("corpus", help="turn text into a tokenizer and token files", allow_abbrev=False)
    text.add_argument("--corpus", nargs="+", required=True, metavar="PATH", help="text files, or folders of .txt files")
    text.add_argument("--to", required=True, metavar="DIR", help="folder for the token files and the tokenizer")
    text.add_argument("--vocab_size", type=int, metavar="N", help="pieces of the tokenizer to train (default: 30000)")
    text.add_argument("--tokenizer", metavar="PATH", help="use this one (spiece.model, vocab.txt or their folder)")
    text.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    text.add_argument("--cased", action="store_true", help="keep capitals and accents")
    text.set_defaults(job=corpus)
    return top


def main():
    args = parser().parse_args()
    if not hasattr(args, "job"):
        parser().print_help()
        return 0
    return args.job(args)


if __name__ == "__main__":
    run(main)
