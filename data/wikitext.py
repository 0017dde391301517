"""The markup of MediaWiki pages -> running text.

    prose, faults = plain(markup, Names.of(header))     # paragraphs, one a line; how many brackets had no partner

What is kept is what BERT kept of Wikipedia: only the text passages, no lists, tables and headers (arXiv 1810.04805v2,
Sec. 3.1). Left out: templates, tables, references, formulas, comments, files, categories, links to other languages,
headings, and every line that is an item of a list, so also the lists of links at the end of an article. Templates are
not expanded, so a sentence may lack what a template would have written into it; those that stand for a sign (SIGNS) or
only forbid a line break are read.
"""
import html
import re
from typing import NamedTuple

MOST_FAULTS = 20  # brackets without a partner; a page with more of them is given up
DROPPED = ("ref", "math", "chem", "ce", "gallery", "timeline", "syntaxhighlight", "source", "score", "hiero",
           "imagemap", "graph", "mapframe", "maplink", "templatedata", "templatestyles", "includeonly", "pre", "table",
           "style", "references", "section", "inputbox", "categorytree", "indicator")

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NOWIKI = re.compile(r"<nowiki\s*>(.*?)</nowiki\s*>", re.DOTALL | re.IGNORECASE)
EMPTY_ELEMENT = re.compile(rf"<(?:{'|'.join(DROPPED)})\b[^<>]*/>", re.IGNORECASE)
ELEMENT = re.compile(rf"<({'|'.join(DROPPED)})\b[^<>]*>[^<]*(?:<(?!/?\1\b)[^<]*)*</\1\s*>", re.IGNORECASE)
UNCLOSED_ELEMENT = re.compile(rf"<({'|'.join(DROPPED)})\b[^<>]*>.*|</({'|'.join(DROPPED)})\s*>", re.IGNORECASE)
SIGNS = {"'": "'", "`": "'", "'s": "'s", "ndash": "–", "en dash": "–", "mdash": "—", "em dash": "—", "snd": " – ",
         "spnd": " – ", "spaced ndash": " – ", "nbsp": " ", "thinsp": " ", "=": "=", "&": "&"}  # what templates write
READ = re.compile(r"\{\{ *(?:(" + "|".join(map(re.escape, SIGNS)) + r")|(?:nowrap|nobr) *\|([^{}|=]*)) *\}\}", re.I)
PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
BRACKET = re.compile(r"\{[{|]|\}\}|\|\}(?!\}(?!\}))")  # "|}}" ends a template, "|}}}" a table and a template
PARTNER = {"}}": "{{", "|}": "{|"}
EXTERNAL = re.compile(r"\[(?:(?:https?|ftps?|news|mailto|irc):|//)[^\s\[\]<>\"]+([^\[\]\n]*)\]", re.IGNORECASE)
LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
LANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple)(?:-[a-z]+)*:\S.*")  # "de:Fluss", not "CSI: Miami"
MEDIUM = re.compile(r"\w+:.*\.(?:jpe?g|png|svg|gif|tiff?|webp|webm|og[agv]|pdf|djvu)\s*", re.IGNORECASE)
EMPHASIS = re.compile(r"'{2,}")
SWITCH = re.compile(r"__[A-Z]{3,}__")
BREAK = re.compile(r"</?(?:br|p|div|blockquote|center|hr)\b[^<>]*>", re.IGNORECASE)
TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
HEADING = re.compile(r"=+.*=+")
HOLLOW = re.compile(r"\(\s*(?:[,;:–-]\s*)+")  # "(; born 1950)": what a template wrote there is gone
EMPTY = re.compile(r" ?(?:\(\s*\)|\[\s*\])")
BEFORE_MARK = re.compile(r" +(?=[,.;)](?:\s|$))")
HIDDEN = {ord(sign): 0xE000 + number for number, sign in enumerate("[]{}|'=*#:;<>_&")}  # what nowiki protects
SHOWN = {place: sign for sign, place in HIDDEN.items()}


class Names(NamedTuple):
    """What links of a wiki begin with, in lower case: files and categories in its own language and in English."""
    files: frozenset = frozenset(("file", "image", "media"))
    categories: frozenset = frozenset(("category",))

    @classmethod
    def of(cls, header):
        """Those that the <siteinfo> of a dump lists; header: the beginning of its XML."""
        own = {int(key): name.lower() for key, name in re.findall(r'<namespace key="(-?\d+)"[^>]*>([^<]+)</', header)}
        plain = cls()
        return cls(plain.files | {own[key] for key in (-2, 6) if key in own},
                   plain.categories | {own[key] for key in (14,) if key in own})


def without_elements(text):
    """Without comments and the elements of DROPPED, innermost first; (text, faults)."""
    text, faults = COMMENT.sub("", text), 0
    if "<!--" in text:  # MediaWiki hides everything behind it
        text, faults = text[:text.index("<!--")], 1
    if "<" not in text:
        return text, faults
    text = EMPTY_ELEMENT.sub("", text)
    while (shorter := ELEMENT.sub("", text)) != text:
        text = shorter
    text, found = UNCLOSED_ELEMENT.subn("", text)  # nobody can say where it should have ended: the line's rest goes
    return text, faults + found


def outermost(text):
    """([(start, end)] of the outermost templates and tables, start of one without an end or None, strays).

    strays: (start, end) of closing brackets that nothing opened."""
    spans, strays, stack = [], [], []
    for match in BRACKET.finditer(text):
        sign, start = match.group(), match.start()
        if "|" in sign and text[text.rfind("\n", 0, start) + 1:start].strip(" \t:*#"):
            continue  # tables begin and end at the beginning of a line
        if sign not in PARTNER:
            stack.append((sign, start))
        elif PARTNER[sign] not in (opened for opened, _ in stack):
            strays.append(match.span())
        else:
            while (opened := stack.pop())[0] != PARTNER[sign]:
                pass  # a bracket inside that was never closed ends with the one around it
            if not stack:
                spans.append((opened[1], match.end()))
    return spans, stack[0][1] if stack else None, strays


def without_templates(text):
    """Without templates and tables; (text, faults). What is never closed ends with its paragraph."""
    text, kept, faults = PARAMETER.sub("", text), [], 0
    while True:
        spans, unclosed, strays = outermost(text)
        end = len(text) if unclosed is None else unclosed
        place = 0
        for start, stop in sorted(spans + [stray for stray in strays if stray[0] < end]):
            if start >= place:
                kept.append(text[place:start])
                place = stop
        kept.append(text[place:end])
        faults += len(strays) + (unclosed is not None)
        if unclosed is None or faults > MOST_FAULTS:
            return "".join(kept), faults
        after = text.find("\n\n", unclosed)
        text = text[after:] if after >= 0 else ""


def linked(match, names):
    """What a link without links inside shows. A file may have a prefix that no dump lists ("Bild:" of the German
    Wikipedia); its ending gives it away."""
    target, bar, label = match.group(1).partition("|")
    prefix, colon, _ = target.partition(":")
    if colon and (prefix.strip().lower() in names.files | names.categories or MEDIUM.fullmatch(target)):
        return ""
    if colon and not bar and LANGUAGE.fullmatch(target.strip()):
        return ""
    return label if bar else target.strip().removeprefix(":")


def without_links(text, names):
    """Links as what they show; (text, faults)."""
    text = EXTERNAL.sub(lambda match: match.group(1).strip(), text)
    while "[[" in text and (shorter := LINK.sub(lambda match: linked(match, names), text)) != text:
        text = shorter
    faults = text.count("[[") + text.count("]]")
    if faults:
        files = "|".join(map(re.escape, names.files | names.categories))
        text = re.sub(rf"\[\[ *(?:{files}) *:.*", "", text, flags=re.IGNORECASE)
        text = text.replace("[[", "").replace("]]", "")
    return text, faults


def odd_apostrophe(line, runs):
    """Where bold and italic are both unpaired in a line one bold is an apostrophe and an italic: the index of its run,
    else None. It is the first behind a word of one letter (l'''eau''), else behind a word (''Time'''s), else any."""
    marks = [5 if len(run) > 4 else 3 if len(run) > 2 else 2 for run in map(re.Match.group, runs)]
    unpaired = [(marks.count(mark) + marks.count(5)) % 2 for mark in (2, 3)]
    places = {}  # {0: behind a letter, 1: a word, 2: a blank}: the first run of three
    for index, (run, mark) in enumerate(zip(runs, marks)):
        before = line[max(0, run.start() - 2):run.start()]
        if mark == 3:
            places.setdefault(2 if not before or before[-1] == " " else 0 if before[0] == " " else 1, index)
    return places[min(places)] if all(unpaired) and places else None


def without_emphasis(line):
    """A line without the apostrophes of bold and italic, as MediaWiki's doQuotes reads them; those of words stay."""
    runs = list(EMPHASIS.finditer(line))
    odd, kept, end = odd_apostrophe(line, runs), [], 0
    for index, run in enumerate(runs):
        length = len(run.group())
        letters = (index == odd) + (1 if length == 4 else max(0, length - 5))  # bold and italic take 2, 3 or 5
        kept += [line[end:run.start()], "'" * letters]
        end = run.end()
    return "".join([*kept, line[end:]])


def paragraphs(text):
    """The lines that are running text, tidied up."""
    for line in text.split("\n"):
        line = line.strip()
        if not line or line[0] in "*#:;|!" or HEADING.fullmatch(line) or line.startswith("----"):
            continue
        line = without_emphasis(line) if "''" in line else line
        line = html.unescape(line) if "&" in line else line
        line = EMPTY.sub("", HOLLOW.sub("(", line)) if "(" in line or "[" in line else line
        line = BEFORE_MARK.sub("", " ".join(line.split()))
        if any(char.isalnum() for char in line):
            yield line


def plain(markup, names=Names()):
    """([paragraph], faults) of a page's markup; faults: brackets and elements without a partner."""
    hidden = "<nowiki" in markup
    if hidden:
        markup = NOWIKI.sub(lambda match: match.group(1).translate(HIDDEN), markup)
    text, faults = without_elements(markup.replace("\r\n", "\n"))
    if "{{" in text:
        text = READ.sub(lambda match: SIGNS[match.group(1).lower()] if match.group(1) else match.group(2), text)
    text, more = without_templates(text)
    faults += more
    text, more = without_links(text, names)
    text = SWITCH.sub("", text)
    text = TAG.sub("", BREAK.sub("\n", text)) if "<" in text else text
    found = list(paragraphs(text))
    return [line.translate(SHOWN) for line in found] if hidden else found, faults + more
