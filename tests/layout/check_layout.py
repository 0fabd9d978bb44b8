"""Holds the source tree against the room table of docs/layout.md, the single source of the rules.

check_layout.py ROOT          the rules: includes, CMake links, the extra bans of policy/
check_layout.py --lint ROOT   the habits: head comments, file lengths

Prints one line per breach and exits with 1 if there is any. Does not know what a room does. Its own test is
check_layout_test.py, which breaks every rule once.
"""
import argparse
import pathlib
import re
import sys

MAX_LINES = 650
CODE = (".h", ".cc")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
# Quoted by custom although outside: Highway's headers that include the including file again.
QUOTED_LIBRARIES = {"hwy"}

POLICY_HEADERS = {
    "chrono", "ctime", "time.h", "sys/time.h", "thread", "mutex", "shared_mutex", "condition_variable", "future", "stop_token",
    "atomic", "semaphore", "barrier", "latch", "pthread.h", "fstream", "iostream", "cstdio", "stdio.h", "filesystem", "fcntl.h",
    "unistd.h", "sys/stat.h", "sys/mman.h", "sys/socket.h", "netinet/in.h", "netdb.h", "poll.h", "sys/epoll.h", "random",
    "unordered_map", "unordered_set", "spdlog/spdlog.h", "syslog.h",
}
POLICY_WORDS = re.compile(
    r"\b(?:std\s*::\s*(?:unordered_\w+|chrono|thread|jthread|mutex|cout|cerr|clog|random_device|mt19937\w*|ifstream|ofstream|"
    r"rand|getenv|time|clock|async)|flat_hash_(?:map|set)|clock_gettime|gettimeofday|getenv|secure_getenv|setenv|fopen|"
    r"printf|fprintf|socket|getrandom|srand|rand|random_device)\b")


def strip_comments(text, strings=False):
    """C++ text without comments (and, if asked, without string contents); line breaks stay where they were."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

    def replace(match):
        piece = match.group(0)
        if piece.startswith("/"):
            return "\n" * piece.count("\n")
        return piece[0] * 2 if strings else piece

    return pattern.sub(replace, text)


def read_table(root):
    """{room: set of rooms it may include from, or None for everything}, in the order of the table."""
    text = (root / "docs/layout.md").read_text(encoding="utf-8")
    table = text.split("<!-- rooms: begin", 1)[1].split("<!-- rooms: end", 1)[0]
    rooms = {}
    for line in table.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        name = re.fullmatch(r"`(\w+)/`", cells[0]) if len(cells) == 3 else None
        if name is None:
            continue
        rooms[name.group(1)] = None if cells[2] == "everything" else set(re.findall(r"`(\w+)`", cells[2]))
    return rooms


def check_table(rooms):
    """The table itself: known names, and only rooms further up, so that no circle is possible."""
    if len(rooms) < 2:
        yield "docs/layout.md: the room table is empty or unreadable"
    above = set()
    for room, allowed in rooms.items():
        for other in sorted((allowed or set()) - above):
            yield f"docs/layout.md: {room} may use '{other}', which is not a room further up in the table"
        above.add(room)


def source_files(root):
    return sorted(p for p in (root / "src").rglob("*") if p.suffix in CODE and p.is_file())


def check_includes(root, rooms):
    for path in source_files(root):
        where = path.relative_to(root)
        room = path.relative_to(root / "src").parts[0]
        if room not in rooms:
            yield f"{where}: src/{room} is not in the room table of docs/layout.md"
            continue
        text = strip_comments(path.read_text(encoding="utf-8"))
        for match in INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            target = match.group(1)
            first = target.split("/")[0]
            if first in QUOTED_LIBRARIES:
                continue
            if first not in rooms:
                yield f'{where}:{line}: #include "{target}" does not start with a room; outside headers are written <...>'
            elif not (root / "src" / target).is_file():
                yield f'{where}:{line}: #include "{target}" names no file under src/'
            elif first != room and rooms[room] is not None and first not in rooms[room]:
                allowed = ", ".join(sorted(rooms[room])) or "no other room"
                yield f'{where}:{line}: {room} may not include "{target}"; docs/layout.md allows {allowed}'


def included_rooms(folder):
    """Rooms that the library's own files (not its tests) include from, itself left out."""
    rooms = set()
    for path in folder.rglob("*"):
        if path.suffix in CODE and not path.name.endswith("_test.cc"):
            text = strip_comments(path.read_text(encoding="utf-8"))
            rooms.update(target.split("/")[0] for target in INCLUDE.findall(text))
    return rooms - {folder.name}


def check_links(root, rooms):
    """di_room(... ROOMS ...) links nothing beyond the room's row, and every room that it includes from itself."""
    for path in sorted((root / "src").glob("*/CMakeLists.txt")):
        room = path.parent.name
        where = path.relative_to(root)
        if rooms.get(room) is None:
            continue  # everything, or reported by check_includes
        text = re.sub(r"#[^\n]*", "", path.read_text(encoding="utf-8"))
        call = re.search(rf"\bdi_room\(\s*{room}\b([^)]*)\)", text)
        if call is None:
            yield f"{where}: no di_room({room} ...)"
            continue
        words = call.group(1).split()
        linked, inside = set(), False
        for word in words:
            if word in ("SOURCES", "ROOMS", "LIBS"):
                inside = word == "ROOMS"
            elif inside:
                linked.add(word)
        for extra in sorted(linked - rooms[room]):
            yield f"{where}: links {extra}, which docs/layout.md does not allow for {room}"
        for missing in sorted((included_rooms(root / "src" / room) & rooms[room]) - linked):
            yield f"{where}: does not link {missing}, from which {room} includes"


def check_policy(root):
    for path in source_files(root):
        if path.relative_to(root / "src").parts[0] != "policy" or path.name.endswith("_test.cc"):
            continue
        where = path.relative_to(root)
        text = strip_comments(path.read_text(encoding="utf-8"), strings=True)
        for number, line in enumerate(text.splitlines(), 1):
            include = re.match(r"\s*#\s*include\s*<([^>]+)>", line)
            if include and include.group(1) in POLICY_HEADERS:
                yield f"{where}:{number}: policy may not include <{include.group(1)}>"
            elif not include:
                word = POLICY_WORDS.search(line)
                if word:
                    yield f"{where}:{number}: policy may not use '{word.group(0)}'"


def linted_files(root):
    skip = {"build", ".git", ".cache", "__pycache__", "corpus", "models"}
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not skip.intersection(parts) and not parts[0].startswith("."):
            yield path


def check_habits(root):
    for path in linted_files(root):
        if path.suffix not in (".h", ".cc", ".py", ".sh"):
            continue
        where = path.relative_to(root)
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_LINES:
            yield f"{where}: {len(lines)} lines; split it ({MAX_LINES} is the most)"
        head = [l for l in lines[:3] if l.strip() and not l.startswith("#!")]
        starts = {".h": ("//",), ".cc": ("//",), ".sh": ("#",), ".py": ('"""', "#", 'r"""')}[path.suffix]
        if not head or not head[0].startswith(starts):
            yield f"{where}: no head comment that says what the file is"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lint", action="store_true")
    parser.add_argument("root", type=pathlib.Path)
    args = parser.parse_args()
    if args.lint:
        breaches = list(check_habits(args.root))
    else:
        rooms = read_table(args.root)
        breaches = [*check_table(rooms), *check_includes(args.root, rooms), *check_links(args.root, rooms),
                    *check_policy(args.root)]
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
