"""Demo data: English text that every machine with Python and torch already has, and small tasks
made from it by rules. Nothing is downloaded. The scores mean nothing outside this repository
(data/README.md).

The text is the documentation in the installed Python, numpy and torch: the topics of help() and
everything between triple quotes in the source files, reduced to running English. A document of the
corpus is a topic or a docstring of at least two sentences, so neighbouring sentences have an order
that can be learned. The half of the docstrings with one sentence is dropped, since they teach
nothing about order.

A rule decides every label. The rules of the GLUE tasks need different skills of a network: word
order, aggregation over a part of the text, counting to the k-th, retrieval, a wide window. Each
task has easy and hard examples. The file formats are the official ones.
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
import tempfile
import time
from collections import namedtuple
from itertools import chain

import numpy as np
import torch
from tqdm import tqdm

from common.cli import UserError
from common.files import read_json
from data.text import split_sentences

RECIPE = 16  # raised when a rule in this file changes. Demo data of another recipe is refused
MARK = "demo.json"  # identifies a folder. Written last
SCRATCH = "demo-unfinished-"  # the beginning of the name of a folder until it is complete
SEED = 20

# --- text ---
LEAST_DOCSTRINGS = 1000  # of a source. A complete one has several thousand
# Folders without prose, or with too little for their size: reading them would double the time.
SKIPPED = set("""__pycache__ site-packages dist-packages test tests idle_test lib2to3 testing _refs
    _prims _decomp _vendor _pyinstaller encodings sparse""".split())
# Removed parts of a docstring: a directive, or a line that ends in ::, with all lines that are
# indented deeper, a doctest up to the next blank line, a heading with its underline, and numpy's
# lines "name : type".
CODE = re.compile(r"(?m)^( *)(?:\.\. .*|.*::) *\n(?:(?:\1 +.*| *)\n)*"
                  r"|^ *>>>.*\n(?:.*\S.*\n)*")
HEADING = re.compile(r"(?m)^.*\n *([-=~^*#\"+.])\1{2,} *$"
                     r"|^ *[\w.*`]+(?:, [\w.*`]+)* : .*$")
# A paragraph ends at a blank line, and before a bullet, a number, ":param x: ..." and "x (int):
# ...".
PARAGRAPH_END = re.compile(r"(?m)\n\s*\n|^\s*(?:[-*+•]|\(?\d{1,2}[.)])\s+"
                           r"|^\s*:\w+[^:\n]{0,60}:\s+"
                           r"|^\s*[\w.*]+(?:, [\w.*]+)* ?(?:\([^)\n]{0,80}\))?(?::\s| --? )")
MARKUP = [(re.compile(pattern), plain) for pattern, plain in (
    # :func:`~torch.sum` -> sum
    (r":\w+(?::\w+)*:`~?(?:[^`<]*\.)?([^`<]*?)(?: ?<[^`>]*>)?`", r"\1"),
    (r"`+([^`<]*?)(?: ?<[^`>]*>)?`+_{0,2}", r"\1"),  # literals and links
    (r"\*\*?([^*\s][^*]*)\*\*?", r"\1"),  # emphasis
    (r" ?\[[\w#-]+\]_", ""),  # citations
    ("’", "'"),
    ("[“”]", '"'))]
WORD = re.compile(r"[\"'(]*(?:[A-Za-z][a-z]*(?:['-][A-Za-z]+)*|[A-Z]{2,6}s?|\d+)"
                  r"[\"')]*[,;:.!?]?\)?")


def raw_documents():
    """(source, name, texts) of every help topic and module on this machine. A text is a topic or a
    docstring. source is language, python, numpy or torch. The order does not depend on the file
    system."""
    for name, text in sorted(pydoc_data.topics.topics.items()):
        yield "language", name, [text]
    roots = {
        "python": sysconfig.get_path("stdlib"),
        "numpy": np.__path__[0],
        "torch": torch.__path__[0],
    }
    for source, root in roots.items():
        count = 0
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in SKIPPED)
            for name in sorted(name for name in names if name.endswith(".py")):
                path = pathlib.Path(folder, name)
                text = path.read_text(encoding="utf-8", errors="replace")
                texts = re.findall('"""(.*?)"""', text, re.DOTALL)
                count += len(texts)
                yield source, path.relative_to(root).as_posix(), texts
        if count < LEAST_DOCSTRINGS:
            raise UserError(f"{root}: {count} docstrings, too few for the demo data; install "
                            f"{source} with its .py files, or name your own data (data/README.md)")


def is_prose(sentence):
    """True for a sentence of 4 to 60 words with a capital and a final mark, and at most one eighth
    identifiers, formulas and symbols."""
    words = sentence.split()
    begins = sentence[0].isupper() or sentence[0] in "\"'("
    if not (4 <= len(words) <= 60 and begins and sentence[-1] in ".!?"):
        return False
    return 8 * sum(not WORD.fullmatch(word) for word in words) <= len(words)


def prose(text, seen):
    """The sentences of a docstring or topic that are English prose and not yet in the set `seen`.
    Adds them to it."""
    kept = []
    text = CODE.sub("\n", inspect.cleandoc(text) + "\n")
    for paragraph in PARAGRAPH_END.split(HEADING.sub("\n", text)):
        for pattern, plain in MARKUP:
            paragraph = pattern.sub(plain, paragraph)
        sentences = split_sentences(" ".join(paragraph.split()))
        if len(sentences) == 1 and sentences[0][-1].isalnum():
            sentences[0] += "."  # a summary line or an entry of a list without a full stop
        for sentence in sentences:
            sentence = sentence[0].upper() + sentence[1:]
            if sentence not in seen and is_prose(sentence):
                seen.add(sentence)
                kept.append(sentence)
    return kept


# lines: the sentences of all texts. texts: the sentences of each docstring
Document = namedtuple("Document", "source name texts lines")


def read_documents(least=8, most=50):
    """Documents of at most `most` docstrings of a module, without repeated sentences. Drops those
    with fewer than `least` sentences."""
    documents = []
    seen = set()
    bar = tqdm(raw_documents(), "reading documentation", unit=" modules", leave=False, disable=None)
    for source, name, texts in bar:
        kept = [sentences for text in texts if (sentences := prose(text, seen))]
        for start in range(0, len(kept), most):
            part = kept[start:start + most]
            lines = list(chain.from_iterable(part))
            if len(lines) >= least:
                documents.append(Document(source, f"{source}/{name}/{start}", part, lines))
    return documents


SHARES = {"corpus": 750, "train": 925, "dev": 963, "test": 1000}  # upper bound of each part


def deal(documents):
    """{part: documents} with the parts corpus, train, dev, test, chosen by a hash of the document's
    name."""
    parts = {part: [] for part in SHARES}
    for document in documents:
        number = int(hashlib.sha256(document.name.encode()).hexdigest()[:8], 16) % 1000
        part = next(part for part, end in SHARES.items() if number < end)
        parts[part].append(document)
    return parts


def corpus_files(documents):
    """One .txt file per source, with one sentence per line and a blank line between docstrings."""
    for source in sorted({document.source for document in documents}):
        texts = [text for document in documents if document.source == source
                 for text in document.texts if len(text) > 1]
        yield f"{source}.txt", "\n\n".join(map("\n".join, texts)) + "\n"


# --- what the rules of the tasks are made of ---
FUNCTION_WORDS = set("""a about after all also an and any are as at be because been before but by
    can does each either else for from had has have if in into is it its may more most must not of
    on only or other otherwise over same should so some such than that the their them then there
    these they this those to under until up used using was were what when where whether which while
    will with without would you your""".split())
NOUNS = """argument array attribute batch buffer call class code column context device dict element
    error event field file format function generator graph group index input item iterator key layer
    line list loop matrix message method mode model module name node number object output parameter
    path point process range request result row sequence server set shape size socket step stream
    string tensor test thread tuple type value variable vector version weight""".split()
STATES = "open empty large".split()
ORDINALS = "first second third fourth fifth".split()


def is_content(word):
    """True for a plain word with a meaning: letters only, longer than three, not a function
    word."""
    return len(word) > 3 and word.isalpha() and word.lower() not in FUNCTION_WORDS


def disorder(words, size, rng):
    """The words with a stretch of `size` inner ones in another order."""
    start = rng.randint(1, len(words) - size - 1)
    stretch = mixed = words[start:start + size]
    while mixed == stretch and len(set(stretch)) > 1:
        mixed = rng.sample(stretch, size)
    return words[:start] + mixed + words[start + size:]


def gap(sentence, rng, longest=3):
    """(words before, a phrase of 1 to `longest` plain words, words after). The phrase begins and
    ends with a content word. None if there is no such phrase."""
    words = sentence.split()
    spans = []
    for size in range(1, longest + 1):
        for start in range(2, len(words) - size):
            phrase = words[start:start + size]
            ends = is_content(phrase[0]) and is_content(phrase[-1])
            if ends and all(map(str.isalpha, phrase)):
                spans.append((start, start + size))
    if not spans:
        return None
    start, end = rng.choice(spans)
    return words[:start], words[start:end], words[end:]


def question(before, after):
    """A cloze question: "what" instead of the gap, with up to six words on each side."""
    text = " ".join([*before[-6:], "what", *after[:6]]).rstrip(".,;:!?")
    return text[0].upper() + text[1:] + "?"


def enumerated(items):
    """"a, b and c"."""
    return " and ".join(", ".join(items).rsplit(", ", 1))


PHRASE = re.compile(  # "of the nodes", followed by other words but no noun
    r"\b(?:at|by|for|from|in|of|on|to|with) (?:a|an|all|any|each|the|this) "
    r"(?!(?:default|empty|large|open)\b)[a-z]{3,8}"
    r"(?=[.,;:]| (?:and|are|as|at|by|for|from|in|is|of|on|or|to|will|with)\b)")


class Text:
    """Sentences and phrases of documents, drawn at random. The caller sets `rng`."""

    def __init__(self, documents):
        self.lines = [line for document in documents for line in document.lines]
        self.phrases = sorted({phrase for line in self.lines for phrase in PHRASE.findall(line)})

    def sentence(self, least, most):
        """The words of a sentence, or its first `least` to `most`."""
        while True:
            words = self.rng.choice(self.lines).split()
            if len(words) >= least:
                return words[:self.rng.randint(least, most)]

    def item(self, noun, most):
        """A noun phrase such as "the list of the nodes", with up to `most` phrases."""
        phrases = self.rng.choices(self.phrases, k=self.rng.randint(0, most))
        return " ".join(["the", noun, *phrases])


# --- GLUE ---
# A rule makes the text or texts of an example for a label. Examples are easy (few things, small
# distances) and hard (many things, large distances). A network learns the easy ones first. No rule
# compares two changing facts: such rules stay at chance for long and are then learned at once.


def cola(text, label):
    """Is the word order of a sentence or of its first 9 to 20 words natural, or is a stretch of 3
    to 6 words permuted?"""
    words = text.sentence(9, 20)
    if label == "0":
        words = disorder(words, text.rng.randint(3, 6), text.rng)
    return [" ".join(words)]


def sst2(text, label):
    """Are most of the things that it has now open? What it had does not count."""
    rng = text.rng
    before = rng.randint(1, 6)
    now = rng.choice((1, 3, 5))
    states = rng.choices(STATES[:2], k=before + now)
    if (states[before:].count("open") > now / 2) != (label in TRUE):
        states = [STATES[state == "open"] for state in states]
    nouns = rng.sample(NOUNS, len(states))
    items = [f"an {state} {noun}" for state, noun in zip(states, nouns)]
    return [f"It had {enumerated(items[:before])}, but now it has {enumerated(items[before:])}."]


def stsb(text, label):
    """5 x the fraction of the inner words outside a stretch in another order."""
    words = text.sentence(8, 10)
    size = round((1 - float(label) / 5) * (len(words) - 2))
    second = disorder(words, size, text.rng)
    return [" ".join(words), " ".join(second)]


def things(text, least, most, states, phrases, answer, marked=None):
    """(a sentence about `least` to `most` things with their states, the number of one of them). The
    state of this one is `answer`. The thing `marked` positions before it is called the default
    one."""
    rng = text.rng
    nouns = rng.sample(NOUNS, rng.randint(least, most))
    drawn = rng.choices(STATES[:states], k=len(nouns))
    number = rng.randrange(marked or 0, len(nouns))
    drawn[number] = answer
    if marked is not None:
        nouns[number - marked] = "default " + nouns[number - marked]
    items = [f"{text.item(noun, phrases)} is {state}" for noun, state in zip(nouns, drawn)]
    return enumerated(items).capitalize() + ".", number


def qnli(text, label):
    """Two to five things have a state. Is the k-th of them open?"""
    answer = "open" if label in TRUE else "empty"
    sentence, number = things(text, 2, 5, 2, 2, answer)
    return [f"Is the {ORDINALS[number]} one open?", sentence]


def mnli(text, label):
    """Two to four things have a state. Text 2 gives the state of the marked thing, the opposite, or
    something else."""
    answer = {"entailment": "open", "contradiction": "empty", "neutral": "large"}[label]
    return [things(text, 2, 4, 3, 3, answer, marked=0)[0], "The default one is open."]


def rte(text, label):
    """Three to five things have a state. Is the thing after the marked one open?"""
    answer = "open" if label in TRUE else "empty"
    sentence, _ = things(text, 3, 5, 2, 2, answer, marked=1)
    return [sentence, "The one after the default one is open."]


TRUE = ("1", "entailment")
ENTAILED = ("entailment", "not_entailment")
INFERRED = ("entailment", "neutral", "contradiction")
SCORES = ("0.0", "1.0", "2.0", "3.0", "5.0")
MNLI_COLUMNS = ("index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse"
                "|sentence1_parse|sentence2_parse|sentence1|sentence2")
STSB_COLUMNS = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
MRPC_COLUMNS = "#1 ID|#2 ID|#1 String|#2 String"
TRAIN_EXAMPLES = 8000  # of train
DEV_EXAMPLES = 1200  # of dev and of test. The standard error of an accuracy near 0.8 is 1.2 points
CHARACTERS = 195  # at most, per example: 64 tokens of the demo's vocabulary, with rare exceptions
# Task: rule, labels, columns of labelled files, columns of the test file. MRPC has RTE's rule, QQP
# has QNLI's.
GLUE = {
    "CoLA": (cola, "01", "source|label|mark|sentence", "index|sentence"),
    "SST-2": (sst2, "01", "sentence|label", "index|sentence"),
    "MRPC": (rte, "01", f"Quality|{MRPC_COLUMNS}", f"index|{MRPC_COLUMNS}"),
    "STS-B": (stsb, SCORES, f"{STSB_COLUMNS}|score", STSB_COLUMNS),
    "QQP": (qnli, "01", "id|qid1|qid2|question1|question2|is_duplicate", "id|question1|question2"),
    "MNLI": (mnli, INFERRED, f"{MNLI_COLUMNS}|label1|gold_label", MNLI_COLUMNS),
    "QNLI": (qnli, ENTAILED, "index|question|sentence|label", "index|question|sentence"),
    "RTE": (rte, ENTAILED, "index|sentence1|sentence2|label", "index|sentence1|sentence2"),
}
FIRST = ("sentence1", "question", "question1", "#1 String")
LAST = ("sentence", "sentence2", "question2", "#2 String")
LABEL = ("label", "score", "is_duplicate", "gold_label", "label1", "Quality")


def make_examples(text, count, rule, labels, seen, longest):
    """`count` new examples (label, texts) with balanced labels, in a random order, none longer than
    `longest`. Adds them to the set `seen`."""
    examples = []
    while len(examples) < count:
        label = labels[len(examples) % len(labels)]
        texts = rule(text, label)
        if (*texts,) not in seen and sum(map(len, texts)) <= longest:
            seen.add((*texts,))
            examples.append((label, texts))
    text.rng.shuffle(examples)
    return examples


def tsv(columns, examples, header):
    """The text of a .tsv file. Columns with other names contain the number of the example."""
    names = columns.split("|")
    lines = ["\t".join(names)] if header else []
    for index, (label, texts) in enumerate(examples):
        cells = {**dict.fromkeys(FIRST, texts[0]), **dict.fromkeys(LAST, texts[-1]),
                 **dict.fromkeys(LABEL, label)}
        lines.append("\t".join(cells.get(name, str(index)) for name in names))
    return "\n".join(lines) + "\n"


def glue_files(parts, tasks=None, longest=CHARACTERS):
    """The eight tasks with GLUE's folder names and file layouts. CoLA's labelled files have no
    header. tasks: a table that replaces GLUE. longest: characters of an example."""
    texts = {part: Text(parts[part]) for part in ("train", "dev", "test")}
    for task, (rule, labels, *columns) in (tasks or GLUE).items():
        seen = set()
        for part, text in texts.items():
            halves = ("_matched", "_mismatched") if task == "MNLI" and part != "train" else ("",)
            for half in halves:
                text.rng = random.Random(f"{SEED} {task} {part}{half}")
                count = TRAIN_EXAMPLES if part == "train" else DEV_EXAMPLES
                examples = make_examples(text, count, rule, labels, seen, longest)
                header = task != "CoLA" or part == "test"
                yield f"{task}/{part}{half}.tsv", tsv(columns[part == "test"], examples, header)


# --- SQuAD and RACE ---
def passages(document, size):
    """The document cut into passages of `size` sentences, without a shorter rest."""
    lines = document.lines
    return [lines[start:start + size] for start in range(0, len(lines) - size + 1, size)]


def squad_paragraph(name, cut, number, version, rng):
    """Passage `number` of `cut` in SQuAD's JSON form, with up to two questions: a sentence with
    "what" instead of an unambiguous phrase. In version 2 every third question is about the previous
    passage."""
    context = " ".join(cut[number])
    entries = []
    for turn in range(2):
        impossible = version == 2 and len(cut) > 1 and (number + turn) % 3 == 0
        parts = gap(rng.choice(cut[number - 1] if impossible else cut[number]), rng)
        if not parts:
            continue
        before, phrase, after = parts
        answer = " ".join(phrase)
        if context.count(answer) != (0 if impossible else 1):
            continue
        answers = []
        if not impossible:
            answers = [{"text": answer, "answer_start": context.index(answer)}]
        entry = {
            "id": f"{name}-{number}-{turn}",
            "question": question(before, after),
            "answers": answers,
        }
        if version == 2:
            entry["is_impossible"] = impossible
        entries.append(entry)
    return {"context": context, "qas": entries}


def squad_files(parts):
    """The train- and dev- files of versions 1.1 and 2.0."""
    for version, label, suffix in ((1, "1.1", "v1.1"), (2, "v2.0", "v2.0")):
        for part in ("train", "dev"):
            rng = random.Random(f"{SEED} squad {part} {version}")
            articles = []
            for document in parts[part]:
                cut = passages(document, 5)
                paragraphs = [squad_paragraph(document.name, cut, number, version, rng)
                              for number in range(len(cut))]
                paragraphs = [paragraph for paragraph in paragraphs if paragraph["qas"]]
                articles.append({"title": document.name, "paragraphs": paragraphs})
            yield f"{part}-{suffix}.json", json.dumps({"version": label, "data": articles})


def options_in(lines):
    """The sorted words that may be an option: content words in lower case."""
    words = {word for line in lines for word in line.split()}
    return sorted(word for word in words if is_content(word) and word.islower())


def race_article(passage, pool, rng):
    """One RACE file: an article and up to three cloze questions with four options. Only the right
    option occurs in the article."""
    inside = options_in(passage)
    entry = {
        "article": " ".join(passage),
        "questions": [],
        "options": [],
        "answers": [],
    }
    for line in rng.sample(passage, 3):
        before, [right], after = gap(line, rng, longest=1) or ([], [""], [])
        wrong = [word for word in rng.sample(pool, 40) if word not in inside]
        if right in inside and len(wrong) > 2 and "_" not in line:
            options = rng.sample([right, *wrong[:3]], 4)
            entry["questions"].append(" ".join([*before, "_", *after]))
            entry["options"].append(options)
            entry["answers"].append("ABCD"[options.index(right)])
    return entry


def race_files(parts):
    """{train,dev,test}/{middle,high}/N.txt, one JSON object per file. middle has short articles."""
    for part in ("train", "dev", "test"):
        pool = options_in(chain.from_iterable(document.lines for document in parts[part]))
        for start, level, size in ((0, "middle", 6), (1, "high", 12)):
            rng = random.Random(f"{SEED} race {part} {level}")
            articles = [passage for document in parts[part] for passage in passages(document, size)]
            for number, passage in enumerate(articles[start::2]):
                entry = race_article(passage, pool, rng)
                if entry["questions"]:
                    entry["id"] = f"{level}{number}.txt"
                    yield f"{part}/{level}/{number}.txt", json.dumps(entry) + "\n"


# --- translation ---
# An invented German: these words have translations, all other words change their sounds, and verbs
# move to the end of their clause.
COMMON_GERMAN = dict(pair.split(":") for pair in """the:das a:ein of:von and:und or:oder is:ist
    are:sind to:zu for:für with:mit this:dies that:dass it:es not:nicht if:wenn be:sein by:durch
    from:aus as:als can:kann all:alle""".split())
SOUNDS = dict(pair.split(":") for pair in """tion:zung ing:end ment:mang ough:och sh:sch th:d
    ch:tsch ph:f qu:kw oo:u ee:ie ea:ei ou:au ly:lich c:k d:t v:w x:ks y:ig w:v j:dsch""".split())
SOUND = re.compile("|".join(SOUNDS))
VERBS = set("is are was were can must may will should has have do does returns return".split())
# for translation: words, commas and one full stop
PLAIN = re.compile(r"[A-Z][a-z]*(?: [a-z]+(?:[,;:](?= ))?){3,24}\.")


def german(word):
    """The German of an English word in lower case."""
    return COMMON_GERMAN.get(word) or SOUND.sub(lambda match: SOUNDS[match[0]], word)


def translate(sentence):
    """The German of a plain sentence: word by word, with the first verb of a clause at its end."""
    clauses = []
    for clause, mark in re.findall(r"([^,;:.]+)([,;:.])", sentence.lower()):
        words = clause.split()
        verbs = [place for place, word in enumerate(words) if place and word in VERBS]
        if verbs:
            words.append(words.pop(verbs[0]))
        clauses.append(" ".join(map(german, words)) + mark)
    text = " ".join(clauses)
    return text[0].upper() + text[1:]


def translation_files(documents):
    """train (up to 10,000 pairs), valid and test (400 each), .en and .de."""
    lines = [line for document in documents for line in document.lines if PLAIN.fullmatch(line)]
    random.Random(f"{SEED} translation").shuffle(lines)
    splits = {
        "valid": lines[:400],
        "test": lines[400:800],
        "train": lines[800:10_800],
    }
    for part, english in splits.items():
        yield f"{part}.en", "\n".join(english) + "\n"
        yield f"{part}.de", "\n".join(map(translate, english)) + "\n"


# --- pictures ---
def shapes(x, y):
    """{name: where the shape is}. x, y: shape coordinates, about -1 .. 1 inside the shape."""
    distance = np.hypot(x, y)
    side = np.maximum(abs(x), abs(y))
    return {
        "disc": distance < 0.9,
        "ring": abs(distance - 0.75) < 0.25,
        "square": side < 0.8,
        "frame": abs(side - 0.75) < 0.2,
        "triangle": (y < 0.7) & (y > 2 * abs(x) - 0.9),
        "cross": (np.minimum(abs(x), abs(y)) < 0.28) & (side < 1),
        "bars": (np.sin(7 * y) > 0) & (side < 1),
        "columns": (np.sin(7 * x) > 0) & (side < 1),
        "checkers": (np.sin(5 * x) * np.sin(5 * y) > 0) & (side < 1),
        "pair": np.hypot(abs(x) - 0.55, y) < 0.42,
    }


def picture(label, rng):
    """A (3, 32, 32) uint8 picture: the label's shape at a random place, slightly turned, in a
    colour near the label's, with noise. Colours help but do not decide, as in photographs: with
    random colours a small transformer stays at chance for its first thousand steps."""
    centre = rng.uniform(10, 21, 2)
    size = rng.uniform(5, 12)
    angle = rng.uniform(-0.4, 0.4)
    rows, columns = np.mgrid[:32, :32] - centre[:, None, None]
    x = (np.cos(angle) * columns + np.sin(angle) * rows) / size
    y = (np.cos(angle) * rows - np.sin(angle) * columns) / size
    hue = 127 + 100 * np.cos(2 * np.pi * (label / 10 + np.arange(3) / 3))  # around the wheel
    ground = rng.uniform(0, 255, 3)
    colour = hue + rng.normal(0, 50, 3)
    while abs(ground - colour).max() < 60:
        ground = rng.uniform(0, 255, 3)
    inside = list(shapes(x, y).values())[label]
    pixels = np.where(inside, colour[:, None, None], ground[:, None, None])
    return (pixels + rng.normal(0, 25, (3, 32, 32))).clip(0, 255).astype(np.uint8)


def cifar10_files():
    """The files of the binary version: the list of names, five training batches and a test batch.
    The classes are shapes."""
    yield "batches.meta.txt", "\n".join(shapes(0, 0)) + "\n\n"
    rng = np.random.default_rng(SEED)
    sizes = {f"data_batch_{number}.bin": 800 for number in range(1, 6)}
    sizes["test_batch.bin"] = 1000
    for name, records in sizes.items():
        labels = rng.permutation(np.arange(records) % 10).tolist()
        yield name, b"".join(bytes([label]) + picture(label, rng).tobytes() for label in labels)


# --- the folder ---
def build(folder):
    """Write all demo data below `folder`, demo.json last."""
    documents = read_documents()
    parts = deal(documents)
    digest = hashlib.sha256()
    sets = {
        "corpus": corpus_files(parts["corpus"]),
        "glue": glue_files(parts),
        "squad": squad_files(parts),
        "race": race_files(parts),
        "cifar10": cifar10_files(),
        "translation": translation_files(documents),
    }
    for name, files in tqdm(sets.items(), desc="making demo data", leave=False, disable=None):
        for path, content in files:
            content = content if isinstance(content, bytes) else content.encode()
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_bytes(content)
            digest.update(f"{name}/{path} {len(content)}\n".encode() + content)
    about = {"recipe": RECIPE, "sha256": digest.hexdigest()}
    (folder / MARK).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def is_complete(folder):
    """True if the folder has demo data of this recipe. UserError for other content."""
    if not (folder / MARK).exists():
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder}: not empty and not demo data; "
                            "choose another folder with --to")
        return False
    if read_json(folder / MARK).get("recipe") != RECIPE:
        raise UserError(f"{folder}: made by another version of this program; delete it, "
                        "the same command makes it")
    return True


def remove_killed(folder):
    """Remove the unfinished demo data of killed processes. They were begun an hour ago or more,
    since another process may be making its own."""
    for scratch in folder.glob(f"{SCRATCH}*"):
        if time.time() - scratch.stat().st_mtime > 3600:
            shutil.rmtree(scratch, ignore_errors=True)


def make_demo(folder):
    """Make the demo data in `folder`, unless it exists.

    Returns a dictionary of strings: the folders corpus, glue, squad, race, cifar10, the prefixes
    train_text, valid_text, test_text of .en and .de, and the sha256 of the contents. The folder
    gets its name only when it is complete, so a killed run leaves no incomplete folder there. If
    two processes make it at once, the first to finish keeps its own. UserError if `folder` has
    other content. Complete demo data is only read, and may be on a read-only disk."""
    folder = pathlib.Path(folder)
    remove_killed(folder.resolve().parent)
    if not is_complete(folder):
        place = folder.resolve()  # a link to an empty folder stays a link
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=place.parent) as scratch:
            made = pathlib.Path(scratch, "demo")
            build(made)
            try:
                made.rename(place)
            except OSError:
                if not is_complete(folder):  # else another process was faster
                    raise
    paths = {name: str(folder / name) for name in ("corpus", "glue", "squad", "race", "cifar10")}
    for part in ("train", "valid", "test"):
        paths[f"{part}_text"] = str(folder / "translation" / part)
    return {**paths, "sha256": read_json(folder / MARK)["sha256"]}
