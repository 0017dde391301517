"""Demo data: real English text that every machine with Python and torch already has, and small tasks made from it
by rules. Nothing is downloaded, and the scores mean nothing outside this repository (README.md beside this file).

The text is the documentation that the installed Python, numpy and torch carry: the topics of help() and all that
stands between triple quotes in the source files, cleaned until running English is left. A document is a topic, or up
to 50 docstrings of a module, of which the corpus has those of two sentences or more, one behind the other. (With a
document for each, the words with which docstrings begin would tell the order of its sentences.)

Every label is decided by a rule, which asks for what masked words and neighbouring sentences teach: is the word order
natural, does this sentence continue that one, which word belongs in the gap. The file formats are the official ones.
"""
import hashlib
import inspect
import json
import os
import pathlib
import pydoc_data.topics
import random
import re
import shutil
import sysconfig
from collections import namedtuple
from itertools import chain

import numpy as np
import torch
from tqdm import tqdm

from common.cli import UserError
from common.checkpoint import lock, read_json, release_locks
from data.text import split_sentences

RECIPE = 14  # raised when a rule in this file changes: demo data of another recipe is refused
MARK = "demo.json"  # the file that says what a folder is; in an unfinished one it is empty
SEED = 20

# --- text ------------------------------------------------------------------------------------------------------------
# Folders without prose, or with so little for their size that reading them would double the time.
SKIPPED = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "testing", "_refs",
           "_prims", "_decomp", "_vendor", "_pyinstaller", "encodings", "sparse"}
# What is cut out of a docstring: a directive or a line that ends in ::, with all lines that are
# indented deeper; a doctest up to the next blank line; a heading with its underline; a line "name :
# type" of numpy's.
CODE = re.compile(r"(?m)^( *)(?:\.\. .*|.*::) *\n(?:(?:\1 +.*| *)\n)*"
                  r"|^ *>>>.*\n(?:.*\S.*\n)*")
HEADING = re.compile(r"(?m)^.*\n *([-=~^*#\"+.])\1{2,} *$"
                     r"|^ *[\w.*`]+(?:, [\w.*`]+)* : .*$")
# Where a paragraph ends: at a blank line, and before a bullet, a number, ":param x: ..." and "x
# (int): ...".
PARAGRAPH_END = re.compile(r"(?m)\n\s*\n|^\s*(?:[-*+•]|\(?\d{1,2}[.)])\s+|^\s*:\w+[^:\n]{0,60}:\s+"
                           r"|^\s*[\w.*]+(?:, [\w.*]+)* ?(?:\([^)\n]{0,80}\))?(?::\s| --? )")
MARKUP = [(re.compile(pattern), plain) for pattern, plain in (
    (r":\w+(?::\w+)*:`~?(?:[^`<]*\.)?([^`<]*?)(?: ?<[^`>]*>)?`", r"\1"),  # :func:`~torch.sum` -> sum
    (r"`+([^`<]*?)(?: ?<[^`>]*>)?`+_{0,2}", r"\1"),  # literals and links
    (r"\*\*?([^*\s][^*]*)\*\*?", r"\1"),  # emphasis
    (r" ?\[[\w#-]+\]_", ""), ("’", "'"), ("[“”]", '"'))]
WORD = re.compile(r"[\"'(]*(?:[A-Za-z][a-z]*(?:['-][A-Za-z]+)*|[A-Z]{2,6}s?|\d+)[\"')]*[,;:.!?]?\)?")


def raw_documents():
    """(source, name, texts) of every help topic and module on this machine, a text being a topic or
    a docstring; source is language, python, numpy or torch. The order does not depend on the file
    system."""
    for name, text in sorted(pydoc_data.topics.topics.items()):
        yield "language", name, [text]
    roots = {"python": sysconfig.get_path("stdlib"), "numpy": np.__path__[0], "torch": torch.__path__[0]}
    for source, root in roots.items():
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in SKIPPED)
            for path in [pathlib.Path(folder, name) for name in sorted(names) if name.endswith(".py")]:
                texts = re.findall('"""(.*?)"""', path.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
                yield source, path.relative_to(root).as_posix(), texts


def is_prose(sentence):
    """True for a sentence of 4 to 60 words that ends as one and is at most one eighth identifiers,
    formulas and symbols."""
    words = sentence.split()
    if not (4 <= len(words) <= 60 and sentence[-1] in ".!?" and (sentence[0].isupper() or sentence[0] in "\"'(")):
        return False
    return 8 * sum(not WORD.fullmatch(word) for word in words) <= len(words)


def prose(text, seen):
    """The sentences of a docstring or topic that are English prose and not in the set `seen` yet,
    which they join."""
    kept = []
    text = CODE.sub("\n", inspect.cleandoc(text) + "\n")
    for paragraph in PARAGRAPH_END.split(HEADING.sub("\n", text)):
        for pattern, plain in MARKUP:
            paragraph = pattern.sub(plain, paragraph)
        sentences = split_sentences(" ".join(paragraph.split()))
        if len(sentences) == 1 and sentences[0][-1].isalnum():
            sentences[0] += "."  # a summary line or an entry of a list that leaves the full stop out
        for sentence in sentences:
            sentence = sentence[0].upper() + sentence[1:]
            if sentence not in seen and is_prose(sentence):
                seen.add(sentence)
                kept.append(sentence)
    return kept


Document = namedtuple("Document", "source name texts lines")  # texts: sentences, a list for each docstring; lines: all


def read_documents(least=8, most=50):
    """Documents of at most `most` docstrings, without a sentence that came before; those of fewer
    than `least` sentences are dropped."""
    documents, seen = [], set()
    bar = tqdm(raw_documents(), desc="reading documentation", unit=" modules", leave=False, disable=None)
    for source, name, texts in bar:
        kept = [sentences for text in texts if (sentences := prose(text, seen))]
        for start in range(0, len(kept), most):
            lines = list(chain.from_iterable(kept[start:start + most]))
            if len(lines) >= least:
                documents.append(Document(source, f"{source}/{name}/{start}", kept[start:start + most], lines))
    return documents


def deal(documents):
    """{part: documents} with part one of corpus, train, dev, test, dealt out by a hash of the
    document's name."""
    parts = {"corpus": [], "train": [], "dev": [], "test": []}
    for document in documents:
        share = int(hashlib.sha256(document.name.encode()).hexdigest()[:8], 16) % 1000
        part = "corpus" if share < 750 else "train" if share < 925 else "dev" if share < 963 else "test"
        parts[part].append(document)
    return parts


def corpus_files(documents):
    """One .txt file a source, one sentence a line, a blank line between documents."""
    for source in sorted({document.source for document in documents}):
        texts = [[text for text in document.texts if len(text) > 1] for document in documents
                 if document.source == source]
        yield f"{source}.txt", "\n\n".join("\n".join(chain.from_iterable(each)) for each in texts if each) + "\n"


# --- what the rules of the tasks are made of --------------------------------------------------------------------------
FUNCTION_WORDS = set("""a about after all also an and any are as at be because been before but by can does each either
    else for from had has have if in into is it its may more most must not of on only or other otherwise over same
    should so some such than that the their them then there these they this those to under until up used using was were
    what when where whether which while will with without would you your""".split())


def is_content(word):
    """True for a plain word that carries meaning: letters only, longer than three, no function
    word."""
    return len(word) > 3 and word.isalpha() and word.lower() not in FUNCTION_WORDS


def scramble(sentence, rng):
    """The sentence with its inner words in another order; the first and the last word, which show
    by their capital and full stop, stay in their places."""
    first, *inner, last = sentence.split()
    mixed = inner
    while mixed == inner:
        mixed = rng.sample(inner, len(inner))
    return " ".join([first, *mixed, last])


def thin(sentence, rng):
    """The sentence without some of its inner words, at least one and at most three tenths."""
    words = sentence.split()
    dropped = set(rng.sample(range(1, len(words) - 1), rng.randint(1, max(1, int(0.3 * len(words))))))
    return " ".join(word for position, word in enumerate(words) if position not in dropped)


def gap(sentence, rng, longest=3):
    """(words before, a phrase of 1 to `longest` plain words, words after), the phrase's first and
    last word content words; None where there is no such phrase."""
    words = sentence.split()
    spans = [(start, start + size) for size in range(1, longest + 1) for start in range(2, len(words) - size)]
    found = [(start, end) for start, end in spans if is_content(words[start]) and is_content(words[end - 1])
             and all(map(str.isalpha, words[start:end]))]
    if not found:
        return None
    start, end = rng.choice(found)
    return words[:start], words[start:end], words[end:]


def question(before, after, side=6):
    """A cloze question: up to `side` words on each side of the gap, with "what" in it."""
    text = " ".join([*before[-side:], "what", *after[:side]]).rstrip(".,;:!?")
    return text[0].upper() + text[1:] + "?"


# --- GLUE ------------------------------------------------------------------------------------------------------------
# A sentence, the one before it, one about another subject, and whether it is about torch (the other
# subject: the rest).
Draw = namedtuple("Draw", "line before far torch")


def draws(documents, rng, least, most=30):
    """Sentences of `least` to `most` words in a random order. Half of them are about torch, so that
    the subject says nothing about the label."""
    sides = [], []
    for document in documents:
        lines = document.lines
        sides[document.source == "torch"].extend(
            (lines, place) for place in range(1, len(lines)) if least <= len(lines[place].split()) <= most)
    for side in sides:
        rng.shuffle(side)
    for pair in zip(*sides):
        for torch in rng.sample((False, True), 2):
            (lines, place), (others, other) = pair[torch], pair[not torch]
            yield Draw(lines[place], lines[place - 1], others[other], torch)


def natural(text, label, rng):
    """The text as it is where the label says so, else scrambled."""
    return text if label in ("1", "entailment", "neutral") else scramble(text, rng)


def stsb(label, draw, rng):
    """5 x the share of the words outside a scrambled stretch."""
    words = draw.line.split()
    size = round((1 - float(label) / 5) * len(words))
    start = rng.randint(0, len(words) - size)
    stretch = scramble(" ".join(words[start:start + size]), rng).split() if size else []
    return [draw.line, " ".join(words[:start] + stretch + words[start + size:])]


def qqp(label, draw, rng):
    """Two cloze questions; where they are not about one sentence, the second is about the one
    before it or about a scrambled one."""
    other = draw.line if label == "1" else rng.choice((draw.before, scramble(draw.line, rng)))
    gaps = gap(draw.line, rng), gap(other, rng)
    return [question(before, after, 9) for before, _, after in gaps] if all(gaps) else None


GIVEAWAY = re.compile(r"(?i)tensor|torch|numpy|ndarray|array|cuda|python|autograd")
RULES = {  # what is asked: the text or texts of a row that has the label, None where the draw gives no such row
    # Is the word order natural?
    "CoLA": lambda label, draw, rng: [natural(draw.line, label, rng)],
    # Is the sentence, which does not name its origin, from torch, or from the rest?
    "SST-2": lambda label, draw, rng: (
        [draw.line] if draw.torch == (label == "1") and not GIVEAWAY.search(draw.line) else None),
    # Do both say the same (one sentence, thinned out twice), or is the second scrambled?
    "MRPC": lambda label, draw, rng: [thin(draw.line, rng), natural(thin(draw.line, rng), label, rng)],
    # How much of the first sentence's order is left in the second?
    "STS-B": stsb,
    # Do both questions ask about the same sentence?
    "QQP": qqp,
    # Is the second sentence the next one (entailment), one about another subject (neutral), or the
    # next one, scrambled?
    "MNLI": lambda label, draw, rng: [draw.before, natural(draw.far if label == "neutral" else draw.line, label, rng)],
    # Does the sentence answer the cloze question, or is it one that would, scrambled?
    "QNLI": lambda label, draw, rng: (found := gap(draw.line, rng)) and [
        question(found[0], found[2]), natural(draw.line, label, rng)],
    "RTE": lambda label, draw, rng: [draw.before, natural(draw.line, label, rng)]}  # as MNLI
ENTAILED = ("entailment", "not_entailment")
MNLI_COLUMNS = ("index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse"
                "|sentence2_parse|sentence1|sentence2")
STSB_COLUMNS = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
GLUE_DEV_ROWS = 600  # of dev and of test; the standard error of an accuracy near 0.8 is 1.6 points
# Task: rows to train on, least words of a sentence, labels, columns of the files with labels, of
# the test file.
GLUE = {
    "CoLA": (4000, 8, "01", "source|label|mark|sentence", "index|sentence"),
    "SST-2": (2400, 8, "01", "sentence|label", "index|sentence"),
    "MRPC": (3600, 12, "01", "Quality|#1 ID|#2 ID|#1 String|#2 String", "index|#1 ID|#2 ID|#1 String|#2 String"),
    "STS-B": (3600, 13, ("0.0", "1.0", "2.0", "3.0", "5.0"), STSB_COLUMNS + "|score", STSB_COLUMNS),
    "QQP": (3600, 10, "01", "id|qid1|qid2|question1|question2|is_duplicate", "id|question1|question2"),
    "MNLI": (4200, 8, ("entailment", "neutral", "contradiction"), MNLI_COLUMNS + "|label1|gold_label", MNLI_COLUMNS),
    "QNLI": (3600, 8, ENTAILED, "index|question|sentence|label", "index|question|sentence"),
    "RTE": (3600, 8, ENTAILED, "index|sentence1|sentence2|label", "index|sentence1|sentence2"),
}
FIRST = ("sentence1", "question", "question1", "#1 String")
LAST = ("sentence", "sentence2", "question2", "#2 String")
LABEL = ("label", "score", "is_duplicate", "gold_label", "label1", "Quality")


def make_rows(documents, count, least, labels, rule, rng):
    """Up to `count` rows (label, texts), as many of each label, in a random order."""
    rows, share = {label: [] for label in labels}, count // len(labels)
    for draw in draws(documents, rng, least):
        for label in sorted(labels, key=lambda label: len(rows[label])):
            if len(rows[label]) < share and (texts := rule(label, draw, rng)):
                rows[label].append((label, texts))
                break
    fewest = min(map(len, rows.values()))
    found = [row for each in rows.values() for row in each[:fewest]]
    rng.shuffle(found)
    return found


def tsv(columns, rows, header):
    """The text of a .tsv file; in a column of another name stands the row's number."""
    names = columns.split("|")
    lines = ["\t".join(names)] if header else []
    for index, (label, texts) in enumerate(rows):
        known = {**dict.fromkeys(FIRST, texts[0]), **dict.fromkeys(LAST, texts[-1]), **dict.fromkeys(LABEL, label)}
        lines.append("\t".join(known.get(name, str(index)) for name in names))
    return "\n".join(lines) + "\n"


def glue_files(parts):
    """The eight tasks with GLUE's folder names and file layouts; CoLA's labelled files have no
    header."""
    for task, (train_examples, least, labels, *columns) in GLUE.items():
        for part in ("train", "dev", "test"):
            for half in ("_matched", "_mismatched") if task == "MNLI" and part != "train" else ("",):
                count = train_examples if part == "train" else GLUE_DEV_ROWS
                rng = random.Random(f"{SEED} {task} {part}{half}")
                rows = make_rows(parts[part], count, least, labels, RULES[task], rng)
                yield (f"{task}/{part}{half}.tsv",
                       tsv(columns[part == "test"], rows, header=task != "CoLA" or part == "test"))


# --- SQuAD and RACE --------------------------------------------------------------------------------------------------
def passages(document, size):
    """The document cut into passages of `size` sentences; what is left over at its end is
    dropped."""
    lines = document.lines
    return [lines[start:start + size] for start in range(0, len(lines) - size + 1, size)]


def squad_paragraph(name, cut, number, version, rng):
    """Passage `number` of those in `cut` in SQuAD's JSON form, with up to two questions: a sentence
    with "what" for a phrase that is unmistakable. In version 2 every third question is about the
    passage before."""
    context, entries = " ".join(cut[number]), []
    for turn in range(2):
        impossible = version == 2 and len(cut) > 1 and (number + turn) % 3 == 0
        found = gap(rng.choice(cut[number - 1] if impossible else cut[number]), rng)
        answer = " ".join(found[1]) if found else ""
        if found and context.count(answer) == (0 if impossible else 1):
            entry = {"id": f"{name}-{number}-{turn}", "question": question(found[0], found[2]),
                     "answers": [] if impossible else [{"text": answer, "answer_start": context.index(answer)}]}
            entries.append({**entry, "is_impossible": impossible} if version == 2 else entry)
    return {"context": context, "qas": entries}


def squad_files(parts):
    """train- and dev- files of versions 1.1 and 2.0."""
    for version, label, suffix in ((1, "1.1", "v1.1"), (2, "v2.0", "v2.0")):
        for part in ("train", "dev"):
            rng, articles = random.Random(f"{SEED} squad {part} {version}"), []
            for document in parts[part]:
                cut = passages(document, 5)
                made = [squad_paragraph(document.name, cut, number, version, rng) for number in range(len(cut))]
                articles.append({"title": document.name, "paragraphs": [one for one in made if one["qas"]]})
            yield f"{part}-{suffix}.json", json.dumps({"version": label, "data": articles})


def options_in(lines):
    """The words that may be an option, sorted: content words in small letters."""
    return sorted({word for line in lines for word in line.split() if is_content(word) and word.islower()})


def race_article(passage, pool, rng):
    """One RACE file: an article and up to three cloze questions of four options, of which one
    stands in the article."""
    inside, entry = options_in(passage), {"article": " ".join(passage), "questions": [], "options": [], "answers": []}
    for line in rng.sample(passage, 3):
        before, [right], after = gap(line, rng, longest=1) or ([], [""], [])
        wrong = [word for word in rng.sample(pool, min(40, len(pool))) if word not in inside]
        if right in inside and len(wrong) > 2 and "_" not in line:
            options = rng.sample([right, *wrong[:3]], 4)
            entry["questions"].append(" ".join([*before, "_", *after]))
            entry["options"].append(options)
            entry["answers"].append("ABCD"[options.index(right)])
    return entry


def race_files(parts):
    """{train,dev,test}/{middle,high}/N.txt, one JSON object a file; middle has short articles."""
    for part in ("train", "dev", "test"):
        pool = options_in(chain.from_iterable(document.lines for document in parts[part]))
        for number, (level, size) in enumerate((("middle", 6), ("high", 12))):
            rng = random.Random(f"{SEED} race {part} {level}")
            articles = [passage for document in parts[part] for passage in passages(document, size)]
            for place, passage in enumerate(articles[number::2]):
                if (entry := race_article(passage, pool, rng))["questions"]:
                    yield f"{part}/{level}/{place}.txt", json.dumps({**entry, "id": f"{level}{place}.txt"}) + "\n"


# --- translation -----------------------------------------------------------------------------------------------------
# A made-up German: these words have others, all others change their sounds, and verbs stand at the
# end of their clause.
COMMON_GERMAN = dict(pair.split(":") for pair in """the:das a:ein of:von and:und or:oder is:ist are:sind to:zu for:für
    with:mit this:dies that:dass it:es not:nicht if:wenn be:sein by:durch from:aus as:als can:kann all:alle""".split())
SOUNDS = {"tion": "zung", "ing": "end", "ment": "mang", "ough": "och", "sh": "sch", "th": "d", "ch": "tsch", "ph": "f",
          "qu": "kw", "oo": "u", "ee": "ie", "ea": "ei", "ou": "au", "ly": "lich", "c": "k", "d": "t", "v": "w",
          "x": "ks", "y": "ig", "w": "v", "j": "dsch"}
SOUND = re.compile("|".join(SOUNDS))
VERBS = set("is are was were can must may will should has have does do returns return".split())
PLAIN = re.compile(r"[A-Z][a-z]*(?: [a-z]+(?:[,;:](?= ))?){3,24}\.")  # translated: words, commas and one full stop


def german(word):
    """The German of an English word in small letters."""
    return COMMON_GERMAN.get(word) or SOUND.sub(lambda match: SOUNDS[match[0]], word)


def translate(sentence):
    """The German of a plain sentence: word by word, the first verb of a clause at the clause's
    end."""
    clauses = []
    for clause, mark in re.findall(r"([^,;:.]+)([,;:.])", sentence.lower()):
        words = clause.split()
        verb = next((place for place, word in enumerate(words) if place and word in VERBS), None)
        if verb is not None:
            words.append(words.pop(verb))
        clauses.append(" ".join(map(german, words)) + mark)
    text = " ".join(clauses)
    return text[0].upper() + text[1:]


def translation_files(documents):
    """train (up to 10,000 pairs), valid and test (400 each), .en and .de."""
    lines = [line for document in documents for line in document.lines if PLAIN.fullmatch(line)]
    random.Random(f"{SEED} translation").shuffle(lines)
    for part, english in (("valid", lines[:400]), ("test", lines[400:800]), ("train", lines[800:10_800])):
        yield f"{part}.en", "\n".join(english) + "\n"
        yield f"{part}.de", "\n".join(map(translate, english)) + "\n"


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


def picture(label, rng):
    """A (3, 32, 32) uint8 picture: the label's shape somewhere, slightly turned, in a colour near
    its favourite one, under noise. Colours say something but not everything, as in photographs:
    with colours that say nothing a small transformer sees only chance for its first thousand
    updates."""
    centre, size, angle = rng.uniform(10, 21, 2), rng.uniform(5, 12), rng.uniform(-0.4, 0.4)
    rows, columns = np.mgrid[:32, :32] - centre[:, None, None]
    x = (np.cos(angle) * columns + np.sin(angle) * rows) / size
    y = (np.cos(angle) * rows - np.sin(angle) * columns) / size
    favourite = 127 + 100 * np.cos(2 * np.pi * (label / 10 + np.arange(3) / 3))  # around the wheel of hues
    ground, colour = rng.uniform(0, 255, 3), favourite + rng.normal(0, 50, 3)
    while abs(ground - colour).max() < 60:
        ground = rng.uniform(0, 255, 3)
    inside = list(SHAPES.values())[label](x, y)
    pixels = np.where(inside, colour[:, None, None], ground[:, None, None]) + rng.normal(0, 25, (3, 32, 32))
    return pixels.clip(0, 255).astype(np.uint8)


def cifar10_files():
    """The binary version's list of names, five training batches and test batch; the classes are
    shapes."""
    yield "batches.meta.txt", "\n".join(SHAPES) + "\n\n"
    rng = np.random.default_rng(SEED)
    sizes = {**{f"data_batch_{number}.bin": 800 for number in range(1, 6)}, "test_batch.bin": 1000}
    for name, records in sizes.items():
        labels = rng.permutation(np.arange(records) % 10).tolist()
        yield name, b"".join(bytes([label]) + picture(label, rng).tobytes() for label in labels)


# --- the folder ------------------------------------------------------------------------------------------------------
def build(folder):
    """Write all demo data below `folder`, the content of demo.json last."""
    folder.mkdir(exist_ok=True)
    (folder / MARK).touch()
    documents = read_documents()
    size = sum(len(line.encode()) + 1 for document in documents for line in document.lines)
    parts, digest = deal(documents), hashlib.sha256()
    sets = {"corpus": corpus_files(parts["corpus"]), "glue": glue_files(parts), "squad": squad_files(parts),
            "race": race_files(parts), "cifar10": cifar10_files(), "translation": translation_files(documents)}
    for name, files in tqdm(sets.items(), desc="making demo data", leave=False, disable=None):
        for path, content in files:
            content = content if isinstance(content, bytes) else content.encode()
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_bytes(content)
            digest.update(f"{name}/{path} {len(content)}\n".encode() + content)
    about = {"recipe": RECIPE, "sha256": digest.hexdigest(), "text_bytes": size, "documents": len(documents)}
    (folder / MARK).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def is_complete(folder):
    """Whether demo data of this recipe is in the folder. UserError where something else is
    there."""
    if not (folder / MARK).exists():
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder}: not empty and not demo data; choose another folder with --to")
        return False
    if read_json(folder / MARK, dict).get("recipe") != RECIPE:
        raise UserError(f"{folder}: made by another version of this program; delete it, the same command makes it")
    return True


def make_demo(folder):
    """Make the demo data in `folder`, unless it is there; returns its paths.

    Returns {corpus, glue, squad, race, cifar10: folders; train_text, valid_text, test_text:
    prefixes of .en and .de; sha256: of the contents}, all strings. The folder appears under its
    name only when it is complete, so a killed run leaves nothing half-made there; of two processes
    that want it at once one makes it and the other waits. UserError where `folder` holds something
    else. Complete demo data is only read: it may stand on a read-only disk. """
    folder = pathlib.Path(folder)
    place = folder.resolve()  # a link to an empty folder stays a link
    made, held = place.with_name(f"{place.name}.part"), place.with_name(f"{place.name}.lock")
    if not is_complete(folder):
        place.parent.mkdir(parents=True, exist_ok=True)
        lock(held, wait=True, what="the demo data")
        try:
            if not is_complete(folder):
                remove_unfinished(made)
                build(made)
                made.rename(place)
        finally:
            release_locks(held)
    paths = {name: str(folder / name) for name in ("corpus", "glue", "squad", "race", "cifar10")}
    paths.update((f"{part}_text", str(folder / "translation" / part)) for part in ("train", "valid", "test"))
    return {**paths, "sha256": read_json(folder / MARK, dict)["sha256"]}


def remove_unfinished(made):
    """Delete what a killed process left of the folder that build() makes. UserError where it is
    somebody else's."""
    if made.exists() and any(made.iterdir()) and not (made / MARK).exists():
        raise UserError(f"{made}: in the way of the demo data, and this command has not made it; move it away")
    if made.exists():
        shutil.rmtree(made)
