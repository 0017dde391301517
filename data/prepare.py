"""Prepare data: make the demo data, fetch real sets and text, and turn text into token files.

    # made from documentation on this machine, in seconds
    python data/prepare.py demo
    # from the official addresses, checked; models for --tokenizer, --teacher, --init
    python data/prepare.py download glue squad race cifar10
    python data/prepare.py download bert-vocab electra-base albert-v2 bert-base
    # text of the Hugging Face Hub -> text files
    python data/prepare.py hub SET [PART] --to DIR
    # text -> a vocabulary and token files
    python data/prepare.py corpus --corpus TEXT... --to DIR
    # dev sets -> text for --dev_corpus
    python data/prepare.py passages --squad FILE... --race DIR --to FILE

README.md in this folder describes each set and its licence. `python data/prepare.py JOB --help`
prints the flags.
"""
import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":  # Python looks for modules in data/, not in the repository above it
    sys.path[0] = str(HERE.parent)

from common import squad  # noqa: E402
from common.cli import Parser, UserError, run  # noqa: E402
from common.checkpoint import write_atomic  # noqa: E402
from data import race  # noqa: E402
from data.corpus import NAMES, read_meta  # noqa: E402
from data.demo import make_demo  # noqa: E402
from data.download import TABLE, download, fetch_text  # noqa: E402
from data.text import make_corpus, split_sentences, text_files  # noqa: E402


def demo(args):
    """Make the demo data."""
    print(f"{args.to}: complete, its sha256 is {make_demo(args.to)['sha256'][:16]}...")


def fetch(args):
    """Download the named sets."""
    for name in args.names:
        print(f"{download(name, args.to)}: complete")


def hub(args):
    """Stream the text of a set into text files."""
    paths = fetch_text(args.set, args.part, args.to, args.column, args.split)
    print(f"{args.to}: complete, {len(paths):,} text files")


def corpus(args):
    """Train or load the tokenizer and make the token files."""
    folder = Path(args.to)
    files = text_files(args.corpus)
    known = {path for path, *_ in read_meta(folder).get("sources", [])}
    if known and known != {str(path.resolve()) for path in files}:
        raise UserError(f"{folder}: holds the corpus of other files; choose another --to")
    lower = not args.cased
    tokenizer, made = make_corpus(
        files, folder, args.vocab_size, args.tokenizer, lower, args.workers)
    counts = ", ".join(f"{made.meta[name]:,} {name}" for name in NAMES)
    print(f"{folder}: {counts}, vocabulary {tokenizer.vocab_size:,}")


def passages(args):
    """Write the passages of SQuAD files and of RACE's dev set as text, one sentence per line, a
    blank line between passages, for ALBERT's evaluation during pre-training (Sec. 4.2.1 there)."""
    if Path(args.to).exists():
        raise UserError(f"{args.to}: exists; name a new file")
    texts = [question.context for path in args.squad for question in squad.load(Path(path))]
    if args.race:
        texts += [question.passage for question in race.load(args.race, "dev")]
    if not texts:
        raise UserError("passages: give --squad, --race or both")
    blocks = ["\n".join(split_sentences(" ".join(text.split()))) for text in dict.fromkeys(texts)]
    write_atomic(args.to, "\n\n".join(blocks) + "\n")
    print(f"{args.to}: {len(blocks):,} passages")


def positive(text):
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text}: choose a whole number above 0")
    return int(text)


def parser():
    """The command line: a sub-command for each job."""
    top = Parser(prog="prepare.py", description=__doc__, allow_abbrev=False,
                 formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = top.add_subparsers(title="jobs", metavar="JOB", dest="name")

    def add(name, job, words):
        made = jobs.add_parser(name, help=words, allow_abbrev=False)
        made.set_defaults(job=job)
        return made.add_argument

    flag = add("demo", demo, "make the demo data")
    flag("--to", metavar="DIR", default=str(HERE / "demo"),
         help="the folder to make (default: %(default)s)")
    flag = add("download", fetch, "download real data sets and published models")
    flag("names", nargs="+", choices=TABLE, metavar="NAME",
         help=f"what to fetch: any of {', '.join(TABLE)}")
    flag("--to", metavar="DIR", default=str(HERE / "downloads"),
         help="the folder for all of it (default: %(default)s)")
    flag = add("hub", hub, "turn a set of the Hub, or parquet or JSON-lines files, into text")
    flag("set", metavar="SET",
         help="its name on the Hub, or a .parquet or .jsonl file, or a folder of such files")
    flag("part", metavar="PART", nargs="?", default="",
         help="a part of a set that has several, such as 20231101.en")
    flag("--to", required=True, metavar="DIR",
         help="the folder for the text; a killed command continues there")
    flag("--column", default="text", metavar="NAME",
         help="the column that holds the text (default: %(default)s)")
    flag("--split", default="train", metavar="NAME",
         help="the split of the set to read (default: %(default)s)")
    flag = add("corpus", corpus, "turn text into a vocabulary and token files")
    flag("--corpus", nargs="+", required=True, metavar="PATH",
         help="text files, or folders of .txt files")
    flag("--to", required=True, metavar="DIR",
         help="the folder for the token files and the vocabulary")
    flag("--vocab_size", type=positive, default=30_000, metavar="N",
         help="size of the vocabulary to train (default: %(default)s)")
    flag("--tokenizer", metavar="PATH",
         help="use this spiece.model or vocab.txt, or the one in this folder, and train none")
    flag("--workers", type=positive, default=1, metavar="N",
         help="number of processes (default: %(default)s)")
    flag("--cased", action="store_true", help="keep capitals and accents")
    flag = add("passages", passages, "write the text of SQuAD's and RACE's dev sets")
    flag("--squad", nargs="+", default=[], metavar="FILE", help="files such as dev-v1.1.json")
    flag("--race", metavar="DIR", help="the folder that holds RACE's dev")
    flag("--to", required=True, metavar="FILE", help="the text file to write")
    return top


def main():
    args = parser().parse_args()
    if not args.name:
        parser().print_help()
        return 0
    return args.job(args)


if __name__ == "__main__":
    run(main)
