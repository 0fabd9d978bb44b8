// The tokenizer of the commands that need no weights: render and parse.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace deepinfer {

// `given`: a tokenizer.json or a folder with one. Empty: DEEPINFER_MODEL, else models/deepinfer-tiny above
// the program.
Result<Tokenizer> find_tokenizer(const std::string& given);
// All of a file, or of standard input for "" and "-".
Result<std::string> read_all(const std::string& path);

}  // namespace deepinfer
