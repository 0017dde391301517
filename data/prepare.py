"""Prepare data: make the demo data, fetch the official sets, and turn text into token files.

    # made from documentation on this machine, in seconds
    python data/prepare.py demo
    # from the official addresses, checked
    python data/prepare.py download glue squad race cifar10
    # text -> a vocabulary and token files
    python data/prepare.py corpus --corpus TEXT... --to DIR

README.md in this folder describes each set and its licence. `python data/prepare.py JOB --help`
prints the flags.
"""
import argparse
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":  # Python looks for modules in data/, not in the repository above it
    sys.path[0] = str(HERE.parent)

from common.cli import Parser, check_range, run  # noqa: E402
from data.demo import make_demo  # noqa: E402
from data.download import TABLE, download  # noqa: E402
from data.text import DOCUMENTS, fitting_vocabulary, make_corpus, text_files  # noqa: E402


def demo(args):
    """Make the demo data."""
    print(f"{args.to}: complete, its sha256 is {make_demo(args.to)['sha256']}")


def fetch(args):
    """Download the named sets."""
    for name in args.names:
        print(f"{download(name, args.to)}: present (an existing folder is not changed)")


def corpus(args):
    """Train or load the tokenizer and make the token files."""
    check_range("workers", args.workers, "[>= 1]")
    check_range("vocab_size", args.vocab_size, "[>= 0]")
    vocab_size = args.vocab_size or fitting_vocabulary(text_files(args.corpus))
    tokenizer, made = make_corpus(
        args.corpus, args.to, vocab_size, args.tokenizer, args.workers, args.documents)
    print(f"{args.to}: a vocabulary of {tokenizer.vocab_size:,} tokens; {made.summary()}")
    # novels taught no sentence order (tests/claims/README.md, order-novels)
    objective = " --objective none" if args.documents == "file" else ""
    print(f"next: python albert.py --pretrain --corpus {shlex.quote(args.to)}{objective}")


def parser():
    """The command line: a sub-command for each job."""
    top = Parser(prog="prepare.py", description=__doc__, allow_abbrev=False,
                 formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = top.add_subparsers(metavar="JOB", required=True)

    def add(name, job, **to):
        made = jobs.add_parser(name, help=job.__doc__, allow_abbrev=False)
        made.set_defaults(job=job)
        made.add_argument("--to", metavar="DIR", help="the folder to make (default: %(default)s)",
                          **to)
        return made.add_argument

    add("demo", demo, default=str(HERE / "demo"))
    flag = add("download", fetch, default=str(HERE / "downloads"))
    flag("names", nargs="+", choices=TABLE, metavar="NAME", help=f"of {', '.join(TABLE)}")
    flag = add("corpus", corpus, required=True)
    flag("--corpus", nargs="+", required=True, metavar="PATH",
         help="text files, or folders of .txt files")
    flag("--documents", choices=DOCUMENTS, default="blank",
         help="what ends a document: a blank line, the file (of a book), or each line (default: "
              "%(default)s)")
    flag("--vocab_size", type=int, default=0, metavar="N",
         help="size of the vocabulary to train. 0: by the amount of text, 2,000 below 8 MB, 8,000 "
              "below 100 MB, else 30,000 (default: %(default)s)")
    flag("--tokenizer", metavar="PATH",
         help="use this spiece.model or vocab.txt, or the one in this folder, and train none")
    flag("--workers", type=int, default=1, metavar="N",
         help="number of processes (default: %(default)s)")
    return top


def main():
    args = parser().parse_args()
    return args.job(args)


if __name__ == "__main__":
    run(main)
