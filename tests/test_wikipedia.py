"""The extraction of Wikipedia dumps: markup, dumps of every make, workers, kills; and the download by date."""
import bz2
import hashlib
import html
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.cli import UserError
from data import outputs, wikipedia
from data.text import layout_of, read_documents
from data.wikitext import Names, plain

ROOT = Path(__file__).resolve().parent.parent
HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <namespaces>
      <namespace key="-2" case="first-letter">Medium</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""
PROSE = "The river rises in the hills. It then runs north for some days, and meets the sea. " * 3


def text_of(markup, names=Names()):
    return "\n".join(plain(markup, names)[0])


@pytest.mark.parametrize("markup, expected", [
    ("A '''bold''' and ''slanted'' [[word]].", "A bold and slanted word."),
    ("See [[Target page|the label]]s, [[:Category:Rivers]] and [[a#b|c]].", "See the labels, Category:Rivers and c."),
    ("Before {{a|{{b|{{c}} {{{1|x}}}}} }} after.", "Before after."),
    ("Text.\n{{Infobox\n| name = {{lang|de|X}}\n| map = {{map\n|}}\n}}\nMore.", "Text.\nMore."),
    ("Above.\n{| class=\"x\"\n! head\n|-\n| cell || {{t|}}\n|\n{|\n| inner\n|}\n|}\nBelow.", "Above.\nBelow."),
    ("A<ref name=\"x/y\">One {{cite|b}}</ref> fact<ref name=x /> here.<ref>Two <math>x</math></ref>", "A fact here."),
    ("Energy <math display=\"block\">E = mc^2 < 3</math> is mass<sup>2</sup>.", "Energy is mass2."),
    ("<div class=\"x\">A box<br />two lines</div> <span style='a'>kept</span>.", "A box\ntwo lines\nkept."),
    ("<!-- a {{comment}} -->Shown<!-- [[one]]\nmore -->.", "Shown."),
    ("[[File:a.jpg|thumb|A [[caption|link]] with [http://a.b c].]]Text.", "Text."),
    ("== Heading ==\nText.\n=== ''Sub'' ===\n* item\n# one\n: indented\n; term\n----\n__NOTOC__", "Text."),
    ("A [http://example.org/x?y label] and [https://example.org].", "A label and."),
    ("Text.\n[[Category:Rivers]]\n[[de:Fluss]]\n[[wikt:word|word]]", "Text.\nword"),
    ("5&nbsp;km &ndash; &lt;b&gt; &amp; more.", "5 km – <b> & more."),
    ("Use <nowiki>[[x]] {{y}} ''z''</nowiki> so.", "Use [[x]] {{y}} ''z'' so."),
    ("Berlin ({{lang|de|x}}; {{ipa|y}}, born 1237) is ({{z}}) old {{w}}.", "Berlin (born 1237) is old."),
    ("{{#if: x | [[File:b.png|{{c}}]] }}Text.", "Text."),
    ("\n".join(["<gallery>", "a.jpg|One", "b.jpg|Two", "</gallery>", "Text."]), "Text."),
    ("[[CSI: Miami]] and [[NYPD Blue]] [[fr:Fleuve]][[zh-min-nan:X]].", "CSI: Miami and NYPD Blue."),
    ("[[Bild:x y.JPG|mini|Of [[a]].]]Text, [[Bild: a word]].", "Text, Bild: a word."),
    ("Near '''x''' l'''eau'' de '''y''' et ''z''.", "Near x l'eau de y et z."),
    ("''Time'''s cover and '''''Ahab'''''.", "Time's cover and Ahab."),
    ("The ''''70s''', then '''a''' ''b''.\n''Open\nand '''bold", "The '70s, then a b.\nOpen\nand bold"),
    ("''Titanic''{{'}}s bow, {{Nowrap|12 May}}{{snd}}{{convert|5|km}}.", "Titanic's bow, 12 May –."),
    ("A<ref name=\"a>b\">x</ref> <code>i</code><nowiki/>s {{#tag:ref|x{{y}}}}<s>old</s> [//a.b c].", "A is old c."),
    ("{|\n|-\n! a {{!}} b\n{{!}} c || {| d |}\n|}\n<table><tr><td>x<table></table></td></tr></table>Text.", "Text."),
    ("<blockquote>Quoted.</blockquote><!-- {{ [[ <ref> -->After<ref>a <!-- </ref> --> b</ref>.", "Quoted.\nAfter."),
])
def test_markup(markup, expected):
    found, faults = plain(markup)
    assert "\n".join(found) == expected and not faults


@pytest.mark.parametrize("markup, expected, faults", [
    ("One {{open [[x]] two.\nThree.\n\nFour.", "One\nFour.", 1),  # a paragraph is lost, not the page
    ("One }} two.", "One two.", 1),
    ("One {{a {| b }} two.", "One two.", 0),
    ("{|\n| {{a\n|}\nText.", "Text.", 0),
    ("{|\n| never closed\n\nText.", "Text.", 1),
    ("One <ref>lost two.\nThree.", "One\nThree.", 1),
    ("One <ref>lost <ref>right</ref> two.\nThree.", "One\nThree.", 1),
    ("One </ref> two.", "One two.", 1),
    ("One [[a|b two.\nThree]] four.", "One b two.\nThree four.", 0),
    ("One [[b two. [[c]]", "One b two. c", 1),
    ("Text. [[File:x.jpg|thumb|lost\nThree.", "Text.\nThree.", 1),
    ("Shown. <!-- hidden to the end", "Shown.", 1),
    ("{{" * 40 + "\n\nText.", "Text.", 1),
    ("", "", 0),
])
def test_broken_markup(markup, expected, faults):
    found = plain(markup)
    assert ("\n".join(found[0]), found[1]) == (expected, faults)


def test_file_and_category_names_of_the_wiki_itself():
    names = Names.of(HEADER)
    assert text_of("A. [[Datei:x.jpg|mini|B]] [[Image:y.jpg]] [[Kategorie:Z]] [[Bild|b]]", names) == "A. b"


# --- dumps -----------------------------------------------------------------------------------------------------------
def page(number, text, ns=0, extra="", model="wikitext"):
    escaped = html.escape(text, quote=False).replace('"', "&quot;")
    return (f"  <page>\n    <title>Page {number}</title>\n    <ns>{ns}</ns>\n    <id>{number}</id>{extra}\n"
            "    <revision>\n"
            f"      <model>{model}</model>\n      <format>text/x-wiki</format>\n"
            f'      <text bytes="{len(text)}" xml:space="preserve">{escaped}</text>\n'
            "    </revision>\n  </page>\n")


def pages(count=40):
    """XML of pages of every kind."""
    found = [page(1, "#REDIRECT [[Page 2]]", extra='\n    <redirect title="Page 2" />'), page(2, PROSE, ns=1),
             page(3, "{}", model="json"), page(4, "* [[a]]\n* [[b]]"), page(5, "{{a\n\n" * 30 + PROSE),
             page(6, "#WEITERLEITUNG [[Page 2]]"), page(7, "")]
    for number in range(8, count):
        found.append(page(number, f"'''Page {number}''' is [[one]].{{{{cite|x}}}} {PROSE}\n\n== See also ==\n"
                                  f"* [[Other]]\n{{{{broken\n\nIt ends & rests {number}."))
    return found


def multistream(path, found, per_stream=5, index=True):
    """A dump in the layout of the mirrors: header, streams of pages, footer; its index beside it."""
    groups = [found[start:start + per_stream] for start in range(0, len(found), per_stream)]
    lines = []
    with open(path, "wb") as file:
        file.write(bz2.compress(HEADER.encode()))
        for number, group in enumerate(groups):
            lines += [f"{file.tell()}:{number}:Page: {number}\n"] * len(group)
            file.write(bz2.compress("".join(group).encode()))
        file.write(bz2.compress(b"</mediawiki>\n"))
    if index:
        name = path.name.replace("multistream.xml", "multistream-index.txt")
        path.with_name(name).write_bytes(bz2.compress("".join(lines).encode()))
    return path


@pytest.fixture
def small_shares(monkeypatch):
    monkeypatch.setattr(wikipedia, "SHARE", 1500)
    monkeypatch.setattr(outputs, "FILE_BYTES", 3000)


def all_text(folder):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("wiki-*.txt")))


def test_every_kind_of_page(tmp_path):
    dump = multistream(tmp_path / "dewiki-20260101-pages-articles-multistream.xml.bz2", pages())
    state = wikipedia.extract([dump], tmp_path / "out", progress=False)
    counts = state["counts"]
    assert {key: counts[key] for key in ("pages", "articles", *wikipedia.LOST)} == {
        "pages": 39, "articles": 32, "redirect": 2, "namespace": 1, "model": 1, "broken": 1, "short": 2}
    assert counts["unbalanced_pages"] == 33 and state["finished"]
    first = all_text(tmp_path / "out").split("\n\n")[0]
    assert first.split("\n") == [
        "Page 8 is one.", *["The river rises in the hills.",
                            "It then runs north for some days, and meets the sea."] * 3, "It ends & rests 8."]
    assert "32 articles of 39 pages" in wikipedia.summary(state)
    assert "2 redirects, 1 outside the articles, 1 not wikitext" in wikipedia.summary(state)


def test_the_text_is_read_as_one_document_an_article(tmp_path):
    dump = multistream(tmp_path / "x-multistream.xml.bz2", pages(), index=False)
    wikipedia.extract([dump], tmp_path / "out", progress=False)
    path = tmp_path / "out" / "wiki-0000.txt"
    documents = read_documents(path.read_text(encoding="utf-8"), layout_of(path))
    assert len(documents) == 32 and all(len(document) == 8 for document in documents)


def test_index_scan_single_stream_plain_xml_and_split_pages_give_the_same(tmp_path, small_shares):
    found = pages()
    xml = (HEADER + "".join(found) + "</mediawiki>\n").encode()
    dumps = {"index": multistream(tmp_path / "a-multistream.xml.bz2", found),
             "scan": multistream(tmp_path / "b-multistream.xml.bz2", found, index=False)}
    for name, content in {"single": bz2.compress(xml), "plain": xml}.items():
        dumps[name] = tmp_path / f"{name}.xml.bz2"
        dumps[name].write_bytes(content)
    for size in (97, 1000, 1003):  # as pbzip2 cuts: pages, tags and characters in two
        dumps[f"cut {size}"] = tmp_path / f"cut{size}.bz2"
        dumps[f"cut {size}"].write_bytes(b"".join(bz2.compress(xml[at:at + size]) for at in range(0, len(xml), size)))
    assert wikipedia.index_beside(dumps["index"]) and not wikipedia.index_beside(dumps["scan"])
    assert wikipedia.stream_starts(dumps["index"])[:-1] == wikipedia.stream_starts(dumps["scan"])[:-2]
    assert wikipedia.shares(dumps["single"]) is None and len(wikipedia.shares(dumps["cut 97"])) > 5
    made = {}
    for name, dump in dumps.items():
        state = wikipedia.extract([dump], tmp_path / name, progress=False)
        made[name] = all_text(tmp_path / name), {**state["counts"], "xml_bytes": 0}
    assert made["index"][0].count("\n\n") == 32
    assert all(value == made["index"] for value in made.values())


def test_the_number_of_workers_changes_nothing_and_several_dumps_follow_each_other(tmp_path, small_shares):
    found = pages(80)
    dumps = [multistream(tmp_path / "a-multistream.xml.bz2", found[:40]), tmp_path / "b.xml"]
    dumps[1].write_text(HEADER + "".join(found[40:]) + "</mediawiki>", encoding="utf-8")
    states = [wikipedia.extract(dumps, tmp_path / str(workers), workers, progress=False) for workers in (1, 2)]
    assert states[0] == states[1] and states[0]["counts"]["articles"] == 72
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert len(names) > 2 and names == sorted(path.name for path in (tmp_path / "2").iterdir())
    assert all((tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes() for name in names)


def test_an_extraction_goes_on_from_wherever_it_stopped(tmp_path, small_shares, monkeypatch):
    dump = multistream(tmp_path / "a-multistream.xml.bz2", pages(80))
    save, moments, place = outputs.TextFiles.save, [], -1

    def stop(output):
        if len(moments) == place:  # its text is on the disk, extract.json does not know yet, and more was begun
            if output.part.exists():
                with open(output.part, "ab") as file:
                    file.write(b"half a share")
            raise KeyboardInterrupt
        moments.append(1)
        save(output)
    monkeypatch.setattr(outputs.TextFiles, "save", stop)
    whole = wikipedia.extract([dump], tmp_path / "whole", progress=False)
    assert len(moments) > 5
    for place in range(1, len(moments)):
        moments.clear()
        monkeypatch.setattr(outputs.TextFiles, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            wikipedia.extract([dump], tmp_path / str(place), progress=False)
        monkeypatch.setattr(outputs.TextFiles, "save", save)
        assert wikipedia.extract([dump], tmp_path / str(place), progress=False) == whole
        assert all_text(tmp_path / str(place)) == all_text(tmp_path / "whole")
        assert not list((tmp_path / str(place)).glob("*.part"))


@pytest.mark.slow
def test_a_killed_extraction_goes_on(tmp_path):
    found = [page(number, f"Page {number}. {PROSE * 9}") for number in range(2000)]
    dump = multistream(tmp_path / "a-multistream.xml.bz2", found, per_stream=20)
    code = ("import sys; from data import outputs, wikipedia; wikipedia.SHARE = 4_000; outputs.FILE_BYTES = 1_000_000; "
            "wikipedia.extract([sys.argv[1]], sys.argv[2], 2, False)")
    command = [sys.executable, "-c", code, str(dump)]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, cwd=ROOT)
    process = subprocess.Popen([*command, str(tmp_path / "killed")], cwd=ROOT)
    state = tmp_path / "killed" / "extract.json"
    while process.poll() is None and not (state.exists() and json.loads(state.read_text())["done"] > 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not json.loads(state.read_text())["finished"]
    subprocess.run([*command, str(tmp_path / "killed")], check=True, cwd=ROOT)
    assert all_text(tmp_path / "killed") == all_text(tmp_path / "whole")


def test_a_dump_that_is_cut_short_is_named(tmp_path, small_shares):
    found = pages(60)
    whole = multistream(tmp_path / "a-multistream.xml.bz2", found, index=False).read_bytes()
    starts = wikipedia.stream_starts(tmp_path / "a-multistream.xml.bz2")
    single = bz2.compress((HEADER + "".join(found) + "</mediawiki>").encode())
    broken = {"inside": whole[:starts[6] + 100], "between": whole[:starts[6]], "single": single[:-40],
              "no end": bz2.compress((HEADER + "".join(found)).encode()),
              "damaged": single[:300] + bytes(100) + single[400:]}
    for name, content in broken.items():
        path = tmp_path / f"{name}.xml.bz2"
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"{name}.xml.bz2: .*fetch the file again") as caught:
            wikipedia.extract([path], tmp_path / name, progress=False)
        assert "\n" not in str(caught.value)


def test_mistakes_are_named(tmp_path, small_shares):
    dump = multistream(tmp_path / "a-multistream.xml.bz2", pages(20))
    wikipedia.extract([dump], tmp_path / "out", progress=False)
    other = multistream(tmp_path / "b-multistream.xml.bz2", pages(30))
    with pytest.raises(UserError, match="made from other files"):
        wikipedia.extract([other], tmp_path / "out", progress=False)
    with pytest.raises(UserError, match="not empty"):
        wikipedia.extract([other], tmp_path, progress=False)
    (tmp_path / "text.xml").write_text("some text")
    with pytest.raises(UserError, match="text.xml: this is no dump of a wiki"):
        wikipedia.extract([tmp_path / "text.xml"], tmp_path / "x", progress=False)
    with pytest.raises(UserError, match="gone.bz2: no such file"):
        wikipedia.extract([tmp_path / "gone.bz2"], tmp_path / "x", progress=False)
    os.replace(tmp_path / "a-multistream-index.txt.bz2", tmp_path / "b-multistream-index.txt.bz2")
    with open(other, "rb+") as file:
        file.seek(wikipedia.stream_starts(dump)[1])
        file.write(b"x")
    with pytest.raises(UserError, match="no stream begins at byte"):
        wikipedia.stream_starts(other)
