"""Test of check_layout.py: a small tree that keeps every rule, then the same tree with each rule broken once."""
import pathlib
import tempfile
import unittest

import check_layout as layout

TABLE = """# Layout
<!-- rooms: begin -->
| room | what | may use |
|---|---|---|
| `base/` | words | nothing but std |
| `model/` | facts | `base` |
| `policy/` | decisions | `base` `model` |
| `host/` | machine | `base` |
| `apps/` | program | everything |
<!-- rooms: end -->
"""

GOOD = {
    "docs/layout.md": TABLE,
    "src/base/a.h": "// Head.\n#pragma once\n#include <string>\n",
    "src/base/CMakeLists.txt": "di_room(base SOURCES a.cc LIBS fmt::fmt)\n",
    "src/model/m.h": '// Head.\n#include "base/a.h"\n#include "model/n.h"\n',
    "src/model/n.h": '// Head. // #include "host/h.h" in a comment is no include\n/* #include "host/h.h" */\n',
    "src/model/CMakeLists.txt": "di_room(model SOURCES m.cc ROOMS base)  # ROOMS host\ndi_test(t ROOMS model)\n",
    "src/policy/p.cc": '// Head; std::chrono in a comment.\n#include <map>\n#include "model/m.h"\nint time_left = 1;\n'
                       'const char* kText = "std::thread";\n',
    "src/policy/CMakeLists.txt": "di_room(policy SOURCES p.cc\n        ROOMS base model)\n",
    "src/host/h.h": "// Head.\n#include <thread>\n",
    "src/host/CMakeLists.txt": "di_room(host SOURCES h.cc ROOMS base LIBS x)\n",
    "src/apps/main.cc": '// Head.\n#include "host/h.h"\n#include "policy/p.cc"\n#include "hwy/highway.h"\n',
    "src/apps/CMakeLists.txt": "add_executable(deepinfer main.cc)\n",
    "tools/x.py": '#!/usr/bin/env python3\n"""Head."""\n',
}


def breaches(changes, lint=False):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {**GOOD, **changes}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        if lint:
            return list(layout.check_habits(root))
        rooms = layout.read_table(root)
        return [*layout.check_table(rooms), *layout.check_includes(root, rooms), *layout.check_links(root, rooms),
                *layout.check_policy(root)]


class Rules(unittest.TestCase):
    def one(self, changes, text, lint=False):
        found = breaches(changes, lint)
        self.assertEqual(len(found), 1, found)
        self.assertIn(text, found[0])

    def test_good_tree(self):
        self.assertEqual(breaches({}), [])
        self.assertEqual(breaches({}, lint=True), [])

    def test_forbidden_include(self):
        self.one({"src/model/n.h": '// Head.\n#include "host/h.h"\n'}, 'src/model/n.h:2: model may not include "host/h.h"')
        self.one({"src/base/b_test.cc": '// Head.\n# include "model/m.h"\n'}, 'base may not include "model/m.h"')

    def test_unknown_room_and_missing_file(self):
        self.one({"src/attic/x.h": "// Head.\n"}, "src/attic is not in the room table")
        self.one({"src/model/n.h": '// Head.\n#include "n.h"\n'}, "does not start with a room")
        self.one({"src/model/n.h": '// Head.\n#include "base/gone.h"\n'}, "names no file")

    def test_links(self):
        self.one({"src/model/CMakeLists.txt": "di_room(model SOURCES m.cc ROOMS base host)\n"}, "links host")
        self.one({"src/model/CMakeLists.txt": "di_room(model SOURCES m.cc LIBS base)\n"}, "does not link base")
        self.one({"src/host/CMakeLists.txt": "add_library(di_host h.cc)\n"}, "no di_room(host")

    def test_table(self):
        circle = TABLE.replace("| nothing but std |", "| `model` |")
        found = breaches({"docs/layout.md": circle})
        self.assertIn("docs/layout.md: base may use 'model', which is not a room further up in the table", found)
        empty = breaches({"docs/layout.md": "<!-- rooms: begin --><!-- rooms: end -->"})
        self.assertIn("docs/layout.md: the room table is empty or unreadable", empty)

    def test_policy_bans(self):
        for line, text in {
            "#include <chrono>": "<chrono>",
            "#include <fstream>": "<fstream>",
            "#include <sys/socket.h>": "<sys/socket.h>",
            "std::unordered_map<int, int> m;": "std::unordered_map",
            'auto* e = std::getenv("X");': "getenv",
            "auto t = std::chrono::steady_clock::now();": "std::chrono",
            'printf("x");': "printf",
            "std::random_device d;": "random_device",
        }.items():
            self.one({"src/policy/p.cc": f"// Head.\n{line}\n"}, text)

    def test_habits(self):
        self.one({"src/base/a.h": "#pragma once\n"}, "no head comment", lint=True)
        self.one({"tools/x.py": "import os\n"}, "no head comment", lint=True)
        self.one({"src/base/a.h": "// Head.\n" * (layout.MAX_LINES + 1)}, "split it", lint=True)


if __name__ == "__main__":
    unittest.main()
