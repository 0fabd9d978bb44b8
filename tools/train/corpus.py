"""Prose and code for the trainer, taken from installed Debian packages.

Writes prose.txt and code.txt (and their held-out parts) into a work folder; documents are separated by a NUL byte.
The text is only training input: nothing of it is shipped, the weights are. A file is held out by a hash of its name, so
the split does not depend on the machine. Packages: see PACKAGES; a missing package only makes the corpus smaller
(the log says what was found).
"""
import glob
import gzip
import hashlib
import html
import os
import random
import re

PACKAGES = ["linux-doc-6.1", "python3.11-doc", "debian-handbook", "dict-gcide", "perl-doc", "git-doc", "debian-policy",
            "developers-reference", "jargon-text", "fortunes", "libpython3.11-stdlib", "perl-modules-5.36", "libc6-dev",
            "libstdc++-12-dev"]

# (kind, glob, most megabytes taken from it)
SOURCES = [
    ("prose", "/usr/share/doc/debian-handbook/html/en-US/*.html", 6),
    ("prose", "/usr/share/doc/python3.11/html/_sources/**/*.txt", 10),
    ("prose", "/usr/share/doc/linux-doc-6.1/Documentation/**/*.rst.gz", 10),
    ("prose", "/usr/share/doc/git-doc/*.txt", 2),
    ("prose", "/usr/share/doc/debian-policy/*.txt.gz", 1),
    ("prose", "/usr/share/doc/developers-reference/**/*.html", 1),
    ("prose", "/usr/share/doc/jargon-text/*", 2),
    ("prose", "/usr/share/games/fortunes/*", 3),
    ("prose", "/usr/share/dictd/gcide.dict.dz", 14),
    ("prose", "/usr/share/perl/5.36/pod/*.pod", 6),
    ("code", "/usr/lib/python3.11/**/*.py", 10),
    ("code", "/usr/share/perl/5.36/**/*.pm", 3),
    ("code", "/usr/include/**/*.h", 4),
    ("code", "/usr/include/c++/12/bits/*", 3),
    ("code", "/usr/lib/python3/dist-packages/sympy/**/*.py", 3),
]
PART = 12000      # characters of one document; longer files are cut at a line end
HELD_OUT = 50     # one document in this many


def clean_html(text):
    text = re.sub(r"(?is)<(script|style|head|nav)\b.*?</\1>", " ", text)
    text = re.sub(r"(?i)</?(p|div|h\d|li|ul|ol|table|tr|pre|br|dt|dd)\b[^>]*>", "\n", text)
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def read(path):
    opener = gzip.open if path.endswith((".gz", ".dz")) else open
    with opener(path, "rb") as f:
        text = f.read().decode("utf-8", "ignore")
    if path.endswith(".html"):
        text = clean_html(text)
    text = text.replace("\0", "").replace("\r", "").replace("\t", "    ")
    text = re.sub(r"[ ]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def parts(text):
    start = 0
    while start < len(text):
        end = min(len(text), start + PART)
        if end < len(text):
            cut = text.rfind("\n", start + PART // 2, end)
            end = cut if cut > 0 else end
        if end - start > 200:
            yield text[start:end].strip("\n")
        start = end


def held_out(path, i):
    """Whether part i of a file belongs to the held-out side."""
    digest = hashlib.sha256(f"{os.path.basename(path)}#{i}".encode()).digest()
    return digest[0] * 256 + digest[1] < 65536 // HELD_OUT


def build(folder):
    """Writes the four files; returns a dictionary of characters per source."""
    os.makedirs(folder, exist_ok=True)
    out = {}
    report = {}
    rng = random.Random(1)
    for kind, pattern, limit in SOURCES:
        paths = sorted(p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p) and not p.endswith((".dat", ".u8")))
        rng.shuffle(paths)
        used = 0
        for path in paths:
            try:
                text = read(path)
            except OSError:
                continue
            pieces = list(parts(text))
            if len(pieces) > 200:
                rng.shuffle(pieces)
            for i, piece in enumerate(pieces):
                if used > limit * 1000000:
                    break
                name = kind + ("_heldout" if held_out(path, i) else "")
                out.setdefault(name, []).append(piece)
                used += len(piece)
        report[pattern] = used
    for name, docs in out.items():
        rng.shuffle(docs)
        with open(os.path.join(folder, name + ".txt"), "w", encoding="utf-8") as f:
            f.write("\0".join(docs))
    return report


if __name__ == "__main__":
    import sys
    for source, size in build(sys.argv[1] if len(sys.argv) > 1 else "build/train/corpus").items():
        print(f"{size:>10} {source}")
