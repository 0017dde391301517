"""Prepare data: make the demo data, download the real sets, turn a corpus into token files.

    python data/prepare.py demo                                      made from documentation on this machine, in seconds
    python data/prepare.py download glue squad race cifar10 wmt14    from the official addresses, checked
    python data/prepare.py download wikipedia --language en --date 20260101    a dump, from Wikimedia or a mirror
    python data/prepare.py download bert-vocab electra-base albert-v2 bert-base    for --tokenizer, --teacher, --init
    python data/prepare.py extract --dump FILE... --to DIR           a Wikipedia dump -> plain text
    python data/prepare.py books --books PATH... --to DIR            Project Gutenberg's books -> plain text
    python data/prepare.py corpus --corpus TEXT... --to DIR          a tokenizer and memory-mapped token files
    python data/prepare.py pairs --text PREFIX --to PREFIX           parallel text without pairs too long or too unequal
    python data/prepare.py passages --squad FILE... --race DIR --to FILE    dev sets -> text for albert.py --dev_corpus
    python data/prepare.py submission --runs RUN... --to DIR         the files that the GLUE leaderboard wants, checked

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
from common.files import read_json, write_atomic  # noqa: E402
from common.tokenization import load_tokenizer  # noqa: E402
from data import books, race, wikipedia  # noqa: E402
from data.demo import make_demo  # noqa: E402  (offered to the paper files: `from data.prepare import make_demo`)
from data.download import FINISH, download  # noqa: E402
from data.pairs import filter_pairs  # noqa: E402
from data.released import HUB, MODELS, WIKIMEDIA, download_dump, download_model  # noqa: E402
from data.submission import make_submission  # noqa: E402
from data.text import make_corpus, split_sentences  # noqa: E402
from data.vocabulary import text_files  # noqa: E402


def demo(args):
    """Make the demo data and say what is in it."""
    paths = make_demo(args.to)
    about = json.loads((pathlib.Path(args.to) / "demo.json").read_text(encoding="utf-8"))
    print(f"{args.to}: {about['text_bytes'] / 1e6:.1f} MB of text in {about['documents']} documents, "
          f"sha256 {paths['sha256'][:16]}...")


def fetch(args):
    """Download the named sets."""
    for name in args.names:
        if name == "wikipedia":
            path = download_dump(args.to, args.language, args.date, args.mirror)
        else:
            path = download_model(name, args.to, args.hub) if name in MODELS else download(name, args.to)
        print(f"{path}: complete")


def extract(args):
    """Turn dumps into plain text; say what was kept and lost, and how fast."""
    report(args.to, wikipedia, "xml_bytes", lambda: wikipedia.extract(args.dump, args.to, args.workers))


def gutenberg(args):
    """Turn books into plain text; say what was kept and lost, and how fast."""
    report(args.to, books, "book_bytes", lambda: books.extract_books(args.books, args.to, args.workers))


def report(folder, module, measure, work):
    """Do the work of an extraction and print what its module says of it, with the MB/s of what was read now."""
    before = pathlib.Path(folder) / "extract.json"
    before = read_json(before, dict).get("counts") if before.is_file() else {}
    start = time.perf_counter()
    state = work()
    megabytes = (state["counts"].get(measure, 0) - before.get(measure, 0)) / 1e6
    speed = f", {megabytes / (time.perf_counter() - start):.1f} MB/s of {megabytes:,.1f} MB" if megabytes else ""
    print(f"{folder}: {module.summary(state)}{speed}")


def pairs(args):
    """Filter parallel text and say what went."""
    tokenizer = load_tokenizer(args.tokenizer, not args.cased) if args.tokenizer else None
    counts = filter_pairs(args.text, args.to, (args.source, args.target), args.shortest, args.longest, args.ratio,
                          tokenizer)
    print(f"{args.to}: " + ", ".join(f"{number:,} {name}" for name, number in counts.items()))


def passages(args):
    """Write the passages of SQuAD files and of RACE's dev set as text, one sentence a line, a blank line between them:
    what ALBERT is evaluated on while it is pre-trained (Sec. 4.2.1 there)."""
    found = [question.context for path in args.squad for question in squad.load(pathlib.Path(path))]
    found += [question.passage for question in (race.load(args.race, "dev") if args.race else ())]
    blocks = ["\n".join(split_sentences(" ".join(text.split()))) for text in dict.fromkeys(found)]
    if not blocks:
        raise UserError("passages: give --squad, --race or both")
    write_atomic(args.to, "\n\n".join(blocks) + "\n")
    print(f"{args.to}: {len(blocks):,} passages")


def submission(args):
    """Put the leaderboard's files together and say where each came from."""
    for name, path in make_submission(args.runs, args.to, args.fill).items():
        print(f"{name + '.tsv':11} {path or 'filled in with a constant'}")
    print(f"{args.to}.zip: ready for gluebenchmark.com/submit")


def corpus(args):
    """Train or load the tokenizer and make the token files."""
    lower, folder, files = not args.cased, pathlib.Path(args.to), text_files(args.corpus)
    pieces = load_tokenizer(args.tokenizer, lower).vocab_size if args.tokenizer else args.vocab_size or 30_000
    if args.vocab_size not in (None, pieces):
        raise UserError(f"{args.tokenizer}: it has {pieces} pieces, not {args.vocab_size}; leave "
                        "--vocab_size or --tokenizer out")
    start, size = time.perf_counter(), sum(path.stat().st_size for path in files)
    tokenizer, made = make_corpus(files, folder, pieces, args.tokenizer, lower, args.workers)
    speed = size / 1e6 / (time.perf_counter() - start)
    counts = ", ".join(f"{made.meta[name]:,} {name}" for name in ("tokens", "sentences", "documents"))
    print(f"{folder}: {counts}, vocabulary {tokenizer.vocab_size:,}, {speed:.1f} MB/s")


def number(text):
    """A number that is not negative."""
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text}: choose a number from 0 to 1e9")
    return value


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
    make = jobs.add_parser("demo", help="make the demo data", allow_abbrev=False)
    make.add_argument("--to", metavar="DIR", default=str(HERE / "demo"), help="folder to make (default: %(default)s)")
    make.set_defaults(job=demo)
    get = jobs.add_parser("download", help="download real data sets", allow_abbrev=False)
    names = [*FINISH, "wikipedia", *MODELS]
    get.add_argument("names", nargs="+", choices=names, metavar="NAME", help="any of " + ", ".join(names))
    get.add_argument("--to", metavar="DIR", default=str(HERE / "downloads"), help="where to (default: %(default)s)")
    get.add_argument("--language", default="en", metavar="XX", help="of the Wikipedia (default: %(default)s)")
    get.add_argument("--date", default="latest", metavar="YYYYMMDD", help="of its dump (default: %(default)s)")
    get.add_argument("--mirror", default=WIKIMEDIA, metavar="URL", help="of its dumps (default: %(default)s)")
    get.add_argument("--hub", default=HUB, metavar="URL", help="of the models (default: %(default)s)")
    get.set_defaults(job=fetch)
    add_text_jobs(jobs)
    text = jobs.add_parser("corpus", help="turn text into a tokenizer and token files", allow_abbrev=False)
    text.add_argument("--corpus", nargs="+", required=True, metavar="PATH", help="text files, or folders of .txt files")
    text.add_argument("--to", required=True, metavar="DIR", help="folder for the token files and the tokenizer")
    text.add_argument("--vocab_size", type=whole, metavar="N", help="pieces of the tokenizer to train (default: 30000)")
    text.add_argument("--tokenizer", metavar="PATH", help="use this one (spiece.model, vocab.txt or their folder)")
    text.add_argument("--workers", type=whole, default=1, metavar="N", help="processes (default: 1)")
    text.add_argument("--cased", action="store_true", help="keep capitals and accents")
    text.set_defaults(job=corpus)
    add_task_jobs(jobs)
    return top


def add_text_jobs(jobs):
    """extract and books."""
    workers = dict(type=whole, default=1, metavar="N", help="processes (default: 1)")
    dump = jobs.add_parser("extract", help="turn a Wikipedia dump into plain text", allow_abbrev=False)
    dump.add_argument("--dump", nargs="+", required=True, metavar="FILE", help="pages-articles XML, in bz2 or plain")
    dump.add_argument("--to", required=True, metavar="DIR", help="folder for the text; the same command goes on there")
    dump.add_argument("--workers", **workers)
    dump.set_defaults(job=extract)
    book = jobs.add_parser("books", help="turn Project Gutenberg's books into plain text", allow_abbrev=False)
    book.add_argument("--books", nargs="+", required=True, metavar="PATH", help="text files, or folders of .txt files")
    book.add_argument("--to", required=True, metavar="DIR", help="folder for the text; the same command goes on there")
    book.add_argument("--workers", **workers)
    book.set_defaults(job=gutenberg)


def add_task_jobs(jobs):
    """pairs, passages and submission."""
    both = jobs.add_parser("pairs", help="filter parallel text by length and ratio", allow_abbrev=False)
    both.add_argument("--text", required=True, metavar="PREFIX", help="PREFIX.en and PREFIX.de")
    both.add_argument("--to", required=True, metavar="PREFIX", help="where the filtered ones go")
    both.add_argument("--shortest", type=whole, default=1, metavar="N", help="fewest pieces a side (default: 1)")
    both.add_argument("--longest", type=number, default=250, metavar="N",
                      help="most pieces a side, 0: any (default: 250)")
    both.add_argument("--ratio", type=number, default=1.5, metavar="X", help="of the lengths, 0: any (default: 1.5)")
    both.add_argument("--tokenizer", metavar="PATH", help="its pieces are counted; without one words")
    both.add_argument("--cased", action="store_true", help="the tokenizer keeps capitals and accents")
    both.add_argument("--source", default="en", metavar="XX", help="ending of the one side (default: en)")
    both.add_argument("--target", default="de", metavar="XX", help="ending of the other (default: de)")
    both.set_defaults(job=pairs)
    dev = jobs.add_parser("passages", help="the text of SQuAD's and RACE's dev sets", allow_abbrev=False)
    dev.add_argument("--squad", nargs="+", default=[], metavar="FILE", help="dev-v1.1.json and others")
    dev.add_argument("--race", metavar="DIR", help="the folder with dev")
    dev.add_argument("--to", required=True, metavar="FILE", help="the text file to write")
    dev.set_defaults(job=passages)
    board = jobs.add_parser("submission", help="the files of the GLUE leaderboard", allow_abbrev=False)
    board.add_argument("--runs", nargs="+", required=True, metavar="RUN", help="run folders of fine-tunings")
    board.add_argument("--to", required=True, metavar="DIR", help="folder for the files; DIR.zip is made beside it")
    board.add_argument("--fill", nargs="*", default=[], metavar="NAME", help="files that a constant may stand for")
    board.set_defaults(job=submission)


def main():
    args = parser().parse_args()
    if not hasattr(args, "job"):
        parser().print_help()
        return 0
    return args.job(args)


if __name__ == "__main__":
    run(main)
