// The description of the one custom tool the Responses mapping knows, apply_patch, as it is shown to the
// model. A text of its own so that it can be replaced: the vendor's wording is not published (request edge
// specification 4.2).
#pragma once

#include <string_view>

namespace deepinfer {

inline constexpr std::string_view kApplyPatchDescription =
    R"(Edits files with a patch. The patch is one envelope:

*** Begin Patch
(one or more file sections)
*** End Patch

Each file section begins with one of these headers:

*** Add File: <path>     a new file; every following line begins with + and is its content
*** Delete File: <path>  removes the file; nothing follows
*** Update File: <path>  changes the file in place; may be followed at once by *** Move to: <new path>

An update holds one or more hunks. A hunk begins with @@, optionally followed by a line of the file that tells where it is, such as a
class or function header. Each line of a hunk begins with a space (unchanged), - (removed) or + (added). Show three unchanged lines
before and after each change. If they do not single out the place, add a header after @@, or several @@ lines from the outer to the
inner one. *** End of File marks a hunk at the end of the file.

Paths are relative, never absolute. New lines begin with + in a new file too. Example:

*** Begin Patch
*** Update File: src/app.py
@@ def greet():
-print("Hi")
+print("Hello, world!")
*** Delete File: obsolete.txt
*** End Patch
)";

inline constexpr std::string_view kApplyPatchInput =
    "The whole patch, from *** Begin Patch to *** End Patch.";

}  // namespace deepinfer
