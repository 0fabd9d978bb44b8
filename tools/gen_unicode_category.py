"""Writes src/grammar/unicode_category.inc: ranges of code points by general category, from Python's Unicode data.

usage: gen_unicode_category.py > src/grammar/unicode_category.inc
"""
import unicodedata


def ranges():
    first = last = category = None
    for c in range(0x110000):
        now = None if 0xD800 <= c < 0xE000 else unicodedata.category(chr(c))
        now = None if now == "Cn" else now
        if now == category and last == c - 1:
            last = c
            continue
        if category is not None:
            yield first, last, category
        first = last = c
        category = now
    if category is not None:
        yield first, last, category


print(f"// Unicode {unicodedata.unidata_version} general categories: first, last, category. Written by tools/gen_unicode_category.py.")
line = ""
for low, high, name in ranges():
    item = f"{{0x{low:X},0x{high:X},'{name[0]}','{name[1]}'}},"
    if len(line) + len(item) > 108:
        print(line)
        line = ""
    line += item
print(line)
