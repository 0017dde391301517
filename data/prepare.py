"""Prepare data: make the demo data, fetch real sets and text, turn text into token files.

    python data/prepare.py demo                                      made from documentation on this machine, in seconds
    python data/prepare.py download glue squad race cifar10 wmt14    from the official addresses, checked
    python data/prepare.py download bert-vocab electra-base albert-v2 bert-base    for --tokenizer, --teacher, --init
    python data/prepare.py hub SET [PART] --to DIR                   text of the Hugging Face Hub -> text files
    python data/prepare.py corpus --corpus TEXT... --to DIR          text -> a vocabulary and memory-mapped token files
    python data/prepare.py passages --squad FILE... --race DIR --to FILE    dev sets -> text for albert.py --dev_corpus

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

from common import squad  # noqa: E402
from common.cli import Parser, UserError, run  # noqa: E402
from common.files import write_atomic  # noqa: E402
from common.tokenization import load_tokenizer  # noqa: E402
from data import race  # noqa: E402
from data.corpus import read_meta  # noqa: E402
from data.demo import make_demo  # noqa: E402  (offered to the paper files: `from data.prepare import make_demo`)
from data.download import SETS, download  # noqa: E402
from data.hub import fetch_text  # noqa: E402
from data.text import make_corpus, split_sentences, text_files  # noqa: E402


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


def hub(args):
    """Stream the text of a set into text files."""
    paths = fetch_text(args.set, args.part, args.to, args.column, args.split)
    size = sum(path.stat().st_size for path in paths)
    print(f"{args.to}: {len(paths):,} text files, {size / 1e6:,.1f} MB")


def corpus(args):
    """Train or load the tokenizer and make the token files."""
    lower, folder, files = not args.cased, pathlib.Path(args.to), text_files(args.corpus)
    pieces = load_tokenizer(args.tokenizer, lower).vocab_size if args.tokenizer else args.vocab_size or 30_000
    if args.vocab_size not in (None, pieces):
        raise UserError(f"{args.tokenizer}: it has {pieces} pieces, not {args.vocab_size}; leave "
                        "--vocab_size or --tokenizer out")
    known = {path for path, *_ in read_meta(folder).get("sources", [])}
    if known and known != {str(path.resolve()) for path in files}:
        raise UserError(f"{folder}: holds the corpus of other files; choose another --to, or delete the folder")
    start, size = time.perf_counter(), sum(path.stat().st_size for path in files) / 1e6
    tokenizer, made = make_corpus(files, folder, pieces, args.tokenizer, lower, args.workers)
    counts = ", ".join(f"{made.meta[name]:,} {name}" for name in ("tokens", "sentences", "documents"))
    print(f"{folder}: {counts}, vocabulary {tokenizer.vocab_size:,}, {size:.1f} MB "
          f"in {time.perf_counter() - start:.1f} s")


def passages(args):
    """Write the passages of SQuAD files and of RACE's dev set as text, one sentence a line, a blank line between them:
    what ALBERT is evaluated on while it is pre-trained (Sec. 4.2.1 there)."""
    found = [question.context for path in args.squad for question in squad.load(pathlib.Path(path))]
    found += [question.passage for question in (race.load(args.race, "dev") if args.race else ())]
    blocks = ["\n".join(split_sentences(" ".join(text.split()))) for text in dict.fromkeys(found)]
    if not blocks:
        raise UserError("passages: give --squad, --race or both")
    if pathlib.Path(args.to).exists():
        raise UserError(f"{args.to}: is there already; name a new file")
    write_atomic(args.to, "\n\n".join(blocks) + "\n")
    print(f"{args.to}: {len(blocks):,} passages")


def whole(text):
    """A whole number above 0."""
    value = int(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text[:50]}: choose a whole number from 1 to 1e9")
    return value


def parser():
    """The command line: a sub-command for each job."""
    raw = argparse.RawDescriptionHelpFormatter
    top = Parser(prog="prepare.py", description=__doc__, allow_abbrev=False, formatter_class=raw)
    jobs = top.add_subparsers(title="jobs", metavar="JOB")

    def add(name, job, words):
        made = jobs.add_parser(name, help=words, allow_abbrev=False)
        made.set_defaults(job=job)
        return made.add_argument

    flag = add("demo", demo, "make the demo data")
    flag("--to", metavar="DIR", default=str(HERE / "demo"), help="folder to make (default: %(default)s)")
    flag = add("download", fetch, "download real data sets and published models")
    flag("names", nargs="+", choices=SETS, metavar="NAME", help="any of " + ", ".join(SETS))
    flag("--to", metavar="DIR", default=str(HERE / "downloads"), help="where to (default: %(default)s)")
    flag = add("hub", hub, "text of the Hugging Face Hub, or of parquet and JSON-lines files")
    flag("set", metavar="SET", help="its name there; or a .parquet or .jsonl file here, or a folder of such files")
    flag("part", metavar="PART", nargs="?", default="", help="of the set, where it has several, as in 20231101.en")
    flag("--to", required=True, metavar="DIR", help="folder for the text; the same command goes on there")
    flag("--column", default="text", metavar="NAME", help="the column with the text (default: %(default)s)")
    flag("--split", default="train", metavar="NAME", help="which split of the set (default: %(default)s)")
    flag = add("corpus", corpus, "turn text into a tokenizer and token files")
    flag("--corpus", nargs="+", required=True, metavar="PATH", help="text files, or folders of .txt files")
    flag("--to", required=True, metavar="DIR", help="folder for the token files and the tokenizer")
    flag("--vocab_size", type=whole, metavar="N", help="pieces of the tokenizer to train (default: 30000)")
    flag("--tokenizer", metavar="PATH", help="use this one (spiece.model, vocab.txt or their folder)")
    flag("--workers", type=whole, default=1, metavar="N", help="processes (default: 1)")
    flag("--cased", action="store_true", help="keep capitals and accents")
    flag = add("passages", passages, "the text of SQuAD's and RACE's dev sets")
    flag("--squad", nargs="+", default=[], metavar="FILE", help="dev-v1.1.json and others")
    flag("--race", metavar="DIR", help="the folder with dev")
    flag("--to", required=True, metavar="FILE", help="the text file to write")
    return top


def main():
    args = parser().parse_args()
    if not hasattr(args, "job"):
        parser().print_help()
        return 0
    return args.job(args)


if __name__ == "__main__":
    run(main)
