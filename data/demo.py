"""Demo data: real English text that every machine with Python and torch already has, and small tasks made from it
by rules. Nothing is downloaded, and the scores mean nothing outside this repository (README.md beside this file).

The text is the documentation that the installed Python, numpy and torch carry, read with `ast` from the source files
(no module is imported), and cleaned until running English is left. One module or topic is a document of the tasks; in
the corpus each docstring of two sentences or more is one, so that the order of sentences has a meaning. Documents are
dealt out by a hash of their names, so that nothing a task shows was ever in the pre-training text:

    corpus   75%   one sentence a line, a blank line between documents (the input format of BERT and ALBERT)
    tasks    25%   of which 70% feed the train files, 15% dev, 15% test

Every label is decided by a rule, which asks for what masked words and neighbouring sentences teach: is the word order
natural, does this sentence continue that one, which word belongs in the gap. The file formats are the official ones.
"""
import ast
import collections
import contextlib
import hashlib
import importlib.util
import inspect
import json
import os
import pathlib
import random
import re
import shutil
import sysconfig
import tempfile
import warnings
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from common.cli import UserError
from common.files import read_json

RECIPE = 12  # raised when a rule in this file changes: demo data of an older recipe is made anew
SEED = 20
LEAST_BYTES = 1_000_000  # of corpus text; less teaches a demo model nothing

# --- text ------------------------------------------------------------------------------------------------------------
# Folders without prose, or with so little for their size that parsing them would double the time.
SKIPPED = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "testing", "_refs",
           "_prims", "_decomp", "_vendor", "_pyinstaller", "encodings", "sparse"}
LITERAL = re.compile(r"\.\. (?:code|code-block|sourcecode|testcode|testoutput|testsetup|doctest|math|productionlist"
                     r"|index|image|figure|table|list-table|plot|autosummary)::")
ITEM = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)])\s+"  # a bullet, a number
                  r"|:\w+[^:]{0,60}:\s+"  # :param x:
                  r"|[\w.*]+(?:, [\w.*]+)* ?(?:\([^)]{0,80}\))?(?:: | --? )")  # x (int):
TYPED = re.compile(r"[*\w.`]+(?:, [*\w.`]+)* : ")  # numpy's "name : type" lines
RULE = re.compile(r"([-=~^*#\"+.])\1{2,}$")  # the underline of a heading
STOPS = ("e.g.", "i.e.", "etc.", "vs.", "cf.", "Dr.", "Mr.", "al.", "approx.", "No.", "Fig.", "Eq.")
BREAK = re.compile(r"(?<=[.!?])(?:(?<=\.)[\"')])?\s+(?=[\"'(]?[A-Z])")
WORD = re.compile(r"[\"'(]*(?:[A-Za-z][a-z]*(?:['’-][A-Za-z]+)*|[A-Z]{2,6}s?|\d+)[\"')]*[,;:.!?]*\)?")
NOT_PROSE = re.compile(r"[\\{}|@^$#~_<>=\[\]]|\.\.\.|::|\w\(\)|https?:|www\.|\S\.\S|--")


def source_files(root):
    """The .py files under `root` that may hold prose, in an order that does not depend on the file system."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            if name.endswith(".py"):
                yield pathlib.Path(folder, name)


def docstrings(body):
    """The docstrings of functions, classes and methods in a list of statements, and the texts handed to
    add_docstr() and its kin."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""
            if isinstance(node, ast.ClassDef):
                yield from docstrings(node.body)
        elif isinstance(node, (ast.Expr, ast.Assign)) and isinstance(node.value, ast.Call):
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.count("\n") > 1:
                    yield inspect.cleandoc(part.value)


def module_docstrings(path):
    """All docstrings of one source file; [] for files with few, and for those that this Python can't parse."""
    source = path.read_bytes()
    if 3000 * source.count(b'"""') < len(source):  # a fifth of the time for a twentieth of the text
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escape sequences
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return [ast.get_docstring(tree) or "", *docstrings(tree.body)]


def without_code(text):
    """(indent, line) of a docstring's lines, ("", 0) for blank ones; doctests, literal blocks and directive lines
    are left out."""
    literal, doctest = None, False  # literal: lines indented deeper than this are code
    for line in text.expandtabs().splitlines():
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        doctest = bool(stripped) and (doctest or stripped.startswith(">>>"))
        if stripped and literal is not None and indent <= literal:
            literal = None
        if not stripped:
            yield 0, ""
        elif literal is None and not doctest:
            if LITERAL.match(stripped) or stripped.endswith("::"):
                literal = indent
            if not stripped.startswith(".. "):
                yield indent, stripped


def paragraphs(text):
    """The paragraphs and list items of a docstring, each as one line; headings and `name : type` lines are left out."""
    block, level, item = [], 0, False
    for indent, line in [*without_code(text), (0, "")]:
        starts_item, typed, rule = ITEM.match(line), TYPED.match(line), RULE.match(line)
        if not line or starts_item or typed or rule or indent < level or (indent > level and not item):
            if block and not rule:
                yield " ".join(block)
            block, level, item = [], indent, bool(starts_item)
        if line and not typed and not rule:
            block.append(line[starts_item.end():] if starts_item else line)


def unmarked(text):
    """A paragraph without reStructuredText markup: roles, references, literals and emphasis become their plain
    words."""
    text = re.sub(r":\w+(?::\w+)*:`~?([^`<]*?)(?: ?<[^`>]*>)?`", lambda match: match[1].split(".")[-1], text)
    text = re.sub(r"`+([^`<]*?)(?: ?<[^`>]*>)?`+_{0,2}", r"\1", text)
    text = re.sub(r"\*\*?([^*\s][^*]*)\*\*?", r"\1", text)
    text = re.sub(r" ?\[[\w#-]+\]_", "", text)
    return " ".join(text.replace("’", "'").replace("“", '"').replace("”", '"').split())


def sentences(paragraph):
    """The sentences of a paragraph; a break after an abbreviation is none."""
    start = 0
    for match in BREAK.finditer(paragraph):
        if not paragraph[:match.start()].endswith(STOPS):
            yield paragraph[start:match.start() + len(match[0].rstrip())]
            start = match.end()
    rest = paragraph[start:]
    if not start and rest[-1:].isalnum() and len(rest.split()) > 4:
        rest += "."  # a summary line or an entry of a list that leaves the full stop out
    yield rest


def is_prose(sentence):
    """True for a sentence of 4 to 60 words that ends as one and is at most one eighth identifiers, formulas and
    symbols."""
    words = sentence.split()
    if not (4 <= len(words) <= 60 and sentence[-1] in ".!?" and (sentence[0].isupper() or sentence[0] in "\"'(")):
        return False
    odd = sum(1 for word in words if not WORD.fullmatch(word) or NOT_PROSE.search(word))
    return 8 * odd <= len(words)


def prose(text, seen):
    """The sentences of a docstring or help text that are English prose and not in the set `seen` yet, which they
    join."""
    kept = []
    for paragraph in paragraphs(text):
        for sentence in sentences(unmarked(paragraph)):
            sentence = sentence[:1].upper() + sentence[1:]
            if sentence not in seen and is_prose(sentence):
                seen.add(sentence)
                kept.append(sentence)
    return kept


def raw_documents():
    """(source, name, texts) of every module and help topic on this machine, a text being one docstring or topic; source
    is language, python, numpy or torch."""
    topics = importlib.util.find_spec("pydoc_data.topics")
    if topics:
        for node in ast.walk(ast.parse(pathlib.Path(topics.origin).read_bytes())):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values):
                    yield "language", key.value, [ast.literal_eval(value)]
    roots = {"python": sysconfig.get_path("stdlib")}
    for name in ("numpy", "torch"):
        if spec := importlib.util.find_spec(name):  # found, not imported
            roots[name] = spec.submodule_search_locations[0]
    for source, root in roots.items():
        for path in source_files(root):
            yield source, path.relative_to(root).as_posix(), module_docstrings(path)


class Document(NamedTuple):
    """Neighbouring sentences of one module or topic. owners: for each of them the number of its docstring there."""
    source: str
    name: str
    lines: list
    owners: list


def read_documents(least=8, most=200):
    """Documents without a sentence that came before; of fewer than `least` sentences dropped, longer than `most` cut.
    """
    documents, seen = [], set()
    bar = tqdm(raw_documents(), desc="reading documentation", unit=" modules", leave=False, disable=None)
    for source, name, texts in bar:
        kept = [(sentence, owner) for owner, text in enumerate(texts) for sentence in prose(text, seen)]
        for start in range(0, len(kept), most):
            if len(part := kept[start:start + most]) >= least:
                documents.append(Document(source, f"{source}/{name}/{start}", *map(list, zip(*part))))
    return documents


def deal(documents):
    """{part: documents} with part one of corpus, train, dev, test, dealt out by a hash of the document's name."""
    parts = {"corpus": [], "train": [], "dev": [], "test": []}
    for document in documents:
        share = int(hashlib.sha256(document.name.encode()).hexdigest()[:8], 16) % 1000
        part = "corpus" if share < 750 else "train" if share < 925 else "dev" if share < 963 else "test"
        parts[part].append(document)
    return parts


# --- what the rules of the tasks are made of ------------------------------------------------------------------------
FUNCTION_WORDS = set("""a about after all also an and any are as at be because been before but by can does each either
    else for from had has have if in into is it its may more most must not of on only or other otherwise over same
    should so some such than that the their them then there these they this those to under until up used using was were
    what when where whether which while will with without would you your""".split())


def is_content(word):
    """True for a plain word that carries meaning: letters only, longer than three, no function word."""
    return len(word) > 3 and word.isalpha() and word.lower() not in FUNCTION_WORDS


def pick(documents, rng, count, least=8, most=30):
    """`count` (lines of a document, position) pairs of different sentences with `least` to `most` words, or as many as
    there are."""
    places = [(document.lines, position) for document in documents for position, line in enumerate(document.lines)
              if least <= len(line.split()) <= most]
    return rng.sample(places, min(count, len(places)))


def scramble(sentence, rng):
    """The sentence with its inner words in another order; the first and the last word, which show by their capital and
    full stop, stay in their places."""
    first, *inner, last = sentence.split()
    mixed = rng.sample(inner, len(inner))
    while mixed == inner:
        mixed = rng.sample(inner, len(inner))
    return " ".join([first, *mixed, last])


def thin(sentence, rng, most=0.3):
    """The sentence without some of its inner words, at least one and at most the share `most`."""
    words = sentence.split()
    dropped = set(rng.sample(range(1, len(words) - 1), rng.randint(1, max(1, int(most * len(words))))))
    return " ".join(word for position, word in enumerate(words) if position not in dropped)


def neighbour(lines, position, rng, reach=6):
    """Another sentence of the same document, at most `reach` sentences away."""
    near = range(max(0, position - reach), min(len(lines), position + reach + 1))
    return lines[rng.choice([other for other in near if other != position])]


def gap(sentence, rng, longest=3):
    """(words before, a phrase of 1 to `longest` plain words, words after), the phrase's first and last word content
    words; None if 30 draws find none."""
    words = sentence.split()
    for _ in range(30):
        size = rng.randint(1, longest)
        start = rng.randint(2, max(2, len(words) - size - 2))
        phrase = words[start:start + size]
        plain = is_content(phrase[0]) and is_content(phrase[-1]) and all(word.isalpha() for word in phrase)
        if plain and start + size < len(words):
            return words[:start], phrase, words[start + size:]
    return None


def question(before, after, side=6):
    """A cloze question: up to `side` words on each side of the gap, with "what" in it."""
    text = " ".join([*before[-side:], "what", *after[:side]]).rstrip(".,;:!?")
    return text[0].upper() + text[1:] + "?"


# --- GLUE ------------------------------------------------------------------------------------------------------------
def similarity(row, lines, position, rng):
    """How much of the first sentence's order is left in the second? 5 x the share of the words outside a scrambled
    stretch."""
    words, share = lines[position].split(), rng.choice((0, 4, 6, 8, 10)) / 10
    size = round(share * len(words))
    start = rng.randint(0, len(words) - size)
    stretch = scramble(" ".join(words[start:start + size]), rng).split() if share else []
    return 5 - 5 * share, [lines[position], " ".join(words[:start] + stretch + words[start + size:])], False


def two_questions(row, lines, position, rng):
    """Do two cloze questions ask about the same sentence (1), or does the second one ask about a neighbour or a
    scrambled sentence (0)?"""
    line = lines[position]
    other = line if row % 2 else scramble(line, rng) if row % 4 else neighbour(lines, position, rng)
    gaps = gap(line, rng), gap(other, rng)
    return (row % 2, [question(before, after, 9) for before, _, after in gaps], False) if all(gaps) else None


def answer(row, lines, position, rng):
    """Does the sentence answer the cloze question, or is it one that would, scrambled?"""
    found = gap(lines[position], rng)
    return (ENTAILED[row % 2], [question(found[0], found[2]), lines[position]], row % 2 == 0) if found else None


def places(least=8, times=1):
    """What draws sentences of `least` words or more, with the documents that they stand in; `times` as many as rows
    are wanted, where some give no row."""
    return lambda documents, rng, count: pick(documents, rng, times * count, least)


def subjects(documents):
    """[documents about everything else, documents about torch]."""
    return [[document for document in documents if (document.source == "torch") == torch] for torch in (False, True)]


def by_subject(documents, rng, count):
    """Sentences about everything else and about torch, in turns, that do not name the answer."""
    sides = []
    for subject in subjects(documents):
        texts = [lines[position] for lines, position in pick(subject, rng, 2 * count)]
        sides.append([text for text in texts if not GIVEAWAY.search(text)][:count // 2])
    return [(line,) for pair in zip(*sides) for line in pair]


def continuations(documents, rng, count):
    """Triples of sentences: one, the next one, and one about another subject. Half of them begin in torch, half in
    everything else, so that the second and the third are drawn alike and only the first can tell which of them
    continues it."""
    texts = [[(lines[position - 1], lines[position]) for lines, position in pick(subject, rng, 2 * count) if position]
             for subject in subjects(documents)]
    pairs = [zip(texts[side], rng.sample(texts[1 - side], len(texts[1 - side]))) for side in (0, 1)]
    triples = [(first, second, other) for both in zip(*pairs) for (first, second), (_, other) in both]
    return triples[:count]


ENTAILED, LABELS = ("not_entailment", "entailment"), ("entailment", "neutral", "contradiction")
GIVEAWAY = re.compile(r"(?i)tensor|torch|numpy|ndarray|array|cuda|python|autograd")
# Task: what is drawn for its rows; the rule, which makes of a row's number, what was drawn for it and a random
# generator (label, texts, whether the last text is then scrambled), or None where the draw gives no row.
RULES = {
    # Is the word order natural (1) or scrambled (0)?
    "CoLA": (places(), lambda row, lines, position, rng: (row % 2, [lines[position]], row % 2 == 0)),
    # Does the sentence come from torch (1) or from the rest (0)?
    "SST-2": (by_subject, lambda row, line, rng: (row % 2, [line], False)),
    # Do both say the same (1: one sentence, thinned out twice) or not (0: the second then scrambled)?
    "MRPC": (places(12), lambda row, lines, position, rng: (
        row % 2, [thin(lines[position], rng), thin(lines[position], rng)], row % 2 == 0)),
    "STS-B": (places(13), similarity),
    "QQP": (places(10, 2), two_questions),
    # Is the second sentence the next one (entailment), one about another subject (neutral), or the next one, scrambled?
    "MNLI": (continuations, lambda row, first, following, other, rng: (
        LABELS[row // 2 % 3], [first, other if row // 2 % 3 == 1 else following], row // 2 % 3 == 2)),
    "QNLI": (places(8, 2), answer),
    # Does the second sentence follow the first, or is it the one that does, scrambled?
    "RTE": (continuations, lambda row, first, following, other, rng: (
        ENTAILED[row // 2 % 2], [first, following], row // 2 % 2 == 0)),
}
MNLI_HEADER = ("index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
               "sentence2_parse sentence1 sentence2")
STSB_HEADER = "index genre filename year old_index source1 source2 sentence1 sentence2"
GLUE_DEV_ROWS = 600  # of dev and of test; the standard error of an accuracy near 0.8 is 1.6 points
# Task: rows to train on, header of the files with labels, row layout, header of the test file, row layout; {i} is the
# line's number, {y} the label, {a} and {b} the texts. CoLA's labelled files have no header.
GLUE = {
    "CoLA": (4000, "", "demo {y} {star} {a}", "index sentence", "{i} {a}"),
    "SST-2": (2400, "sentence label", "{a} {y}", "index sentence", "{i} {a}"),
    "MRPC": (3600, "Quality|#1 ID|#2 ID|#1 String|#2 String", "{y} {i}1 {i}2 {a} {b}",
             "index|#1 ID|#2 ID|#1 String|#2 String", "{i} {i}1 {i}2 {a} {b}"),
    "STS-B": (3600, STSB_HEADER + " score", "{i} demo demo none {i} none none {a} {b} {y}",
              STSB_HEADER, "{i} demo demo none {i} none none {a} {b}"),
    "QQP": (3600, "id qid1 qid2 question1 question2 is_duplicate", "{i} {i}1 {i}2 {a} {b} {y}",
            "id question1 question2", "{i} {a} {b}"),
    "MNLI": (4200, MNLI_HEADER + " label1 gold_label", "{i} {i} {i}d demo - - - - {a} {b} {y} {y}",
             MNLI_HEADER, "{i} {i} {i}d demo - - - - {a} {b}"),
    "QNLI": (3600, "index question sentence label", "{i} {a} {b} {y}", "index question sentence", "{i} {a} {b}"),
    "RTE": (3600, "index sentence1 sentence2 label", "{i} {a} {b} {y}", "index sentence1 sentence2", "{i} {a} {b}"),
}


def make_rows(draw, rule, documents, count, rng):
    """Up to `count` rows (label, texts) in a random order."""
    rows = []
    for drawn in draw(documents, rng, count):
        made = rule(len(rows), *drawn, rng)
        if made and len(rows) < count:
            label, texts, scrambled = made
            rows.append((label, [*texts[:-1], scramble(texts[-1], rng)] if scrambled else texts))
    rng.shuffle(rows)
    return rows


def tsv(header, layout, rows):
    """The text of a .tsv file; `layout` is a row with one space between the fields, `header` one with spaces or
    bars between them."""
    lines = [header.replace("|" if "|" in header else " ", "\t")] if header else []
    for index, (label, texts) in enumerate(rows):
        values = {"i": index, "y": label, "a": texts[0], "b": texts[-1], "star": "" if label else "*"}
        lines.append(layout.replace(" ", "\t").format(**values))
    return "\n".join(lines) + "\n"


def glue_files(parts):
    """The eight tasks with GLUE's folder names and file layouts; counted: rows."""
    for task, (train_rows, header, layout, *of_test) in GLUE.items():
        for part in ("train", "dev", "test"):
            for half in ("_matched", "_mismatched") if task == "MNLI" and part != "train" else ("",):
                name = f"{task}/{part}{half}"
                count = train_rows if part == "train" else GLUE_DEV_ROWS
                rows = make_rows(*RULES[task], parts[part], count, random.Random(f"{SEED} {task} {part}{half}"))
                yield f"{name}.tsv", tsv(*(of_test if part == "test" else (header, layout)), rows), name, len(rows)


# --- SQuAD and RACE --------------------------------------------------------------------------------------------------
def runs(documents, least_words):
    """[(name, [runs])]: the documents cut into runs of neighbouring sentences with at least `least_words` words
    each."""
    cut = []
    for document in documents:
        pieces, run = [], []
        for line in document.lines:
            run.append(line)
            if sum(len(part.split()) for part in run) >= least_words:
                pieces.append(run)
                run = []
        if pieces:
            cut.append((document.name, pieces))
    return cut


def squad_question(run, context, rng):
    """(question, answer, its character offset in `context`) about one sentence of a run; None where no gap is
    unmistakable."""
    line = rng.choice(run)
    found = gap(line, rng) if len(line.split()) > 6 else None
    if not found or context.count(" ".join(found[1])) != 1:
        return None
    answer = " ".join(found[1])
    return question(found[0], found[2]), answer, context.index(answer)


def squad_paragraph(title, number, pieces, rng, version):
    """One paragraph in SQuAD's JSON form with up to three questions; in version 2 every third question is about
    another paragraph."""
    context, entries = " ".join(pieces[number]), []
    for turn in range(3):
        impossible = version == 2 and len(pieces) > 1 and (number + turn) % 3 == 0
        about = pieces[number - 1] if impossible else pieces[number]
        made = squad_question(about, " ".join(about), rng)
        if made and not (impossible and made[1] in context):
            text, answer, start = made
            entry = {"id": hashlib.sha256(f"{title} {number} {turn} {version}".encode()).hexdigest()[:24],
                     "question": text, "answers": [] if impossible else [{"text": answer, "answer_start": start}]}
            entries.append({**entry, "is_impossible": impossible} if version == 2 else entry)
    return {"context": context, "qas": entries}


def squad_files(parts):
    """train- and dev- files of versions 1.1 and 2.0; counted: questions."""
    for version, label, suffix in ((1, "1.1", "v1.1"), (2, "v2.0", "v2.0")):
        for part in ("train", "dev"):
            rng, articles, name = random.Random(f"{SEED} squad {part} {version}"), [], f"{part}-{suffix}"
            for title, pieces in runs(parts[part], 60):
                made = [squad_paragraph(title, number, pieces, rng, version) for number in range(len(pieces))]
                if asked := [paragraph for paragraph in made if paragraph["qas"]]:
                    articles.append({"title": title, "paragraphs": asked})
            count = sum(len(paragraph["qas"]) for article in articles for paragraph in article["paragraphs"])
            yield f"{name}.json", json.dumps({"version": label, "data": articles}), name, count


def options_in(lines):
    """The words that may be an option, sorted: content words in small letters."""
    return sorted({word for line in lines for word in line.split() if is_content(word) and word.islower()})


def race_article(run, pool, hard, rng):
    """One RACE file: an article and up to three cloze questions of four options; `hard` takes the wrong options
    from the article."""
    inside = options_in(run)
    entry = {"article": " ".join(run), "questions": [], "options": [], "answers": []}
    for line in rng.sample(run, min(3, len(run))):
        before, phrase, after = "_" not in line and gap(line, rng, longest=1) or ([], [""], [])
        drawn = inside if hard else rng.sample(pool, min(40, len(pool)))
        wrong = [word for word in drawn if word != phrase[0] and (hard or word not in inside)]
        if phrase[0] in inside and len(wrong) > 2:
            options = [phrase[0], *rng.sample(wrong, 3)]
            rng.shuffle(options)
            entry["questions"].append(" ".join([*before, "_", *after]))
            entry["options"].append(options)
            entry["answers"].append("ABCD"[options.index(phrase[0])])
    return entry


def race_files(parts):
    """{train,dev,test}/{middle,high}/N.txt, one JSON object a file; middle has short articles. Counted: questions."""
    for part in ("train", "dev", "test"):
        pool = options_in(line for document in parts[part] for line in document.lines)
        for level, least_words in (("middle", 70), ("high", 140)):
            rng, name = random.Random(f"{SEED} race {part} {level}"), f"{part}/{level}"
            articles = [run for _, pieces in runs(parts[part], least_words) for run in pieces][level == "high"::2]
            made = [race_article(run, pool, level == "high", rng) for run in articles]
            for number, entry in enumerate(entry for entry in made if entry["questions"]):
                text = json.dumps({**entry, "id": f"{level}{number}.txt"}) + "\n"
                yield f"{name}/{number}.txt", text, name, len(entry["questions"])


# --- translation -----------------------------------------------------------------------------------------------------
COMMON_GERMAN = dict(pair.split(":") for pair in """the:das a:ein an:einen of:von and:und or:oder is:ist are:sind
    was:war were:waren to:zu in:in for:für with:mit this:dies that:dass it:es not:nicht if:wenn be:sein by:durch
    from:aus as:als on:auf at:bei can:kann must:muss may:darf will:wird should:sollte has:hat have:haben when:wann
    which:welche all:alle no:kein only:nur""".split())
# Sound changes, tried in order at each place of a word; what none of them matches stays as it is.
SOUNDS = [("tion", "zung"), ("ing", "end"), ("ment", "mang"), ("ough", "och"), ("sh", "sch"), ("th", "d"), ("ck", "ck"),
          ("ch", "tsch"), ("ph", "f"), ("qu", "kw"), ("oo", "u"), ("ee", "ie"), ("ea", "ei"), ("ou", "au"),
          ("ly", "lich"), ("c", "k"), ("d", "t"), ("v", "w"), ("x", "ks"), ("y", "ig"), ("w", "v"), ("j", "dsch")]
SOUND = re.compile("|".join(source for source, _ in SOUNDS))
VERBS = set("is are was were can must may will should has have does do returns return".split())
PLAIN = re.compile(r"[A-Z][a-z]*(?: [a-z]+(?:[,;:](?= ))?){3,24}\.")  # translated: words, commas and one full stop


def lexicon(words):
    """{English word: made-up German word}, one to one: a word whose spelling is taken gets an e more. Words in a
    fixed order."""
    sounds, german = dict(SOUNDS), {word: COMMON_GERMAN[word] for word in sorted(words & COMMON_GERMAN.keys())}
    taken = set(COMMON_GERMAN.values())
    for word in sorted(words - german.keys()):
        made = SOUND.sub(lambda match: sounds[match[0]], word)
        while made in taken:
            made += "e"
        german[word] = made
        taken.add(made)
    return german


def translate(sentence, german):
    """The made-up German of a plain sentence: every word by the lexicon, the first verb of a clause at the clause's
    end."""
    clauses = []
    for clause, mark in re.findall(r"([^,;:.]+)([,;:.])", sentence.lower()):
        words = clause.split()
        verb = next((place for place, word in enumerate(words) if place and word in VERBS), None)
        if verb is not None:
            words.append(words.pop(verb))
        clauses.append(" ".join(german[word] for word in words) + mark)
    text = " ".join(clauses)
    return text[0].upper() + text[1:]


def translation_files(documents):
    """train (up to 10,000 pairs), valid and test (400 each), .en and .de; counted: pairs."""
    lines = [line for document in documents for line in document.lines if PLAIN.fullmatch(line)]
    random.Random(f"{SEED} translation").shuffle(lines)
    german = lexicon({word for line in lines for word in re.findall("[a-z]+", line.lower())})
    for part, english in (("valid", lines[:400]), ("test", lines[400:800]), ("train", lines[800:10_800])):
        yield f"{part}.en", "\n".join(english) + "\n", part, len(english)
        yield f"{part}.de", "\n".join(translate(line, german) for line in english) + "\n", part, 0


# --- pictures --------------------------------------------------------------------------------------------------------
SHAPES = {  # name: where the shape is, from x and y in shape coordinates (about -1 .. 1 inside the shape)
    "disc": lambda x, y: np.hypot(x, y) < 0.9,
    "ring": lambda x, y: abs(np.hypot(x, y) - 0.75) < 0.25,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) < 0.8,
    "frame": lambda x, y: abs(np.maximum(abs(x), abs(y)) - 0.75) < 0.2,
    "triangle": lambda x, y: (y < 0.7) & (y > 2 * abs(x) - 0.9),
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) < 0.28) & (np.maximum(abs(x), abs(y)) < 1),
    "bars": lambda x, y: (np.sin(7 * y) > 0) & (abs(x) < 1) & (abs(y) < 1),
    "columns": lambda x, y: (np.sin(7 * x) > 0) & (abs(x) < 1) & (abs(y) < 1),
    "checkers": lambda x, y: (np.sin(5 * x) * np.sin(5 * y) > 0) & (abs(x) < 1) & (abs(y) < 1),
    "pair": lambda x, y: np.hypot(abs(x) - 0.55, y) < 0.42,
}


def picture(shape, favourite, rng):
    """A (3, 32, 32) uint8 picture: the shape somewhere, slightly turned, in a colour near its favourite one, on any
    ground, under noise. Colours say something but not everything, as in photographs: with colours that say
    nothing a small transformer sees only chance for its first thousand updates."""
    centre, size, angle = rng.uniform(10, 21, 2), rng.uniform(5, 12), rng.uniform(-0.4, 0.4)
    rows, columns = np.mgrid[:32, :32] - centre[:, None, None]
    x = (np.cos(angle) * columns + np.sin(angle) * rows) / size
    y = (np.cos(angle) * rows - np.sin(angle) * columns) / size
    inside = shape(x, y)
    ground, colour = rng.uniform(0, 255, 3), favourite + rng.normal(0, 50, 3)
    while abs(ground - colour).max() < 60:
        ground = rng.uniform(0, 255, 3)
    pixels = np.where(inside, colour[:, None, None], ground[:, None, None]) + rng.normal(0, 25, (3, 32, 32))
    return pixels.clip(0, 255).astype(np.uint8)


def cifar10_files(train=4000, test=1000):
    """The binary version's list of names, five training batches and test batch; the classes are shapes. Counted:
    records."""
    yield "batches.meta.txt", "\n".join(SHAPES) + "\n\n", "", 0
    rng = np.random.default_rng(SEED)
    hues = np.arange(10)[:, None] / 10 + np.arange(3) / 3  # around the wheel
    shapes, favourites = list(SHAPES.values()), 127 + 100 * np.cos(2 * np.pi * hues)
    for name, records in [*((f"data_batch_{k}.bin", train // 5) for k in range(1, 6)), ("test_batch.bin", test)]:
        labels = rng.permutation(np.arange(records) % 10)
        rows = [bytes([label]) + picture(shapes[label], favourites[label], rng).tobytes() for label in labels.tolist()]
        yield name, b"".join(rows), name, records


# --- the folder ------------------------------------------------------------------------------------------------------
def corpus_files(documents):
    """One .txt file a source, one sentence a line, a blank line between docstrings of two sentences or more; counted:
    sentences."""
    for source in sorted({document.source for document in documents}):
        texts = []
        for document in documents:
            for owner in dict.fromkeys(document.owners) if document.source == source else ():
                own = [line for line, number in zip(document.lines, document.owners) if number == owner]
                texts += ["\n".join(own)] * (len(own) > 1)
        yield f"{source}.txt", "\n\n".join(texts) + "\n", source, sum(text.count("\n") + 1 for text in texts)


def fingerprint(folder):
    """SHA-256 over the names and contents of all files of a folder, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def build(folder):
    """Write all demo data into the empty folder `folder`, demo.json last."""
    documents = read_documents()
    size = sum(len(line.encode()) + 1 for document in documents for line in document.lines)
    if size < LEAST_BYTES:
        raise UserError(f"{sysconfig.get_path('stdlib')}: only {size:,} bytes of documentation on this machine, the "
                        f"demo data need {LEAST_BYTES:,}; use a Python with its docstrings, or pass your own data")
    parts = deal(documents)
    sets = {"corpus": corpus_files(parts["corpus"]), "glue": glue_files(parts), "squad": squad_files(parts),
            "race": race_files(parts), "cifar10": cifar10_files(), "translation": translation_files(documents)}
    counts = {name: collections.Counter() for name in sets}
    for name, files in tqdm(sets.items(), desc="making demo data", leave=False, disable=None):
        for path, content, counted, count in files:
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_bytes(content if isinstance(content, bytes) else content.encode())
            counts[name].update({counted: count} if counted else {})
    about = {"recipe": RECIPE, "sha256": fingerprint(folder), "text_bytes": size, "documents": len(documents),
             "counts": counts}
    (folder / "demo.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def finished(folder):
    """What demo.json says of a complete folder of this recipe; None where there is none."""
    try:
        about = read_json(folder / "demo.json", dict)
    except UserError:
        return None
    return about if about.get("recipe") == RECIPE and isinstance(about.get("sha256"), str) else None


def make_demo(folder):
    """Make the demo data in `folder`, unless it is there; returns its paths.

    Returns {corpus, glue, squad, race, cifar10: folders; train_text, valid_text, test_text: prefixes of .en and .de;
    sha256: of the contents}, all strings. The folder appears under its name only when it is complete, so a killed run
    leaves nothing half-made, and of two processes that make it at once the second one's work is thrown away. UserError
    where this machine has too little text, or where `folder` holds something else.
    """
    folder = pathlib.Path(folder)
    if not finished(folder):
        if folder.exists() and any(folder.iterdir()) and not (folder / "demo.json").exists():
            raise UserError(f"{folder}: not empty and not demo data; choose another folder with --to")
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = pathlib.Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            build(made)
            made.chmod(0o755)  # mkdtemp makes it private
            put(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    paths = {name: str(folder / name) for name in ("corpus", "glue", "squad", "race", "cifar10")}
    paths.update((f"{part}_text", str(folder / "translation" / part)) for part in ("train", "valid", "test"))
    return {**paths, "sha256": finished(folder)["sha256"]}


def put(made, folder):
    """Rename the finished folder `made` to `folder`; an older recipe there makes way, a finished one of another
    process stays."""
    with contextlib.suppress(OSError):  # another process was faster, and what it made is the same
        if folder.exists() and not finished(folder):
            folder.rename(made / "old")
        made.rename(folder)
