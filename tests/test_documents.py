"""Files, folders and standard input as one document."""

from __future__ import annotations

import io
import random
import sys
from types import SimpleNamespace

import pytest
from pypdf import PdfWriter

from rapid_core import DocumentError
from rapid_core.documents import PYTHON_REFERENCE, read_document


def write_pdf(path, lines):
    """A PDF of one page with lines of text, written by hand, since pypdf only edits."""
    text = "BT /F1 12 Tf 72 720 Td " + " ".join(f"({line}) Tj 0 -16 Td" for line in lines) + " ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        "/Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(text)} >>\nstream\n{text}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, places = io.BytesIO(b""), []
    out.write(b"%PDF-1.4\n")
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n{body}\nendobj\n".encode())
    start = out.tell()
    rows = "".join(f"{place:010d} 00000 n \n" for place in places)
    out.write(
        f"xref\n0 6\n0000000000 65535 f \n{rows}trailer << /Size 6 /Root 1 0 R >>\nstartxref\n{start}\n%%EOF".encode()
    )
    path.write_bytes(out.getvalue())


def test_a_text_file_is_read_as_utf8_with_or_without_mark(tmp_path):
    for name, data in (("a.txt", "Łódź 東京\n".encode()), ("b.md", "\ufeffŁódź 東京\n".encode())):
        (tmp_path / name).write_bytes(data)
        assert read_document(str(tmp_path / name)).text == "Łódź 東京\n"


def test_a_pdf_is_read_by_its_text(tmp_path):
    write_pdf(tmp_path / "a.pdf", ["The tenant may sublet", "the cellar."])
    text = read_document(str(tmp_path / "a.pdf")).text
    assert "The tenant may sublet" in text and "the cellar." in text


def test_a_pdf_without_text_is_probably_a_scan(tmp_path):
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.write(tmp_path / "scan.pdf")
    with pytest.raises(DocumentError, match="1 pages and no text on them; it is probably a scan"):
        read_document(str(tmp_path / "scan.pdf"))


def test_what_only_calls_itself_a_pdf_is_an_error(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"hello")
    with pytest.raises(DocumentError, match="no PDF that can be read"):
        read_document(str(tmp_path / "a.pdf"))


def test_a_folder_is_read_in_order_and_names_what_it_skipped(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "pkg" / "b.py").write_text("def b(): ...\n")
    (tmp_path / "a.py").write_text("def a(): ...\n")
    (tmp_path / ".git" / "config").write_text("secret")
    (tmp_path / "pkg" / "image.png").write_bytes(b"\x89PNG\0\0")
    document = read_document(str(tmp_path))
    assert document.text == "=== a.py ===\n\ndef a(): ...\n\n=== pkg/b.py ===\n\ndef b(): ..."
    assert len(document.skipped) == 1 and "image.png" in document.skipped[0] and "binary" in document.skipped[0]


def test_standard_input_is_read_as_bytes(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("piped ñ".encode())))
    assert read_document("-").text == "piped ñ"


def test_the_python_reference_is_there_without_a_network():
    document = read_document(PYTHON_REFERENCE)
    assert len(document.text) > 300_000
    assert 'The "with" statement' in document.text


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.txt", b"  \n", "must not be empty"),
        ("binary.bin", b"\x7fELF\0\0", "must be text, and it is a binary file"),
        ("latin.txt", "café".encode("latin1"), "must be UTF-8, and byte 3 is not.*iconv"),
    ],
)
def test_a_file_that_is_no_document_is_an_error_with_a_remedy(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DocumentError, match=message):
        read_document(str(tmp_path / name))


@pytest.mark.parametrize("name", ["", "  ", "~nobody-of-this-name/x", "n" * 5000])
def test_a_name_that_is_no_path_is_an_error(name):
    with pytest.raises(DocumentError):
        read_document(name)


def test_a_program_without_standard_input_says_so(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DocumentError, match="this program has none"):
        read_document("-")


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_pdf_is_one_error_and_costs_a_folder_only_itself(tmp_path, seed, capfd):
    write_pdf(tmp_path / "a.pdf", ["The tenant may sublet"])
    data, generator = bytearray((tmp_path / "a.pdf").read_bytes()), random.Random(seed)
    for _ in range(12):
        data[generator.randrange(len(data))] = generator.randrange(256)
    (tmp_path / "a.pdf").write_bytes(data)
    (tmp_path / "b.txt").write_text("Beside it.")
    assert "Beside it." in read_document(str(tmp_path)).text
    assert capfd.readouterr() == ("", "")


def test_a_missing_file_and_an_empty_folder_are_errors(tmp_path):
    with pytest.raises(DocumentError, match="no document at .*; name a text, Markdown or PDF file"):
        read_document(str(tmp_path / "none.txt"))
    with pytest.raises(DocumentError, match="holds no text file"):
        read_document(str(tmp_path))
